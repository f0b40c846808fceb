"""The boot ledger: every boot attempt ever made, appended one line an event, never rewritten."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from campaign.outcome import Reason, now

AT_THE_END = "at the end of the run"

EventKind = Literal["start", "ready", "failed", "died", "stopped"]


@dataclass
class BootAttempt:
    """What the ledger tells of one attempt; an attempt with neither ready nor failed was interrupted."""

    id: str
    variant: str
    boot: str
    attempt: int
    run: str | None
    fingerprint: str
    started: str
    log: str | None
    why: str
    ready: bool = False
    boot_s: float | None = None
    reason: Reason | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    end: Literal["died", "stopped"] | None = None
    ended: str | None = None
    death: str | None = None

    @property
    def status(self) -> str:
        """ready, failed or interrupted; a death after ready is told by `end`."""
        return "ready" if self.ready else "failed" if self.reason else "interrupted"


def append(path: Path, kind: EventKind, boot_id: str, /, **values: Any) -> None:
    """Append one event; it is on disk when this returns, and no two writers mix their lines."""
    line = json.dumps({"event": kind, "id": boot_id, "at": now(), **values}, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = "\n" + line
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path) -> list[BootAttempt]:
    """The attempts in the order in which they began; a torn line, or one of another shape, is passed over."""
    attempts: dict[str, BootAttempt] = {}
    for event in _events(path):
        if event.get("event") == "start":
            attempt = _begin(event)
            if attempt is not None:
                attempts[attempt.id] = attempt
        elif isinstance(event.get("id"), str) and event["id"] in attempts:
            _apply(attempts[event["id"]], event)
    return list(attempts.values())


def _events(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def _begin(event: dict[str, Any]) -> BootAttempt | None:
    texts = ("id", "variant", "boot", "fingerprint", "at")
    if not all(isinstance(event.get(key), str) for key in texts):
        return None
    try:
        return BootAttempt(
            id=event["id"],
            variant=event["variant"],
            boot=event["boot"],
            attempt=event["attempt"],
            run=event.get("run"),
            fingerprint=event["fingerprint"],
            started=event["at"],
            log=event.get("log"),
            why=event.get("why", ""),
        )
    except KeyError:
        return None


def _apply(attempt: BootAttempt, event: dict[str, Any]) -> None:
    match event.get("event"):
        case "ready":
            attempt.ready = True
            attempt.boot_s, attempt.facts = _boot_s(event), _facts(event)
        case "failed":
            attempt.reason = _reason(event)
            attempt.boot_s, attempt.facts = _boot_s(event), _facts(event)
        case "died" | "stopped" as end:
            attempt.end = end
            attempt.ended = event.get("at")
            attempt.death = event.get("how")
        case _:
            pass


def _boot_s(event: dict[str, Any]) -> float | None:
    found = event.get("boot_s")
    return float(found) if isinstance(found, int | float) else None


def _facts(event: dict[str, Any]) -> dict[str, Any]:
    found = event.get("facts")
    return found if isinstance(found, dict) else {}


def _reason(event: dict[str, Any]) -> Reason:
    try:
        return Reason.model_validate(event.get("reason"))
    except ValidationError:
        return Reason.model_validate({"class": "unknown", "summary": "the ledger's line has no reason"})
