"""Boot logs: every signature and fact as the cases say, in any case, colour and order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from campaign.bootlog import LINE_LIMIT, death, diagnose, lines_of, read_logs, silence, stamp
from campaign.errors import CampaignError
from campaign.signatures import SIGNATURES, line_facts, load
from hypothesis import given
from hypothesis import strategies as st

CASES = Path(__file__).parent / "cases"
KNOWN = json.loads((CASES / "logs" / "signatures.json").read_text())
SAMPLES = {entry["id"]: entry for entry in KNOWN["signatures"]}
FATAL = [entry for entry in SAMPLES.values() if entry["cls"] in ("fatal", "fatal_config")]
HARMLESS = [entry["sample"] for entry in SAMPLES.values() if entry["cls"] in ("secondary", "benign", "hang")]

DRESSINGS = {
    "plain": lambda line: line,
    "upper": str.upper,
    "lower": str.lower,
    "ansi": lambda line: f"\x1b[1;31m{line[:9]}\x1b[0m{line[9:]}\x1b[K",
    "progress": lambda line: f"Loading:  10%|#   |\rLoading: 100%|####|\r{line}\r",
}
dressed = pytest.mark.parametrize("dress", DRESSINGS.values(), ids=DRESSINGS)


def log(*lines: str) -> list[bytes]:
    return ["\n".join(lines).encode()]


def read(*lines: str, ended: bool = False) -> Any:
    return read_logs({"n0": log(*lines)}, ended)


@dressed
@pytest.mark.parametrize("entry", SAMPLES.values(), ids=SAMPLES)
def test_each_signature_is_what_the_case_says(entry: dict[str, str], dress: Any) -> None:
    report = read("starting", dress(entry["sample"]), "ending")
    assert report.seen == {entry["id"]: 1}
    if entry["cls"] in ("fatal", "fatal_config"):
        assert (report.cause.cls, report.cause.id, report.cause.number) == (entry["cls"], entry["id"], 2)
    else:
        assert report.cause is None
    assert report.ready == (entry["cls"] == "ready")


@dressed
@pytest.mark.parametrize("fact", KNOWN["facts"], ids=lambda fact: fact["line"][:40])
def test_each_fact_reads_the_values_the_case_says(fact: dict[str, Any], dress: Any) -> None:
    ((_, line),) = [found for found in lines_of(log(dress(fact["line"]))) if "oading:" not in found[1]]
    values = line_facts(line)
    expected = {name: value for name, value in fact["expect"].items() if name != "note"}
    assert {name: values.get(name) for name in expected} == expected
    assert read(dress(fact["line"])).engine == fact["engine"]


@pytest.mark.parametrize("signature", load().signatures, ids=lambda signature: signature.id)
def test_each_shipped_sample_matches_its_own_signature(signature: Any) -> None:
    found = load().classify(signature.sample)
    assert found is not None
    assert found.cls == signature.cls
    assert found.id == signature.id


@given(
    st.permutations(FATAL),
    st.lists(st.sampled_from(HARMLESS), max_size=8),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_the_earliest_fatal_line_of_all_nodes_is_the_cause(
    fatal: list[dict[str, str]], harmless: list[str], nodes: int, random: Any
) -> None:
    samples = [(entry["sample"], entry["id"]) for entry in fatal[:3]] + [(line, None) for line in harmless]
    random.shuffle(samples)
    logs: dict[str, list[str]] = {f"n{node}": [] for node in range(nodes)}
    expected = None
    for second, (sample, known) in enumerate(samples):
        node = random.choice(list(logs))
        logs[node].append(f"[2026-01-01 00:{second:02}:30 TP{node[1:]}] {sample}")
        if known and expected is None:
            expected = (known, node, len(logs[node]))
    cause = read_logs({node: log(*lines) for node, lines in logs.items()}).cause
    assert (cause.id, cause.file, cause.number) == expected


def test_the_year_may_turn_and_stamps_may_lack_it() -> None:
    logs = {
        "n0": log("[2027-01-01 00:00:20 TP0] RuntimeError: CUDA out of memory"),
        "n1": log("INFO 12-31 23:59:50 [x.py:1] up", "torch.AcceleratorError: CUDA error: out of memory"),
    }
    cause = read_logs(logs).cause
    assert (cause.file, cause.number, cause.id) == ("n1", 2, "cuda_oom_init")


def test_a_line_before_any_stamp_is_from_the_start_of_its_process() -> None:
    logs = {
        "n0": log("[2026-01-01 00:00:01 TP0] up", SAMPLES["sgl_rank_desync"]["sample"]),
        "n1": log(SAMPLES["argparse"]["sample"]),
        "n2": log("RayWorkerProc died unexpectedly"),
    }
    assert read_logs(logs).cause.id == "argparse"


def test_llama_cpp_logs_are_ordered_by_the_time_since_their_start() -> None:
    logs = {
        "n0": log("0.09.000.000 E Remote RPC server crashed or returned malformed response"),
        "n1": log("0.02.500.000 E alloc_buffer: cudaMalloc failed: out of memory"),
    }
    assert read_logs(logs).cause.file == "n1"


@pytest.mark.parametrize(
    ("line", "id_", "cls"),
    [
        ("[rank0]: example.ShapeError: expected 4 heads, got 3", "exception", "fatal"),
        (
            "(EngineCore_DP0 pid=9) ERROR 01-01 00:00:00 [core.py:9] KeyError: 'layers.0'",
            "exception",
            "fatal",
        ),
        ("Segmentation fault (core dumped)", "signal", "fatal"),
        ("0.00.649.819 E srv          init: exiting due to HTTP server error", "lcpp_error", "fatal"),
        ("error: no such option", "error_line", "fatal"),
        ("0.00.000.100 E srv start: couldn't bind HTTP server socket, port: 1", "lcpp_bind", "fatal"),
        (
            "llama_server: error: argument -c/--ctx-size: invalid int value: 'x'",
            "argparse_value",
            "fatal_config",
        ),
    ],
)
def test_what_any_dying_program_says_counts(line: str, id_: str, cls: str) -> None:
    cause = read("starting", line).cause
    assert (cause.id, cause.cls, cause.line) == (id_, cls, line)


def test_a_signature_outranks_an_earlier_generic_error() -> None:
    report = read("ImportError: no flash_attn, going on", "torch.OutOfMemoryError: CUDA out of memory.")
    assert report.cause.id == "cuda_oom"


def test_a_line_that_only_announces_a_death_yields_to_the_exception_above_it() -> None:
    report = read("ValueError: unknown quantisation", SAMPLES["vllm_dead"]["sample"])
    assert (report.cause.id, report.cause.number) == ("exception", 1)


def test_the_end_of_the_traceback_is_told_with_the_line_that_opens_it() -> None:
    sample = SAMPLES["sgl_sched_exc"]["sample"]
    report = read(
        sample, '  File "scheduler.py", line 7, in run', "KeyError: 'layers.0'", "ValueError: other"
    )
    assert report.cause.line == sample
    assert report.cause.detail == "KeyError: 'layers.0'"


def test_an_exception_of_a_live_engine_is_no_cause_until_it_has_ended() -> None:
    lines = ["ImportError: optional", SAMPLES["vllm_ready"]["sample"], "ValueError: bad request"]
    assert read(*lines).cause is None
    assert read(*lines, ended=True).cause.line == "ValueError: bad request"


def test_a_web_app_that_started_is_not_an_sglang_engine_that_is_ready() -> None:
    lines = [
        "server_args=ServerArgs(tp_size=4, ep_size=2)",
        "launch_server",
        "INFO: Application startup complete.",
    ]
    report = read(*lines)
    assert (report.engine, report.ready) == ("sglang", False)
    assert (report.facts["tp"], report.facts["ep"]) == (4, 2)
    assert read(*lines, SAMPLES["sgl_ready"]["sample"]).ready


def test_the_rate_after_idle_time_is_never_a_fact_of_a_log() -> None:
    decode = next(fact["line"] for fact in KNOWN["facts"] if "Decode batch" in fact["line"])
    prefill = next(fact["line"] for fact in KNOWN["facts"] if "Prefill batch" in fact["line"])
    assert "gen_tps" not in read(decode).facts
    assert "gen_tps" not in read(prefill, decode).facts
    assert read(prefill, decode, decode.replace("3.62", "61.5"), prefill, decode).facts["gen_tps"] == 61.5


def test_of_several_ranks_the_slowest_load_and_the_least_memory_count() -> None:
    def line(seconds: float, gb: float) -> str:
        return f"Load weight end. elapsed={seconds} s, avail mem={gb} GB"

    report = read_logs(
        {"n0": log(line(10.5, 29.1)), "n1": log(line(700.25, 28.0)), "n2": log(line(9.0, 30.0))}
    )
    assert (report.facts["load_s"], report.facts["avail_mem_gb"]) == (700.25, 28.0)


def test_a_real_boot_log_is_read() -> None:
    report = read_logs({"n0": [(CASES / "engine" / "boot.log").read_bytes()]})
    assert (report.engine, report.ready, report.cause) == ("llama.cpp", True, None)
    assert report.facts == {
        "threads": 1,
        "load_s": pytest.approx(1.286872),
        "n_slots": 1,
        "n_ctx_slot": 1024,
        "gen_tps": 29.73,
        "prompt_tps": 86.73,
    }


def test_a_death_without_a_word_is_named() -> None:
    path = CASES / "engine" / "boot_sigill.log"
    found = diagnose({"n0": path}, -4)
    assert (found.cls, found.file) == ("died", "n0")
    assert "died without a word: SIGILL" in found.summary
    assert "threadpool init" in (found.evidence or "")
    assert "SIGILL" in diagnose({"n0": path}, 132).summary


def test_where_only_victims_spoke_their_word_is_the_evidence(tmp_path: Path) -> None:
    path = tmp_path / "n0.log"
    path.write_text(f"up\n{SAMPLES['vllm_core_init']['sample']}\nbye\n")
    found = diagnose({"n0": path}, 1)
    assert (found.cls, found.id, found.evidence) == ("died", None, SAMPLES["vllm_core_init"]["sample"])
    assert "exit status 1; the engine core died first" in found.summary


def test_a_boot_without_logs_can_be_diagnosed(tmp_path: Path) -> None:
    found = diagnose({"n0": tmp_path / "none.log"}, 127)
    assert (found.cls, found.evidence) == ("died", None)
    assert "not found" in found.summary


def test_a_cause_is_told_in_one_line_with_the_exit_status(tmp_path: Path) -> None:
    path = tmp_path / "n0.log"
    path.write_text("starting\nlaunch_server.py: error: unrecognized arguments: --foo\n")
    found = diagnose({"n0": path}, 2)
    assert (found.cls, found.id) == ("fatal_config", "argparse")
    assert "--foo" in found.summary
    assert "exit status 2" in found.summary
    assert "\n" not in found.summary


def test_silence_is_a_hang_unless_a_rank_has_died(tmp_path: Path) -> None:
    head, worker = tmp_path / "n0.log", tmp_path / "n1.log"
    head.write_text(SAMPLES["multi_node_hang"]["sample"] + "\n")
    worker.write_text("loading\n")
    found = silence({"n0": head, "n1": worker}, 600)
    assert (found.cls, found.evidence) == ("hang", SAMPLES["multi_node_hang"]["sample"])
    worker.write_text(SAMPLES["cuda_oom"]["sample"] + "\n")
    assert silence({"n0": head, "n1": worker}, 600).id == "cuda_oom"


@pytest.mark.parametrize(
    ("code", "name"),
    [(-4, "SIGILL"), (132, "SIGILL"), (-9, "SIGKILL"), (137, "SIGKILL"), (143, "SIGTERM"), (-11, "SIGSEGV")],
)
def test_a_signal_is_named(code: int, name: str) -> None:
    assert death(code).startswith(name)


@given(st.integers(-300, 300))
def test_every_exit_status_has_a_name(code: int) -> None:
    assert str(abs(code)) in death(code)


def test_an_unknown_exit_status_says_so() -> None:
    assert death(None) == "exit status unknown"


@given(st.lists(st.binary(max_size=60)), st.integers(1, 50))
def test_lines_do_not_depend_on_how_the_log_was_cut_into_blocks(parts: list[bytes], size: int) -> None:
    whole = b"".join(parts)
    blocks = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert list(lines_of(blocks)) == list(lines_of([whole]))


@given(st.lists(st.text("abc \r", max_size=6)))
def test_line_numbers_count_newlines_only(lines: list[str]) -> None:
    for number, text in lines_of(log(*lines)):
        assert text in lines[number - 1]


def test_a_line_without_end_is_cut_and_the_next_one_is_read() -> None:
    blocks = (b"x" * 65536 for _ in range(64))
    found = list(lines_of([*blocks, b"\nCUDA out of memory\n"]))
    assert [(number, len(text)) for number, text in found] == [(1, LINE_LIMIT), (2, 18)]


def test_the_evidence_of_a_long_line_shows_the_signature() -> None:
    cause = read("x" * 9000 + " CUDA out of memory " + "y" * 4000).cause
    assert "CUDA out of memory" in cause.line
    assert len(cause.line) <= 600


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("[2026-01-02 00:00:01 TP0] x", 86401.0),
        ("2026-01-02T00:00:01.5Z x", 86401.5),
        ("INFO 01-02 00:00:01 [a.py:1] x", 86401.0),
        ("[rank0]:[W102 00:00:01.0 TCPStore.cpp:125] x", 86401.0),
        ("2026-01-02 00:00:01,250 x", 86401.25),
        ("took 00:00:01", None),
        ("2026-99-99 00:00:01 x", None),
    ],
)
def test_stamps_are_read_in_each_form(line: str, seconds: float | None) -> None:
    assert stamp(line) == (seconds, None)


def test_the_command_prints_the_report(tmp_path: Path) -> None:
    path = tmp_path / "n0.log"
    path.write_text(SAMPLES["cuda_oom"]["sample"])
    done = subprocess.run(
        [sys.executable, "-m", "campaign.bootlog", path], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert report["ready"] is False
    assert report["facts"] == {}
    assert report["cause"]["class"] == "fatal"
    assert report["cause"]["line"] == SAMPLES["cuda_oom"]["sample"]
    assert report["cause"]["file"] == str(path)


def test_a_log_that_is_not_there_is_a_sentence_not_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "campaign.bootlog", tmp_path / "none.log"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "none.log" in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("class: hang", "class: hangs", "class"),
        ("kv_tokens>[", "kv_tokns>[", "kv_tokns"),
        ("id: cuda_oom_init", "id: cuda_oom", "cuda_oom"),
        ("elapsed=(?P", "elapsed=((?P", "regular expression"),
    ],
)
def test_a_mistake_in_the_signatures_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    path = tmp_path / "signatures.yaml"
    path.write_text(SIGNATURES.read_text().replace(old, new, 1))
    with pytest.raises(CampaignError, match=named):
        load(path)
