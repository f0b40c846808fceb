"""What each instrument can be set to, as a campaign file writes it, and the points that this gives."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PROTOCOLS = {"boot": 2, "warm_up": 1, "probe": 2, "llama_benchy": 2, "tool_eval": 2}
"""Version of how each instrument measures; a change that could move a number raises it."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Scenario = Annotated[str, Field(pattern=r"^TC-[0-9]+$")]
BootName = Annotated[str, Field(pattern=r"^b[1-9][0-9]*$")]
Count = Annotated[int, Field(ge=1)]
Counts = Annotated[list[Count], Field(min_length=1)]


@dataclass(frozen=True)
class Endpoint:
    """Where an engine answers: base_url ends in /v1; the key is named by its environment variable."""

    base_url: str
    model: str
    api_key_env: str | None = None


class Block(BaseModel):
    """What all instruments share: which variants and boots a block of points applies to."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    variants: Annotated[list[Name], Field(min_length=1)] | None = Field(
        default=None, description="Only these variants are measured with this block; all when absent."
    )
    boots: Annotated[list[BootName], Field(min_length=1)] | None = Field(
        default=None, description="Only these boots (b1, b2, …) of each variant; all when absent."
    )
    timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=600.0, description="Longest time in seconds that one request may take."
    )


class ProbePoint(BaseModel):
    """One setting of the probe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_tokens: int
    max_tokens: int
    concurrency: int
    warmups: int
    passes: int
    timeout_s: float

    @property
    def name(self) -> str:
        """The point as paths and tables write it: pp2048-tg256-c1."""
        return f"pp{self.prompt_tokens}-tg{self.max_tokens}-c{self.concurrency}"


class ProbeBlock(Block):
    """The streaming probe: cold prompts, discarded warm-ups, N measured passes."""

    model_config = ConfigDict(title="instruments: probe")

    instrument: Literal["probe"] = Field(description="The instrument of this block.")
    prompt_tokens: Counts = Field(
        default=[2048], description="Sizes of the cold prompt, in the server's own tokens."
    )
    max_tokens: Annotated[int, Field(ge=2)] = Field(default=256, description="Tokens asked of each answer.")
    concurrency: Counts = Field(default=[1], description="Requests in flight at once.")
    warmups: Annotated[int, Field(ge=0)] = Field(default=2, description="Passes made first and discarded.")
    passes: Count = Field(default=5, description="Measured passes of each point.")

    def points(self) -> list[ProbePoint]:
        """One point for each prompt size and concurrency, in the order in which they are measured."""
        return [
            ProbePoint(
                prompt_tokens=size,
                max_tokens=self.max_tokens,
                concurrency=c,
                warmups=self.warmups,
                passes=self.passes,
                timeout_s=self.timeout_s,
            )
            for size, c in product(self.prompt_tokens, self.concurrency)
        ]


class BenchyPoint(BaseModel):
    """One setting of llama-benchy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    pp: int
    tg: int
    depth: int
    concurrency: int
    runs: int
    latency_mode: str
    timeout_s: float

    @property
    def name(self) -> str:
        """The point as paths and tables write it: pp2048-tg128-d4096-c2."""
        return f"pp{self.pp}-tg{self.tg}-d{self.depth}-c{self.concurrency}"


class BenchyBlock(Block):
    """llama-benchy over depth x concurrency, one cell a point."""

    model_config = ConfigDict(title="instruments: llama_benchy")

    instrument: Literal["llama_benchy"] = Field(description="The instrument of this block.")
    version: Literal["0.4.0", "0.3.8", "0.3.7"] = Field(
        default="0.4.0",
        description="The llama-benchy release; one before 0.4.0 only takes recorded results.",
    )
    pp: Counts = Field(default=[2048], description="Prompt sizes in tokens.")
    tg: Counts = Field(default=[128], description="Answer sizes in tokens.")
    depth: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = Field(
        default=[0], description="Tokens of earlier context before the prompt."
    )
    concurrency: Counts = Field(default=[1], description="Requests in flight at once.")
    runs: Count = Field(default=3, description="Measured runs of each point.")
    latency_mode: Literal["none", "api", "generation"] = Field(
        default="none", description="How llama-benchy estimates the network latency that it subtracts."
    )

    def points(self) -> list[BenchyPoint]:
        """One point for each combination, depth outermost, as tables read from left to right."""
        return [
            BenchyPoint(
                version=self.version,
                pp=pp,
                tg=tg,
                depth=depth,
                concurrency=c,
                runs=self.runs,
                latency_mode=self.latency_mode,
                timeout_s=self.timeout_s,
            )
            for depth, pp, tg, c in product(self.depth, self.pp, self.tg, self.concurrency)
        ]


class ToolEvalPoint(BaseModel):
    """One setting of tool-eval-bench."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: str
    version: str
    seed: int
    scenarios: str | tuple[str, ...]
    hardmode: bool
    thinking: bool
    trials: int
    max_tokens: int | None
    max_turns: int
    timeout_s: float

    @property
    def name(self) -> str:
        """The point as paths and tables write it: the block's label."""
        return self.label


class ToolEvalBlock(Block):
    """tool-eval-bench: does the variant still call tools as it should?"""

    model_config = ConfigDict(title="instruments: tool_eval")

    instrument: Literal["tool_eval"] = Field(description="The instrument of this block.")
    label: Name = Field(description="Name of this point in paths and tables.")
    version: Literal["3.0.0", "2.8.0"] = Field(
        default="3.0.0", description="The pinned tool-eval-bench release."
    )
    seed: int = Field(default=42, description="Seed sent to the server.")
    scenarios: Literal["all", "short"] | Annotated[list[Scenario], Field(min_length=1)] = Field(
        default="all", description="Every scenario, the short core set, or a list such as [TC-01, TC-07]."
    )
    hardmode: bool = Field(default=False, description="Add the Hard Mode scenarios (category P).")
    thinking: bool = Field(default=True, description="Leave the model's thinking on.")
    trials: Count = Field(default=1, description="Times that each scenario is tried.")
    max_tokens: Count | None = Field(
        default=None, description="Cap on the tokens of each answer; the harness's own when absent."
    )
    max_turns: Count = Field(default=8, description="Most turns of one scenario.")

    def points(self) -> list[ToolEvalPoint]:
        """The one point of this block."""
        chosen = self.scenarios if isinstance(self.scenarios, str) else tuple(self.scenarios)
        return [
            ToolEvalPoint(
                label=self.label,
                version=self.version,
                seed=self.seed,
                scenarios=chosen,
                hardmode=self.hardmode,
                thinking=self.thinking,
                trials=self.trials,
                max_tokens=self.max_tokens,
                max_turns=self.max_turns,
                timeout_s=self.timeout_s,
            )
        ]


InstrumentBlock = Annotated[ProbeBlock | BenchyBlock | ToolEvalBlock, Field(discriminator="instrument")]
Point = ProbePoint | BenchyPoint | ToolEvalPoint
