"""What a variant of a lane would run: its flags, env, command line, weights and their identity."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from campaign.errors import CampaignError
from campaign.files import digest, sha256_of
from campaign.schema import Constraint, Env, Flags, Lane, Model, Variant
from campaign.settings import PROTOCOLS

PLACEHOLDER = re.compile(r"\{(?:model|name|host|port)\}")


def merged_flags(lane: Lane, variant: Variant) -> Flags:
    """The lane's flags with the variant's over them; those set to null or false are left out."""
    merged = {**lane.flags, **variant.flags}
    return {flag: value for flag, value in merged.items() if value is not None and value is not False}


def merged_env(lane: Lane, variant: Variant) -> Env:
    """The lane's env with the variant's over it; null leaves a variable out."""
    return {name: value for name, value in {**lane.env, **variant.env}.items() if value is not None}


def arguments(flags: Flags) -> list[str]:
    """Flags as a command line: true is a bare flag, a list follows its flag."""
    line: list[str] = []
    for flag, value in flags.items():
        line.append(flag)
        if isinstance(value, list):
            line += [text_of(item) for item in value]
        elif value is not True:
            line.append(text_of(value))
    return line


def text_of(value: object) -> str:
    """A scalar as a command line or environment writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def command_template(lane: Lane, flags: Flags) -> list[str]:
    """The command with its flags, the placeholders still in it: what is the same on every machine."""
    return [*lane.command, *arguments(flags)]


def fill(template: list[str], lane: Lane, port: int) -> list[str]:
    """The command as it is run: {model}, {name}, {host} and {port} put in, `python` as this interpreter.

    Only the words of the lane's `command` are filled: a flag such as {"a":{port}} is handed on as written.
    """
    model = model_path(lane.model)
    values = {
        "{model}": str(model) if model else lane.model.name,
        "{name}": lane.model.name,
        "{host}": lane.host,
        "{port}": str(port),
    }
    own = len(lane.command)
    filled = [PLACEHOLDER.sub(lambda found: values[found[0]], word) for word in template[:own]]
    program = sys.executable if filled[0] == "python" else filled[0]
    return [program, *filled[1:], *template[own:]]


def model_path(model: Model) -> Path | None:
    """Where the weights lie; None if the lane leaves that to its command. Raises CampaignError if gone."""
    if model.package and model.file:
        spec = importlib.util.find_spec(Path(model.file).parts[0])
        roots = list(spec.submodule_search_locations or []) if spec else []
        if not roots:
            raise CampaignError(
                f"the package {model.package} with the weights is not installed; run make setup."
            )
        path = Path(roots[0]).parent / model.file
    elif model.path:
        path = local(model.path)
    else:
        return None
    if not is_there(path):
        raise CampaignError(f"the weights {path} are not there; correct model in the lane's file.")
    return path


def local(text: str) -> Path:
    """A path of this machine, as config writes it; one below a home that nobody has is a CampaignError."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise CampaignError(f"{text} is in no home directory of this machine; write the path out.") from None


def is_there(path: Path) -> bool:
    """Whether something is at that path that may be read."""
    try:
        return path.exists() and os.access(path, os.R_OK)
    except OSError:
        return False


def check_model(model: Model) -> None:
    """Compare the weights with their declared checksum; a CampaignError says what is wrong."""
    path = model_path(model)
    if path is None or model.sha256 is None:
        return
    if path.is_dir():
        raise CampaignError(f"the weights {path} are a directory, which sha256 can't check; take it out.")
    found = sha256_of(path)
    if found != model.sha256:
        raise CampaignError(
            f"the weights {path.name} have sha256 {found[:12]}…, the lane declares {model.sha256[:12]}…; "
            "fetch them again, or correct sha256 in the lane's file."
        )


def package_versions(names: list[str]) -> dict[str, str | None]:
    """Installed versions by package name; None for one that is not installed."""
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def weights(model: Model) -> list[tuple[str, int, int]] | None:
    """The files under model.path by name, size and time, which change when weights are replaced in place.

    None when a checksum or a package's version tells them apart, or when they are not on this machine.
    """
    if model.sha256 or not model.path:
        return None
    root = local(model.path)
    if not is_there(root):
        return None
    files = [root] if root.is_file() else sorted(root.rglob("*"))
    found = []
    for file in files:
        name = file.relative_to(root)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            stat = file.stat()
            found.append((name.as_posix(), stat.st_size, stat.st_mtime_ns))
    return found or None


def identity(
    lane: Lane,
    flags: Flags,
    env: Env,
    blocked: Constraint | None = None,
    place: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    """Everything that makes one variant another one to measure; no port.

    `place` is what the lane's file doesn't tell: the venue, and the weights as they lie there.
    """
    carriers = [lane.model.package] if lane.model.package else []
    return {
        "protocol": [PROTOCOLS["boot"], PROTOCOLS["warm_up"]],
        "engine": lane.engine,
        "launcher": lane.launcher,
        "command": command_template(lane, flags),
        "env": {name: text_of(value) for name, value in env.items()},
        "image": lane.image,
        "model": lane.model.model_dump(),
        "packages": package_versions([*lane.packages, *carriers]),
        "warm_up": lane.warm_up.model_dump(),
        "blocked": blocked.name if blocked else None,
        "place": place,
    }


def fingerprint(
    lane: Lane,
    flags: Flags,
    env: Env,
    blocked: Constraint | None = None,
    place: Mapping[str, Any] | None = None,
) -> str:
    """The digest of a variant's identity."""
    return digest(identity(lane, flags, env, blocked, place))
