"""What becomes of engines and leases when something dies, on the fake engine and with real locks."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import httpx
import psutil
import pytest
from workspace import CAMPAIGN, Workspace

pytestmark = pytest.mark.workflow
PATIENCE_S = 120.0


def await_that(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of a condition, polled."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def slow_campaign(workspace: Workspace) -> Workspace:
    """One variant whose passes take long enough to be interrupted."""
    campaign = workspace.campaigns["demo"]
    campaign["variants"] = {"base": {"flags": {"--tps": 20}}}
    campaign["order"] = ["base"]
    return workspace.write()


def engine_record(workspace: Workspace) -> dict[str, Any] | None:
    """The keeper's record of the engine that is up."""
    try:
        data: dict[str, Any] = json.loads((workspace.state / "venues/here/engine.json").read_text())
    except (OSError, ValueError):
        return None
    return data


def probing(workspace: Workspace, point: str) -> Callable[[], dict[str, Any] | None]:
    """A condition: the probe of that point has a request running, past the token that attaching asks for."""
    first: list[float] = []

    def condition() -> dict[str, Any] | None:
        record = engine_record(workspace)
        if record is None or not (workspace.root / f"results/demo/base/b1/probe/{point}.log").exists():
            return None
        try:
            text = httpx.get(record["base_url"].replace("/v1", "/metrics"), trust_env=False).text
        except httpx.HTTPError:
            return None
        counters = dict(line.split(" ")[:2] for line in text.splitlines() if line.startswith("llamacpp:"))
        made = float(counters["llamacpp:tokens_predicted_total"])
        first.append(made)
        running = float(counters["llamacpp:requests_processing"])
        return record if running > 0 and made > first[0] + 4 else None

    return condition


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a Snakemake and give what it said."""
    said, _ = process.communicate(timeout=PATIENCE_S)
    return said


def ledger(workspace: Workspace, campaign: str = "demo") -> list[dict[str, Any]]:
    """The ledger's events."""
    path = workspace.root / f"results/{campaign}/boot_ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(workspace: Workspace, path: str) -> dict[str, Any]:
    """A record's data."""
    data: dict[str, Any] = json.loads((workspace.root / "results/demo" / path).read_text())
    return data


def nothing_up(workspace: Workspace) -> None:
    """Wait until no process of the workspace is left."""
    await_that(lambda: not workspace.engines(), "the last process to end")


def test_engine_killed_in_a_probe_is_a_failed_cell_and_retry_heals_it(workspace: Workspace) -> None:
    slow_campaign(workspace)
    process = workspace.start()
    record = await_that(probing(workspace, "pp32-tg16-c1"), "a probe request")
    os.kill(record["engine"]["pid"], signal.SIGKILL)
    said = finish(process)
    assert process.returncode == 0, said

    failed = read(workspace, "base/b1/probe/pp32-tg16-c1.json")
    assert failed["status"] == "failed"
    assert failed["reason"]["class"] == "engine_died"
    assert "SIGKILL" in failed["reason"]["summary"]
    assert failed["metrics"] == {}
    later = read(workspace, "base/b1/probe/pp64-tg16-c1.json")
    assert later["status"] == "ok"
    assert later["provenance"]["boot_id"] == "base.b1.2"
    events = [(event["event"], event["id"]) for event in ledger(workspace)]
    assert events == [
        ("start", "base.b1.1"),
        ("ready", "base.b1.1"),
        ("died", "base.b1.1"),
        ("start", "base.b1.2"),
        ("ready", "base.b1.2"),
        ("stopped", "base.b1.2"),
    ]
    assert "SIGKILL" in (workspace.root / "reports/demo.md").read_text()

    targets = workspace.python("campaign.plan", "demo", "--targets", "retry").stdout.split()
    assert targets == ["results/demo/base/b1/probe/pp32-tg16-c1.json"]
    jobs = workspace.run("--forcerun", *targets)
    assert [rule for rule, _ in jobs] == ["probe", "report", "summary"]
    assert read(workspace, "base/b1/probe/pp32-tg16-c1.json")["status"] == "ok"


def test_an_engine_that_keeps_dying_costs_no_more_than_its_boots(workspace: Workspace) -> None:
    workspace.lane["max_boots"] = 2
    campaign = workspace.campaigns["demo"]
    campaign["variants"] = {"base": {"flags": {"--quirk": "die-request=5"}}}
    campaign["order"] = ["base"]
    campaign["instruments"][0]["prompt_tokens"] = [32, 48, 64]
    workspace.write().run()
    assert [read(workspace, f"base/b1/probe/pp{n}-tg16-c1.json")["status"] for n in (32, 48, 64)] == [
        "failed",
        "failed",
        "not_run",
    ]
    assert sum(event["event"] == "start" for event in ledger(workspace)) == 2


def test_a_boot_that_fails_is_an_outcome_and_is_not_tried_again_by_each_cell(workspace: Workspace) -> None:
    campaign = workspace.campaigns["demo"]
    campaign["variants"]["bad"] = {"flags": {"--no-such-flag": 1}}
    campaign["order"] = ["bad", "base"]
    workspace.write().run()
    boot = read(workspace, "bad/b1/boot.json")
    assert boot["status"] == "failed"
    assert "unrecognized arguments: --no-such-flag" in boot["reason"]["summary"] + boot["reason"]["evidence"]
    cell = read(workspace, "bad/b1/probe/pp32-tg16-c1.json")
    assert cell["status"] == "not_run"
    assert "unrecognized arguments" in cell["reason"]["summary"]
    assert [event["id"] for event in ledger(workspace) if event["event"] == "start"] == [
        "bad.b1.1",
        "base.b1.1",
    ]
    assert read(workspace, "base/b1/probe/pp32-tg16-c1.json")["status"] == "ok"
    targets = workspace.python("campaign.plan", "demo", "--targets", "retry").stdout.split()
    assert targets == ["results/demo/bad/b1/boot.json"]


@pytest.mark.parametrize("blow", ["sigint once", "sigint twice", "sigterm", "sigkill"])
def test_an_interrupted_run_leaves_no_engine_and_no_lease_that_needs_a_person(
    workspace: Workspace, blow: str
) -> None:
    slow_campaign(workspace)
    process = workspace.start()
    await_that(probing(workspace, "pp64-tg16-c1"), "a probe request")
    done = (workspace.root / "results/demo/base/b1/probe/pp32-tg16-c1.json").read_bytes()
    match blow:
        case "sigint once":
            os.killpg(process.pid, signal.SIGINT)
        case "sigint twice":
            os.killpg(process.pid, signal.SIGINT)
            os.killpg(process.pid, signal.SIGINT)
        case "sigterm":
            os.killpg(process.pid, signal.SIGTERM)
        case _:
            os.kill(process.pid, signal.SIGKILL)
    finish(process)
    nothing_up(workspace)
    assert not (workspace.root / "results/demo/base/b1/probe/pp64-tg16-c1.json").exists()
    assert (workspace.root / "results/demo/base/b1/probe/pp32-tg16-c1.json").read_bytes() == done

    jobs = workspace.run()
    assert [rule for rule, _ in jobs] == ["probe", "report", "summary"]
    assert read(workspace, "base/b1/probe/pp64-tg16-c1.json")["status"] == "ok"


def test_two_runs_that_share_a_venue_never_have_two_engines_up(workspace: Workspace) -> None:
    other = deepcopy(CAMPAIGN)
    workspace.campaigns["other"] = other
    for campaign in workspace.campaigns.values():
        campaign["variants"] = {"base": {}, "slow": {"flags": {"--tps": 100}}}
        campaign["order"] = ["base", "slow"]
    workspace.write()
    runs = [workspace.start("--nolock", "--config", f"campaigns={name}") for name in ("demo", "other")]
    most, told = 0, ""
    while any(run.poll() is None for run in runs):
        up = [p for p in workspace.engines() if "fake_engine.py" in " ".join(_cmdline(p))]
        most = max(most, len(up))
        told = told or (workspace.python("campaign.engine", "who").stdout if up else "")
        time.sleep(0.05)
    for run in runs:
        said = finish(run)
        assert run.returncode == 0, said
    assert most == 1
    assert "the venue here is held by pid" in told
    spans = sorted(_spans(ledger(workspace)) + _spans(ledger(workspace, "other")))
    assert len(spans) == 4
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


def test_keep_engine_leaves_the_last_one_up_for_the_next_run(workspace: Workspace) -> None:
    slow_campaign(workspace)
    workspace.run("--config", "keep_engine=true")
    record = engine_record(workspace)
    assert record is not None
    assert psutil.pid_exists(record["engine"]["pid"])
    cell = workspace.root / "results/demo/base/b1/probe/pp32-tg16-c1.json"
    cell.unlink()
    workspace.run("--config", "keep_engine=true")
    assert json.loads(cell.read_text())["provenance"]["boot_id"] == "base.b1.1"
    stopped = workspace.python("campaign.engine", "stop", "here")
    assert (stopped.returncode, stopped.stdout) == (0, "stopped base.b1.1 on here\n"), stopped.stderr
    again = workspace.python("campaign.engine", "stop", "here")
    assert (again.returncode, again.stdout) == (0, "no engine is up on here\n"), again.stderr
    unknown = workspace.python("campaign.engine", "stop", "nowhere")
    assert unknown.returncode == 2
    assert "config/venues/nowhere.yaml is not there" in unknown.stderr
    nothing_up(workspace)
    assert [event["event"] for event in ledger(workspace)] == ["start", "ready", "stopped"]


def test_an_engine_that_a_killed_keeper_left_is_reaped_by_the_next_run(workspace: Workspace) -> None:
    slow_campaign(workspace)
    process = workspace.start()
    record = await_that(probing(workspace, "pp32-tg16-c1"), "a probe request")
    os.killpg(process.pid, signal.SIGKILL)
    os.kill(record["keeper"]["pid"], signal.SIGKILL)
    finish(process)
    nothing_up(workspace)
    workspace.run()
    assert read(workspace, "base/b1/probe/pp32-tg16-c1.json")["status"] == "ok"


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _spans(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(start, end) of each engine's life, as the ledger dates it."""
    begun = {event["id"]: event["at"] for event in events if event["event"] == "start"}
    return [(begun[event["id"]], event["at"]) for event in events if event["event"] in ("stopped", "died")]


def test_a_missing_engine_never_replaces_a_good_outcome(workspace: Workspace) -> None:
    campaign = workspace.campaigns["demo"]
    campaign["variants"], campaign["order"] = {"base": {}}, ["base"]
    workspace.write().run()
    good = read(workspace, "base/b1/probe/pp32-tg16-c1.json")
    (workspace.root / "results/demo/base/b1/boot.json").unlink()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        workspace.lane["port"] = listener.getsockname()[1]
        workspace.write().run()
    assert read(workspace, "base/b1/boot.json")["status"] == "failed"
    kept = read(workspace, "base/b1/probe/pp32-tg16-c1.json")
    assert "already served" in kept["details"].pop("not_measured_again")["reason"]["summary"]
    assert kept == good
    assert workspace.run("-n") == []


def test_a_port_that_someone_else_serves_fails_the_boot(workspace: Workspace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        workspace.lane["port"] = listener.getsockname()[1]
        campaign = workspace.campaigns["demo"]
        campaign["variants"], campaign["order"] = {"base": {}}, ["base"]
        workspace.write().run()
    boot = read(workspace, "base/b1/boot.json")
    assert (boot["status"], boot["reason"]["class"]) == ("failed", "boot_port_taken")
    assert read(workspace, "base/b1/probe/pp32-tg16-c1.json")["status"] == "not_run"


def test_a_child_that_hides_in_its_own_session_ends_with_its_engine(workspace: Workspace) -> None:
    script = 'setsid sleep 600 & exec "$0" "$@"'
    workspace.lane["command"] = ["sh", "-c", script, sys.executable, *workspace.lane["command"][1:]]
    campaign = workspace.campaigns["demo"]
    campaign["variants"], campaign["order"] = {"base": {}}, ["base"]
    workspace.write().run()
    assert read(workspace, "base/b1/probe/pp32-tg16-c1.json")["status"] == "ok"
    assert not workspace.engines()


def test_a_failed_warm_up_leaves_no_cell_that_claims_to_be_warm(workspace: Workspace) -> None:
    campaign = workspace.campaigns["demo"]
    campaign["variants"] = {"base": {"flags": {"--ctx": 14}}}
    campaign["order"] = ["base"]
    workspace.lane["warm_up"]["prompt_tokens"] = 900
    workspace.write().run()
    assert read(workspace, "base/b1/boot.json")["status"] == "ok"
    assert read(workspace, "base/b1/warm_up.json")["status"] == "failed"
    assert read(workspace, "base/b1/probe/pp32-tg16-c1.json")["status"] == "not_run"
    targets = workspace.python("campaign.plan", "demo", "--targets", "retry").stdout.split()
    assert targets == ["results/demo/base/b1/warm_up.json"]


def test_a_variable_that_is_handed_on_and_not_set_is_said_before_the_boot(workspace: Workspace) -> None:
    workspace.lane["pass_env"] = ["NOBODY_SETS_THIS"]
    said = workspace.write().output(expect=1)
    assert (
        "config/lanes/fake.yaml: the variable NOBODY_SETS_THIS that it hands on is not set; export it."
        in said
    )
    assert "Traceback" not in said
    assert not (workspace.root / "results/demo/boot_ledger.jsonl").exists()


def test_results_may_lie_behind_a_link_and_a_lost_ledger_starts_no_log_again(workspace: Workspace) -> None:
    (workspace.root / "elsewhere").mkdir()
    (workspace.root / "results").symlink_to("elsewhere")
    campaign = workspace.campaigns["demo"]
    campaign["variants"], campaign["order"] = {"base": {}}, ["base"]
    workspace.write().run()
    (workspace.root / "results/demo/boot_ledger.jsonl").unlink()
    (workspace.root / "results/demo/base/b1/boot.json").unlink()
    workspace.run()
    assert [event["id"] for event in ledger(workspace) if event["event"] == "start"] == ["base.b1.2"]


def test_a_broken_outcome_is_missing_and_healed_by_retry(workspace: Workspace) -> None:
    campaign = workspace.campaigns["demo"]
    campaign["variants"], campaign["order"] = {"base": {}}, ["base"]
    workspace.write().run()
    cell = workspace.root / "results/demo/base/b1/probe/pp32-tg16-c1.json"
    cell.write_text('{"schema": 1, "campa')
    for kind in ("retry", "stale"):
        targets = workspace.python("campaign.plan", "demo", "--targets", kind).stdout.split()
        assert targets == ["results/demo/base/b1/probe/pp32-tg16-c1.json"]
    workspace.run("--forcerun", *targets)
    assert json.loads(cell.read_text())["status"] == "ok"


def test_without_snakemakes_records_a_changed_flag_is_still_seen(workspace: Workspace) -> None:
    campaign = workspace.campaigns["demo"]
    campaign["variants"], campaign["order"] = (
        {"base": {}, "slow": {"flags": {"--tps": 1000}}},
        ["base", "slow"],
    )
    workspace.write().run()
    shutil.rmtree(workspace.root / ".snakemake")
    assert workspace.python("campaign.plan", "demo", "--targets", "stale").stdout == ""
    campaign["variants"]["slow"]["flags"]["--tps"] = 900
    workspace.write()
    targets = workspace.python("campaign.plan", "demo", "--targets", "stale").stdout.split()
    assert targets == ["results/demo/slow/b1/boot.json"]
