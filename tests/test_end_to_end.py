"""The whole chain on the real engine with both published harnesses, cut off from all but loopback."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic import tables_of
from workspace import ROOT, Workspace

pytestmark = [pytest.mark.workflow, pytest.mark.engine]

CAMPAIGN: dict[str, Any] = {
    "title": "End to end",
    "question": "Does the chain hold on a real engine?",
    "lane": "smollm2-llamacpp",
    "venue": "local",
    "baseline": "base",
    "variants": {
        "base": {"flags": {"--ctx-size": 1024}},
        "blocked": {"flags": {"--cache-type-v": "q8_0", "--flash-attn": "off"}},
    },
    "instruments": [
        {"instrument": "probe", "prompt_tokens": [64], "max_tokens": 16, "warmups": 1, "passes": 2},
        {"instrument": "llama_benchy", "pp": [64], "tg": [16], "depth": [0, 512], "runs": 2},
        {
            "instrument": "tool_eval",
            "label": "two",
            "scenarios": ["TC-01", "TC-02"],
            "max_tokens": 16,
            "max_turns": 2,
        },
    ],
}


def offline() -> list[str]:
    """What leaves a command loopback and no other network; nothing where that can't be had."""
    wrapped = ["unshare", "--net", "--map-root-user"] if shutil.which("unshare") else []
    probe = [*wrapped, "sh", "-c", "ip link set lo up"]
    works = bool(wrapped) and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    return [*wrapped, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if works else []


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A campaign measured from boot to report."""
    root = tmp_path_factory.mktemp("real")
    made = Workspace(root / "work", root / "state", campaigns={"real": CAMPAIGN})
    made.root.mkdir()
    made.write()
    for part in ("lanes/smollm2-llamacpp.yaml", "venues/local.yaml"):
        shutil.copy(ROOT / "config" / part, made.root / "config" / part)
    command = [*offline(), *made.command()]
    ran = subprocess.run(
        command, cwd=made.root, env=made.environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not made.engines()
    return made


def outcome(measured: Workspace, path: str) -> dict[str, Any]:
    """A record's data."""
    data: dict[str, Any] = json.loads((measured.root / "results/real" / path).read_text())
    return data


def test_each_instrument_measured(measured: Workspace) -> None:
    probe = outcome(measured, "base/b1/probe/pp64-tg16-c1.json")
    assert probe["status"] == "ok", probe["reason"]
    assert len(probe["metrics"]["decode_tps"]["values"]) == 2
    assert len(probe["passes"]) == 2
    benchy = outcome(measured, "base/b1/llama_benchy/pp64-tg16-d0-c1.json")
    assert benchy["status"] == "ok", benchy["reason"]
    assert len(benchy["metrics"]["tg_tps"]["values"]) == 2
    assert benchy["provenance"]["instrument_version"] == "llama-benchy 0.4.0"
    quality = outcome(measured, "base/b1/tool_eval/two.json")
    assert quality["status"] == "ok", quality["reason"]
    assert quality["metrics"]["max_points"]["values"] == [4.0]
    assert quality["provenance"]["instrument_version"] == "tool-eval-bench 3.0.0"
    for cell in (probe, benchy, quality):
        assert cell["provenance"]["boot_id"] == "base.b1.1"
        assert all((measured.root / raw).exists() for raw in cell["raw"])


def test_a_prompt_too_long_for_the_context_fails_in_the_engines_own_words(measured: Workspace) -> None:
    cell = outcome(measured, "base/b1/llama_benchy/pp64-tg16-d512-c1.json")
    assert cell["status"] == "failed"
    assert cell["metrics"] == {}
    assert "exceeds the available context size (512 tokens)" in cell["reason"]["evidence"]
    assert "exceeds the available context size (512 tokens)" in report(measured)


def test_a_blocked_variant_spent_no_boot(measured: Workspace) -> None:
    assert outcome(measured, "blocked/b1/boot.json")["status"] == "blocked"
    assert outcome(measured, "blocked/b1/probe/pp64-tg16-c1.json")["status"] == "blocked"
    assert "blocked" not in (measured.root / "results/real/boot_ledger.jsonl").read_text()
    assert "llama.cpp refuses a quantised V cache without flash attention" in report(measured)


def report(measured: Workspace) -> str:
    """The rendered writeup."""
    return (measured.root / "reports/real.md").read_text()


def test_figures_of_the_report_are_the_cells(measured: Workspace) -> None:
    text = report(measured)
    cell = outcome(measured, "base/b1/llama_benchy/pp64-tg16-d0-c1.json")
    pp, tg = (cell["metrics"][name]["median"] for name in ("pp_tps", "tg_tps"))
    rows = next(rows for heading, rows in tables_of(text).items() if heading.startswith("llama-benchy"))
    row = next(row for row in rows if row["config"] == "base")
    assert row["d0 c1"] == f"{pp:,.0f} / {tg:.1f}" if pp >= 100 else f"{pp:.1f} / {tg:.1f}"
    for place in (str(measured.root), str(ROOT), str(Path.home())):
        assert place not in text
    assert "results/real/base/b1/probe/pp64-tg16-c1.json" in text


def test_the_effective_config_and_the_tidy_table_stand_beside_the_results(measured: Workspace) -> None:
    effective = yaml.safe_load((measured.root / "results/real/effective.yaml").read_text())
    assert effective["variants"]["base"]["flags"]["--ctx-size"] == 1024
    table = (measured.root / "results/real/cells.csv").read_text().splitlines()
    assert any(",decode_tps,tok/s,2," in line for line in table)


def test_a_second_run_has_nothing_to_do(measured: Workspace) -> None:
    assert measured.run("-n") == []
