"""The progress events of llama-benchy (llama-benchy-progress.v1), one record a request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BURST_GAP_S = 0.0005
COARSE = 0.67


@dataclass
class Request:
    """What the events say of one request; None is unknown.

    `first_count` is the token count of the first delta by its token_ids, `first_text` its text.
    """

    id: int
    tokens: int | None = None
    prompt_tokens: int | None = None
    error: str | None = None
    first_count: int | None = None
    first_text: str = ""
    stamps: list[float] = field(default_factory=list)

    @property
    def deltas(self) -> int:
        """Deltas that carried text."""
        return len(self.stamps)

    @property
    def bursts(self) -> int | None:
        """Separate arrivals: deltas closer than half a millisecond came in one read. None without any."""
        gaps = zip(self.stamps, self.stamps[1:], strict=False)
        return 1 + sum(b - a > BURST_GAP_S for a, b in gaps) if self.stamps else None

    @property
    def coarse(self) -> bool:
        """Whether deltas are clearly fewer than tokens."""
        return bool(self.stamps) and self.deltas < COARSE * (self.tokens or 0)


def read(path: Path) -> list[Request]:
    """The requests of a progress file; none when it is not there. A torn last line is passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return requests(event for line in lines if (event := _event(line)) is not None)


def requests(events: Iterable[Mapping[str, Any]]) -> list[Request]:
    """The measured requests in the order of their ids (llama-benchy's discarded run sends no events)."""
    found: dict[int, Request] = {}
    for event in events:
        number = event.get("request_id")
        if not isinstance(number, int):
            continue
        request = found.setdefault(number, Request(number))
        if event.get("type") == "tokens":
            if not request.stamps:
                request.first_count = None if event.get("estimated") else event.get("count")
                request.first_text = str(event.get("snippet") or "")
            request.stamps.append(float(event["ts"]))
        elif event.get("type") == "request_end":
            request.tokens = event.get("total_tokens")
            request.prompt_tokens = event.get("prompt_tokens") or None
            request.error = event.get("error") or None
    return [found[number] for number in sorted(found)]


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
