"""Processes told apart by pid and start time, so that a reused pid is never taken for the old one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1


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
        """Whether it is, or was, a process of this host."""
        return self.host == socket.gethostname()

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

    def kill_session(self) -> None:
        """SIGKILL the process and every process of the session that it leads."""
        for member in _session(self.pid):
            member.send(signal.SIGKILL)
        self.send(signal.SIGKILL)


def die_with_parent() -> None:
    """Between fork and exec: have Linux kill this child when its parent dies, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _session(leader: int) -> list[ProcessId]:
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) != leader:
                continue
        except (ProcessLookupError, PermissionError):
            continue
        found = ProcessId.of(process.pid)
        if found is not None:
            members.append(found)
    return members


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
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
