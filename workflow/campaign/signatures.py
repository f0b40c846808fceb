"""What one line of a boot log means: signatures.yaml, read, checked and matched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from campaign.errors import CampaignError

SIGNATURES = Path(__file__).with_name("signatures.yaml")

Class = Literal["fatal_config", "fatal", "secondary", "benign", "hang", "ready"]
Value = int | float | str
T = TypeVar("T")

# What a line of several classes is: an after-effect that also names an error is still an after-effect.
_PRECEDENCE: tuple[Class, ...] = ("ready", "benign", "secondary", "hang", "fatal_config", "fatal")


def _lower(text: str) -> str:
    return text.lower()


def _compilable(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


Piece = Annotated[str, Field(min_length=1), AfterValidator(_lower)]
Regex = Annotated[str, AfterValidator(_compilable)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    engine: str
    text: tuple[Piece, ...] = Field(min_length=1)


class Signature(_Entry):
    """One way in which a log tells how a boot went; the keys are explained in signatures.yaml."""

    id: str
    cls: Class = Field(alias="class")
    regex: Regex | None = None
    generic: bool = False
    announces: bool = False
    says: str
    sample: str


class Fact(_Entry):
    """A line with values: each named group of its regexes is a quantity."""

    regex: tuple[Regex, ...]
    series: str | None = None
    steady: tuple[str, ...] = ()

    def values(self, line: str) -> dict[str, Value]:
        """The quantities that the line carries, each in the unit that signatures.yaml gives it."""
        found: dict[str, Value] = {}
        for pattern in self.regex:
            match = _compiled(pattern).search(line)
            for group, text in match.groupdict().items() if match else ():
                name, _, form = group.partition("__")
                found[name] = _number(text, form)
        return found


class Quantity(BaseModel):
    """The unit of a fact, and which value counts when many lines carry it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: str
    keep: Literal["first", "last", "min", "max"]
    means: str


class Signatures(BaseModel):
    """The whole of signatures.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engines: Mapping[str, tuple[Piece, ...]]
    signatures: tuple[Signature, ...]
    facts: tuple[Fact, ...]
    quantities: Mapping[str, Quantity]

    @model_validator(mode="after")
    def _consistent(self) -> Signatures:
        ids = [signature.id for signature in self.signatures]
        twice = {name for name in ids if ids.count(name) > 1}
        if twice:
            raise ValueError(f"two signatures share the id {', '.join(sorted(twice))}")
        groups = {
            group for fact in self.facts for pattern in fact.regex for group in re.compile(pattern).groupindex
        }
        unknown = {group.partition("__")[0] for group in groups} - set(self.quantities)
        if unknown:
            raise ValueError(f"facts name {', '.join(sorted(unknown))}, which quantities does not explain")
        return self

    def classify(self, line: str) -> Signature | None:
        """The signature of a line, None when nothing is known of it. Specific ones go before generic ones."""
        hits = [
            signature
            for signature in _holding(self._signatures_by_piece, line)
            if signature.regex is None or _compiled(signature.regex).search(line)
        ]
        return min(hits, key=lambda hit: (hit.generic, _PRECEDENCE.index(hit.cls)), default=None)

    def facts_in(self, line: str) -> list[tuple[Fact, dict[str, Value]]]:
        """Each kind of fact that a line carries, with its values."""
        return [(fact, fact.values(line)) for fact in _holding(self._facts_by_piece, line)]

    def engine_of(self, line: str) -> str | None:
        """The engine that a line's wording belongs to, None when it could be any."""
        return next(iter(_holding(self._engines_by_piece, line)), None)

    # Looking up a hundred pieces in each line of a long log is most of the work, so the pairs are laid flat.
    @cached_property
    def _signatures_by_piece(self) -> list[tuple[str, Signature]]:
        return [(piece, signature) for signature in self.signatures for piece in signature.text]

    @cached_property
    def _facts_by_piece(self) -> list[tuple[str, Fact]]:
        return [(piece, fact) for fact in self.facts for piece in fact.text]

    @cached_property
    def _engines_by_piece(self) -> list[tuple[str, str]]:
        return [(piece, engine) for engine, pieces in self.engines.items() for piece in pieces]


def _holding(pairs: list[tuple[str, T]], line: str) -> list[T]:
    """What belongs to the pieces that a line holds, each once, in the order of the pairs."""
    lowered = line.lower()
    held = [owner for piece, owner in pairs if piece in lowered]
    return [owner for at, owner in enumerate(held) if owner is not held[at - 1] or at == 0]


def line_facts(line: str) -> dict[str, Value]:
    """All the quantities that one line carries, whatever stands around it."""
    return {name: value for _, values in load().facts_in(line) for name, value in values.items()}


@cache
def load(path: Path = SIGNATURES) -> Signatures:
    """Read a signature file; one with a mistake is a CampaignError that names the place."""
    try:
        return Signatures.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise CampaignError(f"{path} cannot be read as YAML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise CampaignError(f"{path}, {where}: {first['msg']}") from None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _number(text: str, form: str) -> Value:
    plain = text.replace(",", "").rstrip(".")
    if form == "clock":
        minutes, seconds, millis, micros = (int(part) for part in plain.split("."))
        return 60 * minutes + seconds + (1000 * millis + micros) / 1_000_000
    if form == "pct":
        return float(plain) / 100
    if plain.isdigit():
        return int(plain)
    try:
        return float(plain)
    except ValueError:
        return text
