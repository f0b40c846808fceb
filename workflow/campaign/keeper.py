"""Stands beside an engine from its start to its end, which no job of a workflow does.

The keeper is the engine's parent: it writes down how the engine ended, and stops it when the run that leased
the venue is gone, however that run died. `python -m campaign.keeper STATE` reads STATE/launch.json.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from campaign.files import write_json
from campaign.process import MARK, ProcessId, die_with_parent, kill_marked

POLL_S = 0.1


def main(state: Path) -> int:
    """Start the engine of STATE/launch.json, keep it, and leave STATE/exit.json behind."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
    launch = json.loads((state / "launch.json").read_text(encoding="utf-8"))
    try:
        engine = _start(launch)
    except (OSError, ValueError) as error:
        name = Path(launch["argv"][0]).name
        _write_exit(state, launch, None, stopped=False, error=f"{name}: {getattr(error, 'strerror', error)}")
        return 0
    identity = ProcessId.of(engine.pid)
    write_json(state / "engine.json", {**launch, "keeper": _dump(ProcessId.own()), "engine": _dump(identity)})
    stopped = False
    while engine.poll() is None:
        if asked or not leased(state):
            stopped = True
            _stop(engine, float(launch["stop_timeout_s"]))
            break
        time.sleep(POLL_S)
    engine.wait()
    kill_marked(launch["mark"])
    _write_exit(state, launch, engine.returncode, stopped=stopped, error=None)
    return 0


def leased(state: Path) -> bool:
    """Whether the venue's lease still covers the engine: its owner lives, or left it with keep."""
    try:
        lease = json.loads((state / "lease.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    owner = ProcessId.load(lease.get("owner"))
    return bool(lease.get("keep")) or (owner is not None and owner.alive())


def _stop(engine: subprocess.Popen[bytes], patience_s: float) -> None:
    engine.terminate()
    try:
        engine.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        engine.kill()


def _start(launch: dict[str, Any]) -> subprocess.Popen[bytes]:
    with Path(launch["log"]).open("ab") as log:
        return subprocess.Popen(
            launch["argv"],
            env={
                **launch["env"],
                **{name: os.environ[name] for name in launch["secret_env"] if name in os.environ},
                MARK: launch["mark"],
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _write_exit(
    state: Path, launch: dict[str, Any], code: int | None, *, stopped: bool, error: str | None
) -> None:
    record = {"id": launch["id"], "returncode": code, "stopped": stopped, "error": error, "at": time.time()}
    write_json(state / "exit.json", record)


def _dump(identity: ProcessId | None) -> Any:
    return identity.dump() if identity else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
