"""How an engine is started, watched and stopped. One small interface; the process launcher is the first."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from campaign.errors import CampaignError
from campaign.files import write_json
from campaign.process import ProcessId, kill_marked

PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
POLL_S = 0.05


@dataclass(frozen=True)
class Launch:
    """One start of an engine: what to run, where its log goes, and who it is."""

    id: str
    identity: dict[str, str]
    argv: list[str]
    env: dict[str, str]
    secret_env: list[str]
    log: str
    base_url: str
    port: int
    stop_timeout_s: float
    mark: str


@dataclass(frozen=True)
class Exit:
    """How an engine ended: its return code (negative for a signal), or why it couldn't be started."""

    returncode: int | None
    stopped: bool
    error: str | None


class Launcher(Protocol):
    """Starts, watches and stops the one engine of a venue, whose records lie in a state directory."""

    def start(self, state: Path, launch: Launch) -> None:
        """Start the engine; returns before it is ready."""

    def current(self, state: Path) -> dict[str, Any] | None:
        """The record of the engine that was started last, dead or alive; None if there is none."""

    def exit(self, state: Path) -> Exit | None:
        """How that engine ended; None while it lives."""

    def logs(self, state: Path) -> dict[str, Path]:
        """Its log of each node."""

    def stop(self, state: Path) -> None:
        """Stop it, with everything that it started, and clear its records."""


class ProcessLauncher:
    """An engine that is a process of this machine, with a keeper as its parent (see campaign.keeper)."""

    def start(self, state: Path, launch: Launch) -> None:
        """Start keeper and engine in sessions of their own, so that a Ctrl-C reaches neither."""
        with _keeper_lock(state, launch.stop_timeout_s) as lock, (state / "keeper.log").open("wb") as log:
            _clear(state)
            Path(launch.log).parent.mkdir(parents=True, exist_ok=True)
            write_json(state / "launch.json", asdict(launch))
            keeper = subprocess.Popen(
                [sys.executable, "-m", "campaign.keeper", str(state)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
            )
        while self.current(state) is None and self._exit_file(state) is None:
            if keeper.poll() is not None and self._exit_file(state) is None:
                raise RuntimeError(f"the keeper died: {(state / 'keeper.log').read_text()[-2000:]}")
            time.sleep(POLL_S)

    def current(self, state: Path) -> dict[str, Any] | None:
        """The keeper's record of the engine; None if it is absent or broken."""
        record = _read(state / "engine.json")
        return record if record is not None and {"id", "identity", "log", "mark"} <= set(record) else None

    def exit(self, state: Path) -> Exit | None:
        """What the keeper wrote at the end; an engine gone without that died with its keeper."""
        written = self._exit_file(state)
        if written is not None:
            return written
        record = self.current(state)
        if record is None:
            return Exit(None, stopped=True, error="there is no engine")
        engine, keeper = ProcessId.load(record.get("engine")), ProcessId.load(record.get("keeper"))
        if engine is not None and engine.alive():
            return None
        while keeper is not None and keeper.here and keeper.alive():
            written = self._exit_file(state)
            if written is not None:
                return written
            time.sleep(POLL_S)
        return self._exit_file(state) or Exit(None, stopped=False, error=None)

    def logs(self, state: Path) -> dict[str, Path]:
        """The one log of a process."""
        record = self.current(state) or _read(state / "launch.json") or {}
        return {"rank0": Path(record["log"])} if "log" in record else {}

    def stop(self, state: Path) -> None:
        """Ask the keeper; if it is gone, end the engine's session here."""
        while self.current(state) is None and self._exit_file(state) is None and not _keeper_gone(state):
            time.sleep(POLL_S)
        record = self.current(state)
        if record is not None:
            patience = float(record.get("stop_timeout_s", 30.0)) + 10.0
            keeper, engine = ProcessId.load(record.get("keeper")), ProcessId.load(record.get("engine"))
            if keeper is not None:
                keeper.send(signal.SIGTERM)
                _await_end(keeper, patience)
                keeper.send(signal.SIGKILL)
            kill_marked(record["mark"])
            if engine is not None and engine.here:
                engine.send(signal.SIGKILL)
                _await_end(engine, patience)
        _clear(state)

    def _exit_file(self, state: Path) -> Exit | None:
        data = _read(state / "exit.json")
        if data is None or "returncode" not in data:
            return None
        return Exit(data["returncode"], bool(data.get("stopped")), data.get("error"))


def free_port(host: str) -> int:
    """A port that is free on that address now."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port


def base_environment() -> dict[str, str]:
    """The few variables that an engine needs from its caller; a job's thread limits are not among them."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"PYTHONUNBUFFERED": "1"}


@contextmanager
def _keeper_lock(state: Path, patience_s: float) -> Iterator[int]:
    """The lock that a keeper inherits and holds for its life, so that no venue ever has two engines."""
    handle = os.open(state / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + patience_s + 10.0
    try:
        while not _locked(handle):
            if time.monotonic() > deadline:
                raise CampaignError(
                    f"an engine of the venue {state.name} doesn't stop; kill it, then run again."
                )
            time.sleep(POLL_S)
        yield handle
    finally:
        os.close(handle)


def _keeper_gone(state: Path) -> bool:
    handle = os.open(state / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        return _locked(handle)
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear(state: Path) -> None:
    for name in ("engine.json", "exit.json", "launch.json", "ready.json"):
        (state / name).unlink(missing_ok=True)


def _await_end(process: ProcessId, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while process.alive() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
