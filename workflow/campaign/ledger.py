"""The boot ledger: every boot attempt ever made, appended one line an event, never rewritten."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from campaign.outcome import Reason, now

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
    """The attempts in the order in which they began; a line torn by a crash is passed over."""
    attempts: dict[str, BootAttempt] = {}
    for event in _events(path):
        if event.get("event") == "start":
            attempt = _begin(event)
            if attempt is not None:
                attempts[attempt.id] = attempt
        elif event.get("id") in attempts:
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
            attempt.boot_s = event.get("boot_s")
            attempt.facts = event.get("facts") or {}
        case "failed":
            attempt.reason = Reason.model_validate(event["reason"])
            attempt.boot_s = event.get("boot_s")
            attempt.facts = event.get("facts") or {}
        case "died" | "stopped" as end:
            attempt.end = end
            attempt.ended = event.get("at")
            attempt.death = event.get("how")
        case _:
            pass
