"""Processes told apart by pid and start time, so that a reused pid is never taken for the old one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1
MARK = "CAMPAIGN_ENGINE"
"""The variable that an engine and all that it starts carry, so that none of them is left behind."""


@dataclass(frozen=True)
class ProcessId:
    """A process on a host: pid, and a start mark that no other process with that pid shares."""

    pid: int
    start: str
    host: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a running process; None if there is none."""
        start = _start_mark(pid)
        return cls(pid, start, socket.gethostname()) if start is not None else None

    @classmethod
    def own(cls) -> ProcessId:
        """The identity of this process."""
        mine = cls.of(os.getpid())
        if mine is None:
            raise RuntimeError("this process can't read its own start time")
        return mine

    @classmethod
    def load(cls, data: Any) -> ProcessId | None:
        """Read back what `dump` gave; None for anything else."""
        try:
            return cls(int(data["pid"]), str(data["start"]), str(data["host"]))
        except (KeyError, TypeError, ValueError):
            return None

    def dump(self) -> Mapping[str, Any]:
        """Plain data for a JSON file."""
        return asdict(self)

    def json(self) -> str:
        """The same as one line of JSON, as an environment variable carries it."""
        return json.dumps(self.dump())

    @property
    def here(self) -> bool:
        """Whether it is, or was, a process of this machine, whatever name it had then."""
        return self.host == socket.gethostname() or self.start.startswith(f"{_boot_id()}:")

    def alive(self) -> bool:
        """Whether it still runs; one on another host can't be asked and counts as alive."""
        return not self.here or _start_mark(self.pid) == self.start

    def send(self, number: signal.Signals) -> None:
        """Signal the process, if it is still the same one."""
        if self.here and self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def kill_marked(mark: str) -> None:
    """SIGKILL every process that inherited this mark, in whatever session it hid."""
    for process in psutil.process_iter():
        if _environment(process).get(MARK) == mark:
            with suppress(psutil.Error):
                process.kill()


def listener(port: int) -> tuple[int, str | None] | None:
    """The pid that listens on a TCP port of this machine, and its mark; None where that can't be seen."""
    try:
        sockets = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    listening = [c for c in sockets if c.status == psutil.CONN_LISTEN and c.pid]
    pid = next((c.pid for c in listening if getattr(c.laddr, "port", None) == port), None)
    if pid is None:
        return None
    return pid, next((_environment(p).get(MARK) for p in psutil.process_iter() if p.pid == pid), None)


def die_with_parent() -> None:
    """Between fork and exec: have Linux kill this child when its parent dies, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _start_mark(pid: int) -> str | None:
    """Boot id and clock ticks on Linux, which a stepped clock leaves alone; a zombie counts as gone."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else f"{_boot_id()}:{fields[19]}"
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "unknown"
