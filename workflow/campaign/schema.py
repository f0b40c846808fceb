"""The files under config/, key by key: each has a description and, where one makes sense, a default."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from campaign.settings import InstrumentBlock, Name

Scalar = bool | int | float | str
FlagName = Annotated[str, Field(pattern=r"^-{1,2}[A-Za-z][A-Za-z0-9._-]*$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Flags = dict[FlagName, Scalar | list[Scalar] | None]
Env = dict[EnvName, Scalar | None]
Seconds = Annotated[float, Field(gt=0)]


def _one_line(text: str) -> str:
    text = text.strip()
    if not text:
        raise ValueError("this must have words in it")
    if any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") for letter in text):
        raise ValueError("this must be one line without control characters")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
"""Text that has a line of a table or a heading for itself."""


class Strict(BaseModel):
    """A mapping in which a key that nobody knows is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Model(Strict):
    """Which weights the lane serves, and how to tell them from others."""

    model_config = ConfigDict(title="model")

    name: Line = Field(description="Name that the engine serves and that requests ask for.")
    path: str | None = Field(
        default=None,
        description="File or directory of the weights, put in for {model}; without sha256, its "
        "sizes and times are part of what was measured.",
    )
    package: str | None = Field(
        default=None, description="Installed Python package that carries the weights, instead of a path."
    )
    file: str | None = Field(default=None, description="The weights' path inside that package.")
    revision: str | None = Field(default=None, description="Commit or tag of the weights.")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="Checksum of the weights file; checked before each boot."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        if self.path and self.package:
            raise ValueError("give path or package, not both")
        if (self.package is None) != (self.file is None):
            raise ValueError("package and file belong together")
        if self.sha256 and not (self.path or self.package):
            raise ValueError("sha256 needs a path or a package to check")
        return self


class Constraint(Strict):
    """What the lane can't do: a variant that breaks it is blocked before a boot is spent."""

    model_config = ConfigDict(title="constraints, each")

    name: Name = Field(description="Short name of the constraint.")
    expression: str = Field(
        description="Must hold, over flags (--ctx-size is ctx_size) and env by name, e.g. "
        "chunked_prefill_size * 24 <= SPARK_ENGRAM_MAX_IDS."
    )
    reason: Line = Field(description="What would go wrong, in one sentence for the report.")


class WarmUp(Strict):
    """Requests made after each boot and discarded."""

    model_config = ConfigDict(title="warm_up")

    requests: Annotated[int, Field(ge=1)] = Field(default=2, description="How many requests.")
    prompt_tokens: Annotated[int, Field(ge=8)] = Field(
        default=128, description="Size of each prompt in tokens."
    )
    max_tokens: Annotated[int, Field(ge=1)] = Field(default=16, description="Tokens asked of each answer.")


class Lane(Strict):
    """How one model is served."""

    description: Line = Field(description="What this lane is, in one line.")
    engine: Literal["llama.cpp", "vllm", "sglang", "other"] = Field(description="The inference engine.")
    launcher: Literal["process"] = Field(
        default="process", description="How an engine is started and stopped."
    )
    command: Annotated[list[str], Field(min_length=1)] = Field(
        description="Command and fixed arguments; {model}, {name}, {host} and {port} are filled in here, and "
        "nowhere else."
    )
    model: Model = Field(description="The weights.")
    image: str | None = Field(default=None, description="Container image with its digest or tag.")
    packages: list[str] = Field(
        default=[],
        description="Installed Python packages whose versions belong to the identity of a variant.",
    )
    flags: Flags = Field(
        default={},
        description="Server flags, handed on as written (on, off, 022 are text); true is a bare flag, "
        "false or null leaves the flag out.",
    )
    env: Env = Field(default={}, description="Environment variables of the engine; null leaves one out.")
    pass_env: list[EnvName] = Field(
        default=[],
        description="Names of variables handed on from the caller, such as a hub token; never recorded.",
    )
    api_key_env: EnvName | None = Field(
        default=None, description="Name of the variable that holds the API key for requests."
    )
    host: str = Field(default="127.0.0.1", description="Address on which the engine listens.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="Port on which the engine listens; 0 takes a free one at each boot."
    )
    ready_timeout_s: Seconds = Field(
        default=7200.0, description="Longest time from start to the first token."
    )
    max_boots: Annotated[int, Field(ge=1)] = Field(
        default=3,
        description="Most boots that one run spends on one boot of a variant whose engine keeps dying; "
        "the cells left over are not run.",
    )
    stop_timeout_s: Seconds = Field(default=30.0, description="Time to stop by itself before it is killed.")
    warm_up: WarmUp = Field(default=WarmUp(), description="Requests made after each boot and discarded.")
    constraints: list[Constraint] = Field(default=[], description="What the lane can't do.")
    speculates_if: str | None = Field(
        default=None, description="Expression that holds when a variant decodes speculatively."
    )
    tokenizer: str = Field(
        default="gguf",
        description="Tokenizer for llama-benchy: gguf (made from the weights), a directory, or a hub name.",
    )
    book: str | None = Field(
        default=None, description="Text file for llama-benchy's prompts; a generated one when absent."
    )


class Venue(Strict):
    """The machines that a lane runs on; one engine at a time."""

    description: Line = Field(description="What this venue is, in one line.")
    hosts: Annotated[list[str], Field(min_length=1)] = Field(
        default=["localhost"], description="Its machines, rank 0 first."
    )
    lease_wait_s: Seconds = Field(
        default=86400.0, description="Longest wait for another run that holds the venue."
    )


class Variant(Strict):
    """The lane with some flags and env changed."""

    model_config = ConfigDict(title="variants, each")

    label: Line | None = Field(
        default=None, description="Name in the report's tables; the variant's name when absent."
    )
    flags: Flags = Field(default={}, description="Flags changed or added; null takes one of the lane's away.")
    env: Env = Field(default={}, description="Env changed or added; null takes one of the lane's away.")
    note: Line | None = Field(default=None, description="Why this variant is in the campaign, in one line.")


class Campaign(Strict):
    """One question, its matrix and its writeup."""

    title: Line = Field(description="Title of the report.")
    question: str = Field(description="The question that the campaign answers, in Markdown.")
    lane: Name = Field(description="A file under config/lanes, without .yaml.")
    venue: Name = Field(description="A file under config/venues, without .yaml.")
    baseline: Name = Field(description="The variant that the others are compared with.")
    variants: Annotated[dict[Name, Variant], Field(min_length=1)] = Field(
        description="The variants by name; a name is a directory under results."
    )
    order: list[Name] | None = Field(
        default=None,
        description="Boots in the order in which they are made; a variant named twice gets b1 and b2. All "
        "variants once, as written, when absent; a variant left out is listed as not yet measured.",
    )
    instruments: Annotated[list[InstrumentBlock], Field(min_length=1)] = Field(
        description="Blocks of points; each names its instrument."
    )
    method: str | None = Field(default=None, description="Prose added to the method section, in Markdown.")
    findings: str | None = Field(default=None, description="Prose of the findings section, in Markdown.")
    not_measured: list[Line] = Field(
        default=[], description="What was left for later and is no cell of this matrix, one line each."
    )


class Settings(Strict):
    """config/config.yaml: what a plain `snakemake` builds."""

    campaigns: Annotated[list[Name], Field(min_length=1)] = Field(
        description="Campaigns under config/campaigns that are built."
    )
    keep_engine: bool = Field(
        default=False, description="Leave the last engine up at the end of the run instead of stopping it."
    )


FILES: dict[str, type[Strict]] = {"config": Settings, "campaign": Campaign, "lane": Lane, "venue": Venue}
"""What each kind of file under config/ must look like."""
