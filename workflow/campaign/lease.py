"""Who holds a venue: a lease with pid, start time and host, and a lock for the job that uses the engine.

A lease lasts as long as its owner (a run of Snakemake, or a command by hand) lives, so that another run never
stops an engine between two cells of this one. A dead owner's lease is taken over.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from campaign.errors import CampaignError
from campaign.files import write_json
from campaign.outcome import now
from campaign.process import ProcessId

POLL_S = 0.2
REMIND_S = 60.0


@dataclass(frozen=True)
class Lease:
    """A venue held by an owner since a time; `keep` leaves the engine up when the owner is gone."""

    owner: ProcessId
    run: str
    campaign: str
    since: str
    keep: bool = False

    def told(self, state: Path) -> str:
        """Who holds the venue of that state directory, and since when."""
        who = f"pid {self.owner.pid} on {self.owner.host} for the campaign {self.campaign}"
        return f"the venue {state.name} is held by {who} since {self.since}"

    @property
    def live(self) -> bool:
        """Whether the owner still runs."""
        return self.owner.alive()


def owner() -> tuple[ProcessId, str]:
    """The owner and the run that this process acts for: the Snakemake that called it, or itself."""
    given = ProcessId.load(_json(os.environ.get("CAMPAIGN_OWNER", "")))
    mine = given or ProcessId.own()
    return mine, os.environ.get("CAMPAIGN_RUN") or f"by-hand-{mine.pid}"


def venues() -> Path:
    """This machine's directory of venues, shared by all clones of one user."""
    given = os.environ.get("CAMPAIGN_STATE_DIR")
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    root = Path(given) if given else Path(home).expanduser() / "llm-serving-campaigns"
    return root / "venues"


def state_of(venue: str) -> Path:
    """The directory of one venue's lease and engine. Raises CampaignError if it can't be made."""
    state = venues() / venue
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CampaignError(
            f"{state} can't be made ({error.strerror}); set CAMPAIGN_STATE_DIR to a directory of yours."
        ) from None
    return state.resolve()


def read(state: Path) -> Lease | None:
    """The lease of a venue; None if nobody holds it or its file is broken."""
    try:
        data = json.loads((state / "lease.json").read_text(encoding="utf-8"))
        holder = ProcessId.load(data["owner"])
        if holder is None:
            return None
        return Lease(holder, str(data["run"]), str(data["campaign"]), str(data["since"]), bool(data["keep"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(state: Path, lease: Lease) -> None:
    """Write a lease, whole or not at all."""
    write_json(
        state / "lease.json",
        {
            "owner": lease.owner.dump(),
            "run": lease.run,
            "campaign": lease.campaign,
            "since": lease.since,
            "keep": lease.keep,
        },
    )


@contextmanager
def guard(state: Path) -> Iterator[None]:
    """The short lock under which a lease is read and changed."""
    with FileLock(state / "guard.lock"):
        yield


@contextmanager
def job(state: Path) -> Iterator[None]:
    """The long lock of the one job that uses the venue's engine; the kernel drops it if the job dies."""
    with FileLock(state / "job.lock"):
        yield


def take(state: Path, campaign: str, wait_s: float) -> Lease | None:
    """Hold the venue for this run, waiting for another live owner; gives the dead lease that it took over.

    Raises CampaignError, naming who holds the venue and since when, after `wait_s` seconds.
    """
    mine, run = owner()
    began, reminded = time.monotonic(), -REMIND_S
    while True:
        with guard(state):
            held = read(state)
            if held is not None and held.owner == mine:
                return None
            if held is None or not held.live:
                write(state, Lease(mine, run, campaign, now()))
                return held
        waited = time.monotonic() - began
        told = held.told(state)
        if waited > wait_s:
            force = f"python -m campaign.engine stop {state.name} --force"
            raise CampaignError(f"{told}; wait for that run or stop it; if its machine is gone: {force}")
        if waited - reminded >= REMIND_S:
            print(f"waiting: {told}", file=sys.stderr, flush=True)
            reminded = waited
        time.sleep(POLL_S)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
