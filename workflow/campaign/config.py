"""Reading and checking the files under config/; a mistake is one sentence with file and key."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from campaign import yaml12
from campaign.errors import CampaignError
from campaign.schema import Campaign, Lane, Settings, Strict, Venue

CONFIG = Path("config")
LARGEST = 4 * 1024 * 1024
SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
Kind = TypeVar("Kind", bound=Strict)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping; a CampaignError names the file, and the line where there is one."""
    try:
        if path.stat().st_size > LARGEST:
            raise CampaignError(
                f"{path} is larger than {LARGEST // 2**20} MiB; a config file is a few pages."
            )
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml12.Loader)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise CampaignError(
            f"{path} is not there; write it, or correct the name that points to it."
        ) from None
    except PermissionError:
        raise CampaignError(f"{path} can't be read; give yourself permission to read it.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise CampaignError(f"{path} is not YAML that can be read: {_one_line(error)}") from None
    if not isinstance(data, dict):
        raise CampaignError(f"{path} must be a mapping of keys; see config/README.md.")
    return data


def parse(kind: type[Kind], data: Mapping[str, Any], path: Path) -> Kind:
    """Data checked against one kind of file; the first mistake is the sentence of a CampaignError."""
    for key, said in _unwritable(data, ()):
        raise CampaignError(f"{path}: {'.'.join(key) or 'the file'}: {said}")
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        raise CampaignError(_sentence(error, path)) from None


def load_campaign(name: str) -> Campaign:
    """The campaign file of that name."""
    return _load(Campaign, "campaigns", name)


def load_lane(name: str) -> Lane:
    """The lane file of that name."""
    return _load(Lane, "lanes", name)


def load_venue(name: str) -> Venue:
    """The venue file of that name."""
    return _load(Venue, "venues", name)


def load_settings(data: Mapping[str, Any]) -> Settings:
    """config/config.yaml as Snakemake read it, with what --config put over it."""
    given = dict(data)
    if isinstance(given.get("campaigns"), str):
        given["campaigns"] = [part.strip() for part in given["campaigns"].split(",")]
    return parse(Settings, given, CONFIG / "config.yaml")


def path_of(folder: str, name: str) -> Path:
    """The file of a campaign, lane or venue; a name that isn't safe in a path is refused."""
    if not SAFE_NAME.match(name):
        raise CampaignError(
            f"{name!r} is not a name of config/{folder}: use letters, digits, '.', '_' and '-', 64 at most."
        )
    return CONFIG / folder / f"{name}.yaml"


def _load(kind: type[Kind], folder: str, name: str) -> Kind:
    path = path_of(folder, name)
    return parse(kind, read_yaml(path), path)


def _sentence(error: ValidationError, path: Path) -> str:
    details = sorted(error.errors(), key=lambda e: e["type"] not in ("extra_forbidden", "too_short"))
    first = details[0]
    key = ".".join(_part(part) for part in first["loc"]) or "the file"
    more = f" ({len(details) - 1} more after it)" if len(details) > 1 else ""
    return f"{path}: {key}: {_advice(first)}{more}"


def _unwritable(value: object, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What no command line, environment or JSON can hold, with the key where it stands."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _unwritable(name, key)
            yield from _unwritable(inner, (*key, _part(str(name))))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _unwritable(inner, (*key, str(number)))
    elif isinstance(value, float) and not math.isfinite(value):
        yield key, f"{value} is not a number that can be used; write a finite one."
    elif isinstance(value, str) and re.search("[\x00\ud800-\udfff]", value):
        shown = _one_line(ascii(value))
        yield key, f"{shown} holds a NUL byte or half a surrogate pair, which is no text; take it out."


def _part(part: int | str) -> str:
    return str(part) if isinstance(part, int) or re.match(r"^[\w.-]+$", part) else repr(part)


def _advice(detail: ErrorDetails) -> str:
    kind, message, value = detail["type"], detail["msg"], _one_line(repr(detail["input"]))
    if kind == "extra_forbidden":
        return "no such key; correct the spelling or remove it (config/README.md lists the keys)."
    if kind == "missing":
        return "this key is missing; add it."
    if kind == "string_pattern_mismatch":
        pattern = detail.get("ctx", {}).get("pattern", "")
        return f"{value} is not allowed here, it must match {pattern}."
    message = message.removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}, not {value}."


def _one_line(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
