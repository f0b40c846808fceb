"""Which jobs a change costs: the exact list, read from what Snakemake announces."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from workspace import CAMPAIGN, ROOT, Job, Workspace

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("workflow")]

POINTS = ["pp32-tg16-c1", "pp64-tg16-c1"]
RENDER: list[Job] = [("report", "reports/demo.md"), ("summary", "results/demo/cells.csv")]


def cells(variant: str, boot: str, points: list[str] = POINTS) -> list[Job]:
    """The probe jobs of one boot."""
    return [("probe", f"results/demo/{variant}/{boot}/probe/{point}.json") for point in points]


def boot(variant: str, name: str) -> list[Job]:
    """All jobs of one boot."""
    where = f"results/demo/{variant}/{name}"
    return [("boot", f"{where}/boot.json"), ("warm_up", f"{where}/warm_up.json"), *cells(variant, name)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign that ran once, to be copied by each test."""
    root = tmp_path_factory.mktemp("measured")
    made = Workspace(root / "work", root / "state")
    made.root.mkdir()
    jobs = made.write().run()
    everything = [*boot("base", "b1"), *boot("slow", "b1"), *boot("huge", "b1"), *boot("base", "b2")]
    assert jobs == sorted([*everything, *RENDER])
    assert not made.engines()
    return made.root


@pytest.fixture
def demo(measured: Path, workspace: Workspace) -> Workspace:
    """A workspace in which the campaign has run, file times and Snakemake's records included."""
    shutil.rmtree(workspace.root)
    shutil.copytree(measured, workspace.root, symlinks=True)
    return workspace


def outcome(demo: Workspace, path: str) -> dict[str, object]:
    """A cell file's data."""
    data: dict[str, object] = json.loads((demo.root / path).read_text())
    return data


def snapshot(demo: Workspace) -> dict[str, tuple[bytes, int]]:
    """Bytes and mtime of every record."""
    files = sorted((demo.root / "results").rglob("*.json"))
    return {str(f.relative_to(demo.root)): (f.read_bytes(), f.stat().st_mtime_ns) for f in files}


def test_statuses_and_order(demo: Workspace) -> None:
    cell = outcome(demo, "results/demo/base/b1/probe/pp32-tg16-c1.json")
    assert cell["status"] == "ok"
    blocked = outcome(demo, "results/demo/huge/b1/probe/pp32-tg16-c1.json")
    assert blocked["status"] == "blocked"
    assert blocked["metrics"] == {}
    events = [
        json.loads(line) for line in (demo.root / "results/demo/boot_ledger.jsonl").read_text().splitlines()
    ]
    assert [e["id"] for e in events if e["event"] == "start"] == ["base.b1.1", "slow.b1.1", "base.b2.1"]
    assert [e["event"] for e in events] == ["start", "ready", "stopped"] * 3


def test_no_op(demo: Workspace) -> None:
    assert demo.run("-n") == []


def test_deleted_cell_reruns_alone_and_leaves_the_rest_untouched(demo: Workspace) -> None:
    path = "results/demo/slow/b1/probe/pp64-tg16-c1.json"
    before = snapshot(demo)
    (demo.root / path).unlink()
    assert demo.run() == sorted([("probe", path), *RENDER])
    after = snapshot(demo)
    assert after.pop(path)[0] != before.pop(path)[0]
    assert after == before
    events = (demo.root / "results/demo/boot_ledger.jsonl").read_text().splitlines()
    assert sum('"event": "start"' in line for line in events) == 4


def test_forced_cell(demo: Workspace) -> None:
    path = "results/demo/base/b2/probe/pp32-tg16-c1.json"
    assert demo.run("-n", "--forcerun", path) == sorted([("probe", path), *RENDER])


def test_changed_flag_reruns_one_variant(demo: Workspace) -> None:
    demo.campaigns["demo"]["variants"]["slow"]["flags"]["--tps"] = 900
    demo.write()
    assert demo.run("-n") == sorted([*boot("slow", "b1"), *RENDER])


def test_new_point_measures_only_itself(demo: Workspace) -> None:
    demo.campaigns["demo"]["instruments"][0]["prompt_tokens"] = [32, 64, 128]
    demo.write()
    new = [
        job
        for v, b in (("base", "b1"), ("slow", "b1"), ("huge", "b1"), ("base", "b2"))
        for job in cells(v, b, ["pp128-tg16-c1"])
    ]
    assert demo.run("-n") == sorted([*new, *RENDER])


def test_a_second_boot_measures_only_itself(demo: Workspace) -> None:
    demo.campaigns["demo"]["order"] = ["base", "slow", "huge", "base", "slow"]
    demo.write()
    assert demo.run("-n") == sorted([*boot("slow", "b2"), *RENDER])


def test_edited_prose_only_renders(demo: Workspace) -> None:
    demo.campaigns["demo"]["findings"] = "None yet."
    demo.write()
    assert demo.run("-n") == RENDER[:1]


def test_edited_label_renders_table_and_report(demo: Workspace) -> None:
    demo.campaigns["demo"]["variants"]["slow"]["label"] = "half the rate"
    demo.write()
    assert demo.run("-n") == RENDER


def test_edited_template_only_renders(demo: Workspace, tmp_path: Path) -> None:
    demo.source = tmp_path / "source"
    for part in ("Snakefile", "workflow", "profiles"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        demo.source.mkdir(exist_ok=True)
        copy(ROOT / part, demo.source / part)
    assert demo.run() == RENDER[:1]
    assert demo.run("-n") == []
    template = demo.source / "workflow" / "templates" / "report.md.j2"
    template.write_text(template.read_text() + "\nOne more line.\n")
    assert demo.run() == RENDER[:1]
    assert "One more line." in (demo.root / "reports" / "demo.md").read_text()


def test_failed_and_not_run_cells_are_retried(demo: Workspace) -> None:
    cell = demo.root / "results/demo/slow/b1/probe/pp64-tg16-c1.json"
    data = json.loads(cell.read_text())
    data.update(status="failed", metrics={}, reason={"class": "x", "summary": "it broke"})
    cell.write_text(json.dumps(data))
    said = demo.python("campaign.plan", "demo", "--targets", "retry")
    assert said.stdout.split() == ["results/demo/slow/b1/probe/pp64-tg16-c1.json"]
    jobs = demo.run("-n", "--forcerun", *said.stdout.split())
    assert jobs == sorted([*cells("slow", "b1", POINTS[1:]), *RENDER])


def test_no_results_but_the_plan_says_what_a_run_would_cost(workspace: Workspace) -> None:
    said = workspace.python("campaign.plan", "demo")
    assert said.returncode == 0, said.stderr
    assert "3 boots" in said.stdout
    assert CAMPAIGN["baseline"] in said.stdout


def test_what_is_missing_is_said_before_the_first_boot_and_a_dry_run_needs_nothing(
    workspace: Workspace,
) -> None:
    boot = "results/demo/base/b1/boot.json"
    workspace.campaigns["demo"]["instruments"] = [{"instrument": "tool_eval", "label": "x"}]
    workspace.write()
    env = {**workspace.environment, "CAMPAIGN_ENVS": str(workspace.root / "none")}
    ran = [
        subprocess.run(
            workspace.command(*options),
            cwd=workspace.root,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        for options in ((), ("-n",))
    ]
    assert [run.returncode for run in ran] == [1, 0]
    said = ran[0].stdout + ran[0].stderr
    assert "config/campaigns/demo.yaml can't be measured: tool-eval-bench 3.0.0 is not installed" in said
    assert "Traceback" not in said
    workspace.lane["model"]["path"] = "/nowhere/weights"
    workspace.write()
    said = workspace.output(expect=1)
    assert "config/campaigns/demo.yaml can't be measured: the weights /nowhere/weights are not there" in said
    workspace.output("-n")
    assert not (workspace.root / boot).exists()
