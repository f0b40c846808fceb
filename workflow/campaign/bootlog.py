"""What the logs of a boot say: the engine, whether it came up, its facts, and what it died of.

`python -m campaign.bootlog FILE…` reads one log for each node and prints JSON: engine, ready,
cause {class, id, says, line, file, number, detail}, facts {…} and seen {signature id: lines}.

The cause is the earliest fatal line over all the logs, never an after-effect. Lines of different logs are
ordered by their wall-clock stamps; a line without one has the time of the last stamp above it in its file.
Logs that have only the time since the process started (llama.cpp) are ordered by that.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from campaign.errors import CampaignError, run
from campaign.signatures import Fact, Signature, Signatures, Value, load

BLOCK = 1 << 16
LINE_LIMIT = 1 << 14
EVIDENCE_LIMIT = 600
STAMP_WITHIN = 100
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_WALL = re.compile(
    r"\b(?:(?:20\d\d-)?(?P<month>\d\d)-(?P<day>\d\d)[ t]|[wief](?P<glog>\d{3,4}) )"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d+)?)",
    re.IGNORECASE,
)
_ELAPSED = re.compile(r"^(?P<minute>\d+)\.(?P<second>\d\d)\.(?P<micro>\d{3}\.\d{3}) [a-z] ", re.IGNORECASE)
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)
_YEAR_S = 366 * 86400


@dataclass(frozen=True)
class Cause:
    """The line that a boot died of. `number` counts from 1; `detail` is the end of a traceback it opens."""

    cls: str
    id: str
    says: str
    line: str
    file: str
    number: int
    detail: str | None = None

    @property
    def summary(self) -> str:
        """The cause in one line."""
        return f"{self.says}: {self.detail or self.line}"


@dataclass(frozen=True)
class BootReport:
    """What the logs of one boot say. `seen` counts the lines of each signature, harmless ones too.

    `after_effect` is the first line that tells of a failure elsewhere: evidence where no log names the cause.
    """

    engine: str | None
    ready: bool
    cause: Cause | None
    facts: dict[str, Value]
    seen: dict[str, int]
    after_effect: Cause | None
    last_line: str | None
    last_file: str | None

    def as_json(self) -> dict[str, Any]:
        """The report as the command prints it."""
        cause = asdict(self.cause) if self.cause else None
        if cause:
            cause = {"class": cause.pop("cls"), **cause}
        return {
            "engine": self.engine,
            "ready": self.ready,
            "cause": cause,
            "facts": self.facts,
            "seen": self.seen,
        }


@dataclass(frozen=True)
class Diagnosis:
    """Why a boot failed. cls: fatal_config, fatal, died (without a word) or hang; id: the signature's."""

    cls: str
    id: str | None
    summary: str
    evidence: str | None
    file: str | None


@dataclass(frozen=True)
class _Hit:
    """A fatal line. `wall` and `elapsed` are seconds, None where the log has no such stamps."""

    signature: Signature
    text: str
    number: int
    wall: float | None
    elapsed: float | None


@dataclass
class _Scan:
    """One log, read line by line; memory does not grow with its length."""

    file: str
    known: Signatures
    first: _Hit | None = None
    first_generic: _Hit | None = None
    after_effect: _Hit | None = None
    details: dict[int, str] = field(default_factory=dict)
    ready_engines: set[str] = field(default_factory=set)
    votes: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    facts: dict[str, Value] = field(default_factory=dict)
    last_line: str | None = None
    stamped: bool = False
    _wall: float | None = None
    _elapsed: float | None = None
    _series: dict[str, Fact] = field(default_factory=dict)
    _open_traceback: int | None = None

    def read(self, number: int, line: str) -> None:
        """Take in the next line."""
        self.last_line = line
        wall, elapsed = stamp(line)
        self._wall = self._wall if wall is None else wall
        self._elapsed = self._elapsed if elapsed is None else elapsed
        self.stamped = self.stamped or wall is not None
        engine = self.known.engine_of(line)
        if engine:
            self.votes[engine] += 1
        self._read_facts(line)
        signature = self.known.classify(line)
        if signature:
            self._read_signature(signature, number, line)

    def _read_signature(self, signature: Signature, number: int, line: str) -> None:
        self.seen[signature.id] += 1
        if signature.engine != "any" and not signature.generic:
            self.votes[signature.engine] += 1
        if signature.cls == "ready":
            self.ready_engines.add(signature.engine)
            self.first_generic = None
        hit = _Hit(signature, _around(signature, line), number, self._wall, self._elapsed)
        if signature.cls == "secondary":
            self.after_effect = _earlier(self.after_effect, hit)
        if signature.cls not in ("fatal", "fatal_config"):
            return
        if self._open_traceback is not None:
            self.details[self._open_traceback] = hit.text
            self._open_traceback = None
        if signature.generic:
            self.first_generic = _earlier(self.first_generic, hit)
            return
        if signature.announces and self.first_generic:
            hit = self.first_generic
        self.first = _earlier(self.first, hit)
        if self.first is hit and "traceback (most recent call last)" in line.lower():
            self._open_traceback = number

    def _read_facts(self, line: str) -> None:
        for fact, values in self.known.facts_in(line):
            idle_before = fact.series is not None and self._series.get(fact.series) is not fact
            if fact.series is not None:
                self._series[fact.series] = fact
            self.votes[fact.engine] += bool(values)
            for name, value in values.items():
                if not (idle_before and name in fact.steady):
                    _merge(self.known, self.facts, name, value)


def _earlier(a: _Hit | None, b: _Hit) -> _Hit:
    """The earlier of two lines of one log, the second one later in the file."""
    if a is None or (a.wall is not None and b.wall is not None and _since(a.wall, b.wall) < 0):
        return b
    return a


def _since(origin: float, moment: float) -> float:
    """Seconds from one moment of a year to another at most half a year away: many stamps have no year."""
    return (moment - origin + _YEAR_S / 2) % _YEAR_S - _YEAR_S / 2


def stamp(line: str) -> tuple[float | None, float | None]:
    """The wall-clock stamp of a line in seconds of the year, and its time since the process started."""
    elapsed = _ELAPSED.match(line)
    if elapsed:
        micros = int(elapsed["micro"].replace(".", ""))
        return None, 60 * int(elapsed["minute"]) + int(elapsed["second"]) + micros / 1e6
    wall = _WALL.search(line, 0, STAMP_WITHIN)
    if not wall:
        return None, None
    glog = (wall["glog"] or "").zfill(4)
    month, day = int(wall["month"] or glog[:2]), int(wall["day"] or glog[2:])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None, None
    second = float(wall["second"].replace(",", "."))
    days = _DAYS_BEFORE[month - 1] + day - 1
    return days * 86400 + int(wall["hour"]) * 3600 + int(wall["minute"]) * 60 + second, None


def lines_of(blocks: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """(line number, text) of a log that comes in blocks of bytes.

    Colours are taken out, a carriage return ends a text as a newline does but does not count as a line, and
    what is longer than LINE_LIMIT bytes is cut there. Empty texts are left out.
    """
    number, rest = 1, b""
    for block in blocks:
        pieces = re.split(rb"([\r\n])", rest + block)
        for text, end in zip(pieces[:-1:2], pieces[1::2], strict=True):
            cleaned = _clean(text)
            if cleaned:
                yield number, cleaned
            number += end == b"\n"
        rest = pieces[-1][:LINE_LIMIT]
    if cleaned := _clean(rest):
        yield number, cleaned


def _clean(raw: bytes) -> str:
    text = raw[:LINE_LIMIT].decode("utf-8", errors="replace")
    return (_ESCAPE.sub("", text) if "\x1b" in text else text).strip()


def _around(signature: Signature, line: str) -> str:
    """The line, or the part of a very long one that shows the signature."""
    if len(line) <= EVIDENCE_LIMIT:
        return line
    lowered = line.lower()
    at = min(lowered.find(piece) for piece in signature.text if piece in lowered)
    start = max(0, at - EVIDENCE_LIMIT // 2)
    return line[start : start + EVIDENCE_LIMIT]


def read_logs(logs: Mapping[str, Iterable[bytes]], ended: bool = False) -> BootReport:
    """What the logs of one boot say. logs: blocks of bytes by the name of each log, node rank 0 first.

    ended: the engine is known to be gone; otherwise an exception after it came up is taken for a request's.
    """
    known = load()
    scans = []
    for name, blocks in logs.items():
        scan = _Scan(name, known)
        for number, line in lines_of(blocks):
            scan.read(number, line)
        scans.append(scan)
    votes = sum((scan.votes for scan in scans), Counter[str]())
    engine = votes.most_common(1)[0][0] if votes else None
    ready = any({"any", engine} & scan.ready_engines for scan in scans)
    spoken = [scan for scan in scans if scan.last_line is not None]
    facts: dict[str, Value] = {}
    for scan in scans:
        for name, value in scan.facts.items():
            _merge(known, facts, name, value)
    return BootReport(
        engine=engine,
        ready=ready,
        cause=_cause(scans, generic=ended or not ready),
        after_effect=_earliest([(scan, scan.after_effect) for scan in scans if scan.after_effect]),
        facts=facts,
        seen=dict(sum((scan.seen for scan in scans), Counter[str]())),
        last_line=spoken[0].last_line if spoken else None,
        last_file=spoken[0].file if spoken else None,
    )


def _cause(scans: list[_Scan], generic: bool) -> Cause | None:
    """The earliest fatal line; a generic one only where it may count and no signature matched."""
    hits = [(scan, scan.first) for scan in scans if scan.first]
    if not hits and generic:
        hits = [(scan, scan.first_generic) for scan in scans if scan.first_generic]
    return _earliest(hits)


def _earliest(hits: list[tuple[_Scan, _Hit]]) -> Cause | None:
    if not hits:
        return None
    origin = next((hit.wall for _, hit in hits if hit.wall is not None), 0.0)

    def order(entry: tuple[_Scan, _Hit]) -> tuple[int, float]:
        scan, hit = entry
        if hit.wall is not None:
            return 1, _since(origin, hit.wall)
        at_the_start = scan.stamped or hit.signature.cls == "fatal_config"
        return 0 if at_the_start else 2, hit.elapsed or 0.0

    scan, hit = min(hits, key=order)
    known = hit.signature
    detail = scan.details.get(hit.number)
    return Cause(known.cls, known.id, known.says, hit.text, scan.file, hit.number, detail)


def _merge(known: Signatures, facts: dict[str, Value], name: str, value: Value) -> None:
    """Put one more value of a quantity into the facts, as its `keep` says."""
    keep = known.quantities[name].keep
    before = facts.get(name)
    if before is None or keep == "last":
        facts[name] = value
    elif isinstance(before, int | float) and isinstance(value, int | float):
        facts[name] = {"first": before, "min": min(before, value), "max": max(before, value)}[keep]


def read_files(logs: Mapping[str, Path], ended: bool = False) -> BootReport:
    """read_logs of files, by name; one that cannot be read is a CampaignError."""
    return read_logs({name: _blocks(path) for name, path in logs.items()}, ended)


def _blocks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as log:
            while block := log.read(BLOCK):
                yield block
    except OSError as error:
        raise CampaignError(f"{path} cannot be read as a log: {error.strerror}.") from None


def diagnose(logs: Mapping[str, Path], returncode: int | None) -> Diagnosis:
    """Why a boot ended. returncode: subprocess's (negative for a signal), None when it is not known.

    Logs that are not there yet are taken as empty. Where no line tells the cause, cls is `died` and the
    evidence is the first after-effect of it, or else the last line of the first log.
    """
    report = read_files({name: path for name, path in logs.items() if path.exists()}, ended=True)
    cause = report.cause
    if cause:
        ending = "" if returncode is None else f" [{death(returncode)}]"
        return Diagnosis(cause.cls, cause.id, cause.summary + ending, cause.line, cause.file)
    summary = f"died without a word: {death(returncode)}"
    hint = report.after_effect
    if hint:
        return Diagnosis("died", None, f"{summary}; {hint.says}", hint.line, hint.file)
    return Diagnosis("died", None, summary, report.last_line, report.last_file)


def silence(logs: Mapping[str, Path], quiet_s: float) -> Diagnosis:
    """The diagnosis of a boot that its caller gave up on after `quiet_s` seconds without a new log line.

    A fatal line in the logs is still the cause: other ranks often wait for ever after one has died.
    """
    found = diagnose(logs, None)
    if found.cls != "died":
        return found
    return Diagnosis("hang", None, f"no new log line for {quiet_s:.0f} s", found.evidence, found.file)


_HINTS = {
    "SIGILL": "the build uses an instruction that this CPU does not have",
    "SIGKILL": "killed from outside, often by the kernel for want of memory",
    "SIGTERM": "asked to stop from outside",
    "SIGSEGV": "a crash inside the engine",
    "SIGABRT": "the engine gave up on a failed assertion",
    "SIGBUS": "a mapped file or memory could not be read",
    2: "often a bad command line",
    126: "the command is not executable",
    127: "the command was not found",
}


def death(returncode: int | None) -> str:
    """The name of an exit status: subprocess's (-9), or the shell's for a signal (137 = 128 + 9)."""
    if returncode is None:
        return "exit status unknown"
    number = -returncode if returncode < 0 else returncode - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        hint = _HINTS.get(returncode)
        return f"exit status {returncode}" + (f" ({hint})" if hint else "")
    how = f"signal {number}" if returncode < 0 else f"exit status {returncode} = 128 + {number}"
    hint = _HINTS.get(name)
    return f"{name} ({how}{': ' + hint if hint else ''})"


def main() -> int:
    """Print what the logs on the command line say."""
    parser = argparse.ArgumentParser(prog="campaign.bootlog", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="one log for each node")
    report = read_files({str(path): path for path in parser.parse_args().files})
    json.dump(report.as_json(), sys.stdout, indent=1, ensure_ascii=False)
    print()
    return 0


if __name__ == "__main__":
    run(main)
