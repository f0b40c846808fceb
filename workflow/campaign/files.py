"""Files that are either whole or not there: write aside, fsync, rename."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from campaign.errors import CampaignError


def write_text(path: Path, text: str) -> None:
    """Write text so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        # Half a surrogate pair in an engine's words must not cost the record that quotes them.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        Path(aside).chmod(0o644)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically; NaN and infinities are refused, since a missing value is null."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON; a missing or broken file is a CampaignError that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CampaignError(f"{path} is not there; make it with snakemake, or check the path.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise CampaignError(f"{path} is not JSON ({error}); delete it and run again.") from None


def sha256_of(path: Path) -> str:
    """The hex SHA-256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def digest(data: Any) -> str:
    """A 16-digit identity of plain data, the same for equal data whatever the order of its keys."""
    canonical = json.dumps(data, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
