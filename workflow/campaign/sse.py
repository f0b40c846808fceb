"""Server-sent events from timed socket reads: which event was complete at which moment.

The grammar is that of the HTML standard, section 9.2.6: lines end in LF, CR or CRLF, a byte-order mark may
lead, one space after the colon is dropped, a line that starts with a colon is a comment, a blank line
completes an event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Longest line that is read; a longer one is an error, since no token needs it and memory is finite."""

_LINE_END = re.compile(rb"[\r\n]")


class OversizedLineError(ValueError):
    """A line longer than MAX_LINE_BYTES."""


@dataclass(frozen=True)
class Event:
    """One complete event: its name ("message" if unnamed), its data lines, and when it was complete.

    `t` is the time in seconds of the read that brought its blank line; `line_times` are those that brought
    the end of each data line.
    """

    name: str
    lines: tuple[str, ...]
    line_times: tuple[float, ...]
    t: float

    @property
    def data(self) -> str:
        """The data lines joined as the standard says."""
        return "\n".join(self.lines)


@dataclass
class _Pending:
    name: str = "message"
    lines: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def take(self, t: float) -> Event | None:
        event = Event(self.name, tuple(self.lines), tuple(self.times), t) if self.lines else None
        self.name, self.lines, self.times = "message", [], []
        return event

    def line(self, raw: bytes, t: float) -> None:
        name, _, value = raw.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self.lines.append(value)
            self.times.append(t)
        elif name == "event":
            self.name = value
        elif name == "error":
            # llama.cpp before 2025 sent its failures as `error: {…}`, a field that the standard doesn't know.
            self.name = "error"
            self.lines.append(value)
            self.times.append(t)


def lines(reads: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Each line without its end, with the time of the read that ended it; an unended last line comes too.

    Raises OversizedLineError for a line longer than MAX_LINE_BYTES.
    """
    pending = bytearray()
    after_cr = False
    last = 0.0
    for t, data in reads:
        position = 0
        last = t
        while position < len(data):
            if after_cr:
                after_cr = False
                if data[position : position + 1] == b"\n":
                    position += 1
                    continue
            found = _LINE_END.search(data, position)
            end = found.start() if found else len(data)
            pending += data[position:end]
            if len(pending) > MAX_LINE_BYTES:
                raise OversizedLineError(f"a line of more than {MAX_LINE_BYTES} bytes")
            if found is None:
                break
            after_cr = data[end : end + 1] == b"\r"
            position = end + 1
            yield t, bytes(pending)
            pending.clear()
    if pending:
        yield last, bytes(pending)


def events(reads: Sequence[tuple[float, bytes]]) -> Iterator[Event]:
    """The events of a body, in order.

    An event that the end of the body cuts before its blank line is given too: servers that forget the last
    blank line are common, and one that was cut inside its JSON shows by itself.
    Raises OversizedLineError.
    """
    pending = _Pending()
    first = True
    t = 0.0
    for t, raw in lines(reads):
        line = raw.removeprefix(b"\xef\xbb\xbf") if first else raw
        first = False
        if line:
            pending.line(line, t)
        elif event := pending.take(t):
            yield event
    if event := pending.take(t):
        yield event
