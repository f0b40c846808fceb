"""Who holds a venue: a live owner keeps it, a dead one loses it, a broken file is nobody's."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from campaign import lease
from campaign.errors import CampaignError
from campaign.process import ProcessId


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A venue's state directory of this test."""
    monkeypatch.setenv("CAMPAIGN_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("CAMPAIGN_OWNER", raising=False)
    return lease.state_of("venue")


def test_a_free_venue_is_taken_and_taken_again_by_its_owner(state: Path) -> None:
    assert lease.take(state, "one", wait_s=0) is None
    held = lease.read(state)
    assert held is not None
    assert held.owner == ProcessId.own()
    assert lease.take(state, "two", wait_s=0) is None
    assert lease.read(state) == held


def test_a_live_owner_is_named_with_campaign_and_time(state: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owner = ProcessId.of(other.pid)
        assert owner is not None
        lease.write(state, lease.Lease(owner, "r", "theirs", "2026-01-01T00:00:00Z"))
        with pytest.raises(CampaignError) as caught:
            lease.take(state, "mine", wait_s=0)
        told = f"pid {other.pid} on {owner.host} for the campaign theirs since 2026-01-01T00:00:00Z"
        assert told in str(caught.value)
    finally:
        other.communicate()
    taken = lease.take(state, "mine", wait_s=0)
    assert taken is not None
    assert taken.owner == owner


def test_a_reused_pid_is_not_the_owner(state: Path) -> None:
    mine = ProcessId.own()
    lease.write(state, lease.Lease(replace(mine, start="0:1"), "r", "old", "t", keep=True))
    taken = lease.take(state, "mine", wait_s=0)
    assert taken is not None
    assert taken.keep


def test_an_owner_on_another_host_counts_as_alive(state: Path) -> None:
    far = ProcessId(1, "x", "another-host")
    lease.write(state, lease.Lease(far, "r", "theirs", "t"))
    with pytest.raises(CampaignError, match="another-host"):
        lease.take(state, "mine", wait_s=0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"owner": 1}', "\x00\x00"])
def test_a_broken_lease_is_nobodys(state: Path, text: str) -> None:
    (state / "lease.json").write_text(text)
    assert lease.read(state) is None
    assert lease.take(state, "mine", wait_s=0) is None


def test_a_state_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("CAMPAIGN_STATE_DIR", str(file))
    with pytest.raises(CampaignError, match="set CAMPAIGN_STATE_DIR"):
        lease.state_of("venue")


def test_a_process_is_told_by_its_start(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    seen = ProcessId.of(child.pid)
    assert seen is not None
    assert seen.alive()
    assert ProcessId.load(seen.dump()) == seen
    child.communicate()
    assert not seen.alive()
    assert ProcessId.of(child.pid) is None
    assert ProcessId.of(os.getpid()) == ProcessId.own()
