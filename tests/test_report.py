"""The report, read back with an independent Markdown parser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import synthetic
from campaign import cells, format, ledger, report
from campaign.markdown import Notes, code, escaped, one_line, table
from campaign.matrix import Matrix
from campaign.outcome import Fingerprint, Metric
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

OUT = Path("reports/toy.md")
BENCHY = "llama-benchy 0.4.0, pp512 / tg128: pp tok/s / tg tok/s, a single run a point"
PROBE = "Probe, cold 512-token prompt, 64 tokens asked, c1: medians of n, rates in tok/s"
QUALITY = "tool-eval-bench 3.0.0, `short`: short scenarios, seed 42, thinking on, 1 trial"
FAILED = "Failed, invalid and blocked"


def render(plan: Matrix) -> str:
    return report.render(cells.read(plan), OUT)


def rows(text: str, heading: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for row in synthetic.tables_of(text)[heading]:
        found.setdefault(row["config"], row)
    return found


def test_each_figure_is_in_its_row_and_column(plan: Matrix) -> None:
    target = synthetic.cell(plan, "ngram", "d4096-c1")
    metrics = {"pp_tps": Metric.of("tok/s", [1234.6]), "tg_tps": Metric.of("tok/s", [7.04])}
    synthetic.measure(plan, target, metrics=metrics)
    text = render(plan)
    benchy = rows(text, BENCHY)
    assert benchy["n-gram"]["d4K c1"] == "1,235 / 7.0"
    assert benchy["n-gram"]["d4K c2"] == benchy["baseline (-c 512), b2"]["d4K c1"] == "3,019 / 44.9"
    probe = rows(text, PROBE)["n-gram"]
    assert (probe["n"], probe["TTFT"], probe["decode"]) == ("3", "0.750 s", "41.7")
    assert (probe["TTFT range"], probe["decode range"]) == ("0.700–0.800 s", "41.0–43.0")
    quality = rows(text, QUALITY)["n-gram"]
    assert (quality["score"], quality["completion"]) == ("87/100 (168/194)", "100 %")
    assert quality["failed scenarios"] == "TC-68/74"


def test_title_has_the_day_of_the_newest_outcome(plan: Matrix) -> None:
    synthetic.measure(plan, synthetic.cell(plan, "base", "d0-c1"), ended="2026-10-21T00:00:01.000Z")
    assert render(plan).startswith("# Toy - performance A/B (2026-10-21)\n")


def test_a_missing_value_is_a_dash_and_a_measured_zero_is_a_zero(plan: Matrix) -> None:
    missing, zero = synthetic.cell(plan, "base", "d0-c1"), synthetic.cell(plan, "base", "d0-c2")
    metrics = {"pp_tps": Metric.of("tok/s", [100.0])}
    synthetic.measure(plan, missing, metrics=metrics)
    synthetic.measure(plan, zero, metrics={**metrics, "tg_tps": Metric.of("tok/s", [0.0])})
    row = rows(render(plan), BENCHY)["baseline (-c 512), b1"]
    assert (row["d0 c1"], row["d0 c2"]) == ("100 / —", "100 / 0.0")


def test_a_stale_number_is_never_printed(plan: Matrix) -> None:
    target = synthetic.cell(plan, "ngram", "d0-c1")
    metrics = {"pp_tps": Metric.of("tok/s", [7777.0]), "tg_tps": Metric.of("tok/s", [66.6])}
    synthetic.measure(plan, target, metrics=metrics, fingerprint=Fingerprint(variant="x", instrument="y"))
    text = render(plan)
    assert rows(text, BENCHY)["n-gram"]["d0 c1"] == "—¹"
    assert "¹ stale" in text
    assert "7,777" not in text
    assert "66.6" not in text
    assert str(target.path) not in text.partition("## Provenance")[2].partition("## Commands")[0]


@pytest.mark.parametrize("status", ["failed", "invalid", "unmeasured", "not_run"])
def test_what_is_not_ok_is_a_dash_with_its_reason(plan: Matrix, status: str) -> None:
    synthetic.measure(plan, synthetic.cell(plan, "ngram", "d0-c1"), status=status)
    synthetic.fail(plan, synthetic.cell(plan, "ngram", "d0-c2"), "the stream broke", status)
    text = render(plan)
    row = rows(text, BENCHY)["n-gram"]
    assert (row["d0 c1"], row["d0 c2"]) == ("—¹", "—²")
    assert f"² {status.replace('_', ' ')}: the stream broke" in text
    assert rows(text, FAILED)["n-gram"]["status"] == status.replace("_", " ")


def test_the_engine_s_error_text_survives_the_markdown(plan: Matrix) -> None:
    summary = "HTTP 400: a | b <script>alert(1)</script> `n_ctx` *bold* [x](y) $1$ \\ C:\\| end"
    evidence = "srv  send_error: `n_past` | n_ctx\n\x1b[31mred\x1b[0m <img src=x>"
    synthetic.fail(plan, synthetic.cell(plan, "ngram", "d0-c1"), summary, evidence=evidence)
    text = render(plan)
    reason = rows(text, FAILED)["n-gram"]["reason"]
    assert reason == f"{summary}: srv send_error: `n_past` | n_ctx red <img src=x>"
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<script" not in html
    assert "<img" not in html


def test_a_long_error_is_bounded(plan: Matrix) -> None:
    synthetic.fail(plan, synthetic.cell(plan, "ngram", "d0-c1"), "HTTP 500: " + "x" * 100_000 + " the end")
    text = render(plan)
    assert len(text) < 20_000
    assert "the end" in text


def test_one_run_has_no_range_and_nothing_has_a_plus_minus(plan: Matrix) -> None:
    metrics = {"ttft_s": Metric.of("s", [0.7]), "decode_tps": Metric.of("tok/s", [41.0])}
    synthetic.measure(plan, synthetic.cell(plan, "ngram", "tg64-c1"), metrics=metrics)
    text = render(plan)
    row = rows(text, PROBE)["n-gram"]
    assert (row["n"], row["TTFT"], row["TTFT range"], row["decode range"]) == ("1", "0.700 s", "—", "—")
    assert "±" not in text


def test_a_blocked_variant_has_one_row_that_says_why(plan: Matrix) -> None:
    text = render(plan)
    assert set(rows(text, BENCHY)["huge"].values()) == {"huge", "—¹"}
    found = [row for row in synthetic.tables_of(text)[FAILED] if row["config"] == "huge"]
    assert [row["status"] for row in found] == ["blocked"]
    assert found[0]["reason"] == "memory: 4,096 cells don't fit: c <= 2048"
    assert rows(text, "Arms")["huge"]["boots"] == "blocked"


def test_arms_show_what_differs_from_the_baseline(plan: Matrix) -> None:
    text = render(plan)
    arms = rows(text, "Arms")
    assert arms["n-gram"]["against the baseline"] == "--spec, DRAFT=on"
    assert (arms["baseline (-c 512)"]["order"], arms["baseline (-c 512)"]["boots"]) == ("1, 4", "2 of 2")
    assert arms["baseline (-c 512)"]["boot time"] == "30 s, 30 s"
    assert arms["later one"]["boots"] == "none planned"


def test_the_not_yet_measured_list_is_computed_and_gets_shorter(plan: Matrix) -> None:
    target = synthetic.cell(plan, "ngram", "d0-c1")
    target.path.unlink()
    before = section(render(plan), "Not yet measured")
    synthetic.measure(plan, target)
    after = section(render(plan), "Not yet measured")
    assert "- n-gram: 1 of 6 cells not yet measured (llama_benchy pp512-tg128-d0-c1)." in before
    assert after == "- later one: planned, in no order yet.\n- A larger model."


def test_limits_are_computed_and_no_verdict_is_given(plan: Matrix) -> None:
    text = render(plan)
    limits = section(text, "What this does not establish")
    assert "Booted once: n-gram." in limits
    assert "baseline" not in limits
    assert not re.search(r"faster|slower|better|worse|inside noise", text)


@pytest.mark.parametrize("change", [{"version": "2.8.0"}, {"seed": 7}, {"thinking": False}])
def test_unlike_quality_runs_under_one_label_stand_in_tables_of_their_own(
    change: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = {"instrument": "tool_eval", "label": "short", "scenarios": "short"}
    blocks = [{**plain, "variants": ["base"]}, {**plain, **change, "variants": ["ngram"]}]
    plan = synthetic.campaign(instruments=blocks, order=["base", "ngram"])
    synthetic.run_all(plan)
    tables = {title: rows for title, rows in synthetic.tables_of(render(plan)).items() if "`short`" in title}
    assert [[row["config"] for row in rows] for rows in tables.values()] == [
        ["baseline (-c 512)"],
        ["n-gram"],
    ]


def test_recorded_figures_are_marked(plan: Matrix) -> None:
    synthetic.measure(plan, synthetic.cell(plan, "ngram", "d0-c1"), recorded=True)
    text = render(plan)
    assert rows(text, BENCHY)["n-gram"]["d0 c1"] == "3,019 / 44.9 ¹"
    assert "¹ recorded: typed in" in text
    assert "pp512-tg128-d0-c1.json) (recorded)" in text
    for target in plan.cells:
        if not target.boot.blocked:
            synthetic.measure(plan, target, recorded=True)
    text = render(plan)
    assert rows(text, BENCHY)["n-gram"]["d0 c1"] == "3,019 / 44.9"
    assert "All figures of this table are recorded" in text


def test_every_row_has_a_link_to_its_files(plan: Matrix) -> None:
    text = render(plan)
    targets = re.findall(r"\]\((\.\./[^)]+)\)", section(text, "Provenance"))
    linked = {(OUT.parent / target).resolve() for target in targets}
    assert {cell.path.resolve() for cell in plan.cells if cell.path.exists()} <= linked
    assert all(path.exists() for path in linked)


def test_the_report_reads_the_same_once_the_last_engine_is_stopped(plan: Matrix) -> None:
    ledger.append(plan.ledger, "start", "base.b2.2", variant="base", boot="b2", attempt=2, fingerprint="f")
    ledger.append(plan.ledger, "ready", "base.b2.2", boot_s=30.0, facts={})
    before = render(plan)
    ledger.append(plan.ledger, "stopped", "base.b2.2", how=ledger.AT_THE_END)
    assert render(plan) == before
    assert "in use to the end of the run" in before


def test_figures_of_several_engine_processes_are_told(plan: Matrix) -> None:
    assert "engine processes" not in render(plan)
    synthetic.measure(plan, synthetic.cell(plan, "ngram", "d0-c1"), provenance={"boot_id": "ngram.b1.2"})
    told = "Figures of n-gram come from 2 engine processes: ngram.b1.1, ngram.b1.2."
    assert told in section(render(plan), "What this does not establish")


def test_the_ledger_tells_each_attempt(plan: Matrix) -> None:
    synthetic.boot_up(plan, plan.boot("ngram", "b1"), status="failed")
    found = synthetic.tables_of(render(plan))["Boot ledger"]
    assert [row["boot"] for row in found] == ["base b1", "ngram b1", "base b2"]
    assert (found[1]["status"], found[1]["end"]) == ("failed", "out | of memory")


def test_the_same_data_give_the_same_bytes_without_paths_or_host(plan: Matrix, tmp_path: Path) -> None:
    first = render(plan)
    assert first == render(plan)
    assert str(tmp_path) not in first
    assert "\n\n\n" not in first


def test_nothing_measured_still_renders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = render(synthetic.campaign())
    assert text.startswith("# Toy - performance A/B\n")
    assert set(rows(text, BENCHY)["n-gram"].values()) == {"n-gram", "—¹"}
    assert "n-gram: 6 of 6 cells not yet measured" in text


def test_rendering_is_linear_in_the_number_of_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def cost(boots: int) -> int:
        block = {"instrument": "llama_benchy", "depth": list(range(0, 2000, 100))}
        results = cells.join(synthetic.campaign(order=["base"] * boots, instruments=[block]), {}, [])
        return synthetic.calls_of(lambda: report.render(results, OUT))

    cost(1)
    assert cost(40) < 5 * cost(10)


@pytest.mark.parametrize(
    ("value", "written"), [(3019.2, "3,019"), (99.96, "100"), (44.94, "44.9"), (6.0, "6.0"), (0.042, "0.042")]
)
def test_rates(value: float, written: str) -> None:
    assert format.rate(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(1.23, "1.2 s"), (48, "48 s"), (1860, "31 min"), (5700, "95 min"), (7260, "2 h 1 min")],
)
def test_durations(value: float, written: str) -> None:
    assert format.duration(value) == written


def test_a_share_is_not_rounded_up_to_all(plan: Matrix) -> None:
    assert (format.percent(1.0), format.percent(0.999)) == ("100 %", "99 %")


@given(st.text(max_size=60))
def test_any_text_reads_the_same_after_rendering_in_a_table_and_out_of_it(text: str) -> None:
    for write in (escaped, code):
        found = synthetic.tables_of(table(["config", "x"], [["row", write(text)], ["end", "."]], "ll"))[""]
        assert [row["config"] for row in found] == ["row", "end"]
        if one_line(text):
            assert found[0]["x"] == one_line(text)
            paragraph = MarkdownIt("commonmark").parse(f"x {write(text)}")
            assert synthetic.text_of(paragraph[1]) == f"x {one_line(text)}"


def test_notes_share_marks() -> None:
    notes = Notes()
    assert [notes.mark(text) for text in ("a", "b", "a")] == ["¹", "²", "¹"]
    assert notes.lines() == ["¹ a", "² b"]


def test_environment_and_checks_come_from_the_outcomes(plan: Matrix) -> None:
    client = {"cpu": "EPYC", "cores": 2, "python": "3.11.7", "packages": {"httpx": "0.28.1"}}
    passes = [
        {"cached_tokens": 0, "completion_tokens": 64},
        {"cached_tokens": 3, "completion_tokens": 64},
        {"cached_tokens": None, "completion_tokens": 63},
    ]
    provenance = {
        "client": client,
        "packages": {"xllamacpp": "1.2", "gone": None},
        "instrument_version": "p 7",
    }
    target = synthetic.cell(plan, "ngram", "tg64-c1")
    synthetic.measure(plan, target, passes=passes, provenance=provenance, flags=["short_output"])
    text = render(plan)
    assert "- client: EPYC, 2 cores, Python 3.11.7, httpx 0.28.1" in text
    assert "- engine packages: xllamacpp 1.2\n" in text
    assert "- **p 7**: cold prompts of 512 tokens" in text
    checked = section(text, "What was checked")
    assert "gave as many tokens as asked: 2 of 3." in checked
    assert "0 to 3 over 2 probe passes" in checked
    assert "without a count of cached tokens: 1." in checked
    [row] = synthetic.tables_of(text)["What was checked"]
    assert list(row.values()) == ["probe", "short_output", "ok", "1"]


def section(text: str, heading: str) -> str:
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0].strip()
