"""The engine of a venue: attached to when it is the one asked for, booted when it isn't, stopped at the end.

`python -m campaign.engine who` says which venues another run holds; `… release` gives back what the
calling run holds; `… stop VENUE` ends a kept engine.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import bootlog, lane, lease, ledger, readiness, signatures, warm_up
from campaign.config import load_venue
from campaign.errors import CampaignError, run
from campaign.files import read_json, write_json
from campaign.launcher import Exit, Launch, Launcher, ProcessLauncher, base_environment, free_port
from campaign.matrix import Boot, Matrix
from campaign.outcome import Measurement, Reason
from campaign.process import listener
from campaign.settings import Endpoint

LAUNCHERS: dict[str, Launcher] = {"process": ProcessLauncher()}


class BootFailed(Exception):
    """There is no engine for this boot; the reason is the outcome's."""

    def __init__(self, reason: Reason, boot_id: str | None) -> None:
        super().__init__(reason.summary)
        self.reason, self.boot_id = reason, boot_id


@dataclass(frozen=True)
class Running:
    """An engine that generated a token: where it answers, which boot it is, what its log told."""

    boot_id: str
    endpoint: Endpoint
    attempt: int
    boot_s: float | None
    facts: dict[str, Any]


@dataclass(frozen=True)
class Room:
    """A venue held for one job, and the boot that the job is about."""

    state: Path
    matrix: Matrix
    boot: Boot

    @property
    def launcher(self) -> Launcher:
        """The lane's launcher."""
        return LAUNCHERS[self.matrix.lane.launcher]

    @property
    def identity(self) -> dict[str, str]:
        """Which engine this job needs: a boot of a variant as it is configured now."""
        return {
            "campaign": self.matrix.name,
            "variant": self.boot.variant,
            "boot": self.boot.name,
            "fingerprint": self.matrix.variants[self.boot.variant].fingerprint,
            "ledger": str(self.matrix.ledger.resolve()),
        }


@contextmanager
def hold(matrix: Matrix, boot: Boot) -> Iterator[Room]:
    """Lease the venue for this run and lock it for this job; an engine that a dead run left is reaped."""
    state = lease.state_of(matrix.campaign.venue)
    taken = lease.take(state, matrix.name, matrix.venue.lease_wait_s)
    with lease.job(state):
        if taken is not None and not taken.keep:
            end(state, "the run that booted it was gone")
        yield Room(state, matrix, boot)


def ensure(room: Room) -> Running:
    """The engine of this boot, attached to or booted and warmed up. Raises BootFailed."""
    running = attach(room)
    if running is None:
        running = start(room, "a cell needs it")
    if not _ready_file(room).get("warmed"):
        warmed = warm(room, running)
        if warmed.reason is not None:
            raise BootFailed(warmed.reason, running.boot_id)
    return running


def attach(room: Room) -> Running | None:
    """The engine that is up, if it is this boot's, alive and generating."""
    record = room.launcher.current(room.state)
    ready = _ready_file(room)
    if record is None or record["identity"] != room.identity or ready.get("id") != record["id"]:
        return None
    if room.launcher.exit(room.state) is not None:
        return None
    endpoint = _endpoint(room, record["base_url"])
    if readiness.generate_one(endpoint, timeout_s=120.0) is not None:
        return None
    return Running(record["id"], endpoint, ready["attempt"], ready["boot_s"], ready["facts"])


def warm(room: Room, running: Running) -> Measurement:
    """Warm the engine up; only a warm-up that went well is remembered."""
    measured = warm_up.measure(running.endpoint, room.matrix.lane.warm_up, room.matrix.lane.ready_timeout_s)
    if measured.status == "ok":
        write_json(room.state / "ready.json", {**_ready_file(room), "warmed": True})
    return measured


def start(room: Room, why: str) -> Running:
    """Stop what is up, boot this variant and wait for its first token. Raises BootFailed."""
    attempts = _attempts(room)
    _check_budget(room, attempts)
    _check_environment(room)
    end(room.state, f"to boot {room.boot.variant} {room.boot.name}")
    number = _next_number(room, attempts)
    launch = _launch(room, number)
    run_name = lease.owner()[1]
    log = os.path.relpath(launch.log)
    room.matrix.ledger.parent.mkdir(parents=True, exist_ok=True)
    event = {"variant": room.boot.variant, "boot": room.boot.name, "attempt": number, "run": run_name}
    fingerprint = room.identity["fingerprint"]
    ledger.append(room.matrix.ledger, "start", launch.id, **event, fingerprint=fingerprint, log=log, why=why)
    began = time.monotonic()
    endpoint = _endpoint(room, launch.base_url)
    try:
        lane.check_model(room.matrix.lane.model)
        _check_port(room, launch)
        began = time.monotonic()
        room.launcher.start(room.state, launch)
        readiness.wait(
            endpoint,
            room.matrix.lane.ready_timeout_s,
            lambda: room.launcher.exit(room.state) is not None,
        )
        _check_listener(launch)
    except readiness.NotReady as error:
        raise _failed_boot(room, launch, _not_ready(room, error, log), began) from None
    except CampaignError as error:
        reason = Reason.model_validate({"class": "model", "summary": str(error)})
        raise _failed_boot(room, launch, reason, began) from None
    except BaseException:
        room.launcher.stop(room.state)
        raise
    boot_s = round(time.monotonic() - began, 3)
    facts = _facts(room)
    ready = {"id": launch.id, "attempt": number, "boot_s": boot_s, "facts": facts, "warmed": False}
    write_json(room.state / "ready.json", ready)
    ledger.append(room.matrix.ledger, "ready", launch.id, boot_s=boot_s, facts=facts)
    return Running(launch.id, endpoint, number, boot_s, facts)


def death(room: Room) -> Reason | None:
    """Why the engine that was up is dead, written to the ledger once; None while it lives."""
    ended = room.launcher.exit(room.state)
    if ended is None:
        return None
    reason = _death_reason(room, ended)
    end(room.state, "from outside, while a cell used it")
    return reason


def end(state: Path, how: str) -> None:
    """Stop the venue's engine if one is up, and write to its ledger how it ended."""
    for launcher in LAUNCHERS.values():
        record = launcher.current(state)
        ended, logs = launcher.exit(state), launcher.logs(state)
        launcher.stop(state)
        if record is None:
            continue
        book = Path(record["identity"]["ledger"])
        if ended is None or ended.stopped:
            ledger.append(book, "stopped", record["id"], how=how)
        else:
            ledger.append(book, "died", record["id"], how=bootlog.diagnose(logs, ended.returncode).summary)


def release(keep: bool) -> None:
    """Give back every venue that the calling run holds, and stop its engine unless it is to be kept."""
    mine, _ = lease.owner()
    for state in sorted(lease.venues().glob("*/")):
        held = lease.read(state)
        if held is None or held.owner != mine:
            continue
        with lease.job(state):
            if keep:
                lease.write(state, lease.Lease(held.owner, held.run, held.campaign, held.since, keep=True))
                continue
            end(state, ledger.AT_THE_END)
            (state / "lease.json").unlink(missing_ok=True)


def held_by_others() -> list[str]:
    """Which venues another live run holds, a sentence each."""
    mine, _ = lease.owner()
    leases = [(state, lease.read(state)) for state in sorted(lease.venues().glob("*/"))]
    return [held.told(state) for state, held in leases if held and held.live and held.owner != mine]


def stop(venue: str, force: bool) -> str:
    """Stop a kept engine and say which; one that a live run holds is left to that run unless forced."""
    load_venue(venue)
    state = lease.state_of(venue)
    if force:
        (state / "lease.json").unlink(missing_ok=True)
    lease.take(state, "none", wait_s=0.0)
    with lease.job(state):
        records = [launcher.current(state) for launcher in LAUNCHERS.values()]
        end(state, "by hand")
        (state / "lease.json").unlink(missing_ok=True)
    stopped = [str(record["id"]) for record in records if record]
    return f"stopped {', '.join(stopped)} on {venue}" if stopped else f"no engine is up on {venue}"


def _launch(room: Room, number: int) -> Launch:
    served = room.matrix.lane
    variant = room.matrix.variants[room.boot.variant]
    port = served.port or free_port(served.host)
    env = {name: lane.text_of(value) for name, value in variant.env.items()}
    secrets = [*served.pass_env, *([served.api_key_env] if served.api_key_env else [])]
    return Launch(
        id=f"{room.boot.variant}.{room.boot.name}.{number}",
        identity=room.identity,
        argv=lane.fill(lane.command_template(served, variant.flags), served, port),
        env={**base_environment(), **env},
        secret_env=secrets,
        log=str((room.boot.directory / f"engine-{number}.log").resolve()),
        base_url=f"http://{served.host}:{port}/v1",
        port=port,
        stop_timeout_s=served.stop_timeout_s,
        mark=uuid.uuid4().hex,
    )


def _endpoint(room: Room, base_url: str) -> Endpoint:
    return Endpoint(base_url, room.matrix.lane.model.name, room.matrix.lane.api_key_env)


def _attempts(room: Room) -> list[ledger.BootAttempt]:
    known = ledger.read(room.matrix.ledger)
    return [a for a in known if (a.variant, a.boot) == (room.boot.variant, room.boot.name)]


def _check_budget(room: Room, attempts: list[ledger.BootAttempt]) -> None:
    """Within one run a boot that failed is not tried again, and one that keeps dying not for ever."""
    fingerprint = room.identity["fingerprint"]
    mine = [a for a in attempts if a.run == lease.owner()[1] and a.fingerprint == fingerprint]
    if mine and mine[-1].reason is not None:
        raise BootFailed(mine[-1].reason, mine[-1].id)
    if len(mine) >= room.matrix.lane.max_boots:
        last = mine[-1].death or "no record of its end"
        summary = f"{len(mine)} boots were spent in this run and each engine ended ({last})"
        raise BootFailed(Reason.model_validate({"class": "boot_budget", "summary": summary}), mine[-1].id)


def _next_number(room: Room, attempts: list[ledger.BootAttempt]) -> int:
    """The attempt's number; its log is a new file even where the ledger was lost."""
    number = len(attempts) + 1
    while (room.boot.directory / f"engine-{number}.log").exists():
        number += 1
    return number


def _check_environment(room: Room) -> None:
    """Each variable that the lane hands on by name is there, before anything is stopped for its boot."""
    served = room.matrix.lane
    for name in [*served.pass_env, *([served.api_key_env] if served.api_key_env else [])]:
        if name not in os.environ:
            where = f"config/lanes/{room.matrix.campaign.lane}.yaml"
            raise CampaignError(f"{where}: the variable {name} that it hands on is not set; export it.")


def _check_port(room: Room, launch: Launch) -> None:
    """Nobody else answers where this engine will: what they say would be taken for its figures."""
    with socket.socket() as probe:
        probe.settimeout(2.0)
        if probe.connect_ex((room.matrix.lane.host, launch.port)) == 0:
            raise readiness.NotReady("port_taken", f"port {launch.port} is already served by someone else")


def _check_listener(launch: Launch) -> None:
    """Who listens now is this engine, or a process that can't be seen from here (a container's)."""
    seen = listener(launch.port)
    if seen is not None and seen[1] is not None and seen[1] != launch.mark:
        raise readiness.NotReady("port_taken", f"pid {seen[0]}, another engine, took port {launch.port}")


def _not_ready(room: Room, error: readiness.NotReady, log: str) -> Reason:
    if error.cls == "died":
        ended = room.launcher.exit(room.state) or Exit(None, stopped=False, error=None)
        return _death_reason(room, ended)
    evidence = " ".join(error.evidence.split())[:500] if error.evidence else None
    return Reason.model_validate(
        {"class": f"boot_{error.cls}", "summary": error.summary, "evidence": evidence, "log": log}
    )


def _death_reason(room: Room, ended: Exit) -> Reason:
    if ended.error is not None:
        return Reason.model_validate({"class": "not_started", "summary": f"can't be started: {ended.error}"})
    found = bootlog.diagnose(room.launcher.logs(room.state), ended.returncode)
    log = next((str(path) for path in room.launcher.logs(room.state).values()), None)
    return Reason.model_validate(
        {
            "class": "engine_died",
            "summary": found.summary,
            "evidence": found.evidence,
            "log": os.path.relpath(log) if log else None,
        }
    )


def _failed_boot(room: Room, launch: Launch, reason: Reason, began: float) -> BootFailed:
    facts = _facts(room)
    room.launcher.stop(room.state)
    boot_s = round(time.monotonic() - began, 3)
    told = reason.model_dump(by_alias=True)
    ledger.append(room.matrix.ledger, "failed", launch.id, reason=told, boot_s=boot_s, facts=facts)
    return BootFailed(reason, launch.id)


def _facts(room: Room) -> dict[str, Any]:
    """What the log tells of the boot; what it last said of a request is no fact of it."""
    known = signatures.load().quantities
    logs = {node: path for node, path in room.launcher.logs(room.state).items() if path.exists()}
    facts = bootlog.read_files(logs).facts
    return {name: value for name, value in facts.items() if known[name].keep != "last"}


def _ready_file(room: Room) -> dict[str, Any]:
    try:
        data = read_json(room.state / "ready.json")
    except CampaignError:
        return {}
    return data if isinstance(data, dict) else {}


def main() -> int:
    """Command line: who holds a venue, release what this run holds, or stop a kept engine."""
    parser = argparse.ArgumentParser(prog="campaign.engine", description=main.__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("who", help="venues that another live run holds")
    verbs.add_parser("release").add_argument("--keep", action="store_true", help="leave the engine up")
    stopping = verbs.add_parser("stop", help="end a kept engine")
    stopping.add_argument("venue", help="the venue whose engine is stopped")
    stopping.add_argument("--force", action="store_true", help="even if a run on a lost machine holds it")
    arguments = parser.parse_args()
    match arguments.verb:
        case "who":
            for told in held_by_others():
                print(told)
        case "release":
            release(arguments.keep)
        case _:
            print(stop(arguments.venue, arguments.force))
    return 0


if __name__ == "__main__":
    run(main)
