"""What nvidia-smi says of a node around a cell: power, SM clock, temperature, and what holds the clock down.

A node without nvidia-smi has no readings, and a value that it doesn't give is None.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import IO, Any, Self

LOCAL = "localhost"
"""The name of the node that the campaign runs on; host names stay out of results."""
TOOL = "nvidia-smi"
FIELDS = ("index", "power.draw", "clocks.sm", "temperature.gpu", "utilization.gpu")
REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The bit mask's name in drivers of today, and in older ones, which refuse the new one."""
THROTTLES = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Bits of nvmlClocksEventReasons that hold a busy GPU's clock down (nvml.h); idle and set clocks are none."""
EVERY_S = 1
ANSWER_WITHIN_S = 10.0
LOAD_PCT = 50.0
SLOW_SHARE = 0.8


@dataclass(frozen=True)
class Sample:
    """One GPU at one moment: power in W, SM clock in MHz, temperature in °C, utilisation in percent."""

    gpu: int
    power_w: float | None
    clock_mhz: float | None
    temperature_c: float | None
    utilization_pct: float | None
    throttle: tuple[str, ...] | None


@dataclass(frozen=True)
class NodeReading:
    """A node's samples before, while and after a cell was measured."""

    before: Sequence[Sample] = ()
    during: Sequence[Sample] = ()
    after: Sequence[Sample] = ()

    @property
    def loaded(self) -> list[Sample]:
        """The samples taken while the GPU worked, or where it doesn't say whether it did."""
        return [s for s in self.during if s.utilization_pct is None or s.utilization_pct >= LOAD_PCT]

    @property
    def clock_mhz(self) -> float | None:
        """The median clock under load of the node's slowest GPU."""
        clocks = [_median(s.clock_mhz for s in of_gpu) for of_gpu in _by_gpu(self.loaded).values()]
        return min((clock for clock in clocks if clock is not None), default=None)

    def facts(self) -> list[dict[str, Any]]:
        """One object a GPU; what is unknown is left out."""
        before, load, after = _by_gpu(self.before), _by_gpu(self.loaded), _by_gpu(self.after)
        return [
            {
                "gpu": gpu,
                **{
                    name: _known(samples[gpu][-1])
                    for name, samples in (("before", before), ("after", after))
                    if gpu in samples
                },
                **({"load": _load(load[gpu])} if gpu in load else {}),
            }
            for gpu in sorted(before | load | after)
        ]


def parse(text: str) -> list[Sample]:
    """The samples in nvidia-smi's `csv,noheader,nounits`; a line of another shape is passed over."""
    samples = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(FIELDS) + 1 and cells[0].isdigit():
            power, clock, temperature, utilization = (_number(cell) for cell in cells[1:5])
            samples.append(Sample(int(cells[0]), power, clock, temperature, utilization, _throttle(cells[5])))
    return samples


def slow_nodes(clocks: Mapping[str, float | None]) -> dict[str, str]:
    """Nodes whose clock under load (MHz) is below 80 % of the median of the others, with the evidence."""
    known = {node: clock for node, clock in clocks.items() if clock is not None}
    slow = {}
    for node, clock in known.items():
        others = [other for name, other in known.items() if name != node]
        if others and clock < SLOW_SHARE * (peers := statistics.median(others)):
            slow[node] = f"{clock:g} MHz under load, its peers {peers:g} MHz"
    return slow


class Watch:
    """This node's GPUs over a `with` block; `readings` then has a reading for each node that gave one."""

    def __init__(self) -> None:
        self.readings: dict[str, NodeReading] = {}
        self._command: list[str] = []
        self._before: list[Sample] = []
        self._lines: list[str] = []
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        tool = shutil.which(TOOL)
        for reasons in REASON_FIELDS if tool else ():
            query = ",".join((*FIELDS, reasons))
            self._command = [str(tool), f"--query-gpu={query}", "--format=csv,noheader,nounits"]
            self._before = self._now()
            if self._before:
                self._start()
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(ANSWER_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join()
        self.readings[LOCAL] = NodeReading(self._before, parse("".join(self._lines)), self._now())

    def _now(self) -> list[Sample]:
        try:
            done = subprocess.run(
                self._command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ANSWER_WITHIN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return []
        return parse(done.stdout) if done.returncode == 0 else []

    def _start(self) -> None:
        """One process that writes each second into a pipe: when we die, its next write ends it."""
        child = subprocess.Popen(
            [*self._command, f"--loop={EVERY_S}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert child.stdout is not None
        self._child = child
        self._reader = threading.Thread(target=self._collect, args=(child.stdout,), daemon=True)
        self._reader.start()

    def _collect(self, output: IO[str]) -> None:
        with output:
            # What it was writing when it was ended is no whole line.
            self._lines.extend(line for line in output if line.endswith("\n"))


def _by_gpu(samples: Iterable[Sample]) -> dict[int, list[Sample]]:
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.gpu, []).append(sample)
    return found


def _load(samples: Sequence[Sample]) -> dict[str, Any]:
    """Medians and the extremes that matter, over the samples under load."""
    powers = [s.power_w for s in samples if s.power_w is not None]
    clocks = [s.clock_mhz for s in samples if s.clock_mhz is not None]
    heats = [s.temperature_c for s in samples if s.temperature_c is not None]
    told = [s.throttle for s in samples if s.throttle is not None]
    facts: dict[str, Any] = {
        "samples": len(samples),
        "power_w": _median(powers),
        "power_w_max": max(powers, default=None),
        "clock_mhz": _median(clocks),
        "clock_mhz_min": min(clocks, default=None),
        "temperature_c_max": max(heats, default=None),
        "throttle": sorted({reason for reasons in told for reason in reasons}) if told else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _known(sample: Sample) -> dict[str, Any]:
    values = asdict(sample) | {"throttle": None if sample.throttle is None else list(sample.throttle)}
    return {name: value for name, value in values.items() if value is not None and name != "gpu"}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _throttle(cell: str) -> tuple[str, ...] | None:
    try:
        mask = int(cell, 16)
    except ValueError:
        return None
    return tuple(name for bit, name in THROTTLES.items() if mask & bit)
