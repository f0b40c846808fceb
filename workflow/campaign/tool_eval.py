"""tool-eval-bench 2.8.0 and 3.0.0: how a quality cell is run, and whether its score can be believed.

It reports "completed" and exits 0 when the engine was dead, so a score counts only when every planned
scenario was graded, on a whole answer. Each trial is a process of its own: in one run of several trials it
keeps the last only.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from campaign import harness
from campaign.outcome import Measurement, Reason, Status, metrics_of
from campaign.settings import PROTOCOLS, Endpoint, ToolEvalPoint

NAME = "tool-eval-bench"
CUT_OFF = "[campaign] a stream ended without its finish_reason"
# A stream that broke off cleanly is a short answer to the harness, and is graded as the model's.
PROGRAM = f"""
from tool_eval_bench.adapters.openai_compat import OpenAICompatibleAdapter as Adapter
from tool_eval_bench.cli.bench import main
request = Adapter._stream_request
async def watched(*args, **kwargs):
    answer = await request(*args, **kwargs)
    if not (answer.finish_reason or answer.transport_error_status or answer.malformed):
        print({CUT_OFF!r}, flush=True)
    return answer
Adapter._stream_request = watched
sys.exit(main())
"""
START_UP_S = 60.0
CORE_SCENARIOS = frozenset(f"TC-{number:02d}" for number in range(1, 16))
POINTS_EACH = 2
HARD_MODE = "P"
NOT_THE_MODEL = frozenset({"timeout", "connection_error", "server_error"})
DOUBTFUL = frozenset({"model_crash", "evaluator_error"})
HOST_KEYS = ("hostname",)
URL = re.compile(r"(?P<scheme>https?://)[^\s/'\"]+")

Json = Mapping[str, Any]


def measure(endpoint: Endpoint, point: ToolEvalPoint, raw: Path) -> Measurement:
    """Run tool-eval-bench on one point; results, output and reports stay in `raw`, host names masked.

    Raises CampaignError when the harness is not installed or the API key's variable is not set.
    """
    tool = harness.find(NAME, point.version)
    hidden = harness.masks(endpoint)
    raw = raw.resolve()
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    options = _options(endpoint, point)
    key = harness.api_key(endpoint)
    trials: list[Json | None] = []
    killed = None
    for trial in range(1, point.trials + 1):
        result = raw / f"trial{trial}.json"
        killed = _run(tool, [*options, "--json-file", result.name], raw, key, point)
        _clean(raw, hidden)
        trials.append(_loaded(result))
        if killed:
            break
    log = raw / "output.log"
    measured = judge(trials, point, log=log.read_text(encoding="utf-8", errors="replace"), killed=killed)
    measured.raw = [
        f"{raw.name}/{file.relative_to(raw)}" for file in sorted(raw.rglob("*")) if file.is_file()
    ]
    if measured.reason:
        measured.reason.log = f"{raw.name}/{log.name}"
    measured.provenance = tool.provenance(PROTOCOLS["tool_eval"]) | {
        "command": harness.mask(shlex.join([NAME, *options]), hidden)
    }
    return measured


def judge(
    trials: Sequence[Json | None], point: ToolEvalPoint, *, log: str = "", killed: str | None = None
) -> Measurement:
    """What the results of the trials (None where a trial left none) prove of a point; one value a trial.

    score is of 100, completion_rate a fraction, median_turn_s in seconds. details: scenarios (of the last
    trial, by id), failed (every id that failed in any trial), categories, config_fingerprint.
    """
    refused = next((found for data in trials if (found := _refusal(data, point, log))), None)
    if killed:
        refused = "failed", _reason("hang", f"tool-eval-bench was killed: {killed}", harness.blamed_line(log))
    elif refused is None and len(trials) != point.trials:
        refused = "failed", _reason("incomplete", f"{len(trials)} of {point.trials} trials ran")
    elif refused is None and (broken := log.count(CUT_OFF)):
        summary = "answers broke off and were graded as they stood"
        refused = "failed", _reason("cut_off", summary, f"{broken} streams ended without a finish_reason")
    complete = [data for data in trials if data is not None]
    details = _details(complete)
    if refused:
        return Measurement(status=refused[0], reason=refused[1], details=details)
    scores = [data["scores"] for data in complete]
    return Measurement(
        status="ok",
        metrics=metrics_of(
            score=("of 100", [s["final_score"] for s in scores]),
            points=("points", [s["total_points"] for s in scores]),
            max_points=("points", [s["max_points"] for s in scores]),
            hard_points=("points", [_category(s, "earned") for s in scores]),
            hard_max_points=("points", [_category(s, "max") for s in scores]),
            completion_rate=("fraction", [1.0 for _ in scores]),
            responsiveness=("of 100", [s.get("responsiveness") for s in scores]),
            median_turn_s=("s", [_seconds(s.get("median_turn_ms")) for s in scores]),
        ),
        flags=sorted({_kind(r) for s in scores for r in s["scenario_results"] if _kind(r) in DOUBTFUL}),
        details=details,
    )


def _options(endpoint: Endpoint, point: ToolEvalPoint) -> list[str]:
    options = ["--base-url", endpoint.base_url, "--model", endpoint.model, "--format", "openai"]
    options += ["--seed", str(point.seed), "--max-turns", str(point.max_turns)]
    options += ["--timeout", f"{point.timeout_s:g}", "--no-live", "--no-probe-engine", "--output-dir", "runs"]
    if point.scenarios == "short":
        options += ["--short"]
    elif point.scenarios != "all":
        options += ["--scenarios", *point.scenarios]
    if point.hardmode:
        options += ["--hardmode"]
    if not point.thinking:
        options += ["--no-think"]
    if point.max_tokens is not None:
        options += ["--backend-kwargs", json.dumps({"max_tokens": point.max_tokens})]
    return options


def _run(
    tool: harness.Harness, options: Sequence[str], raw: Path, key: str | None, point: ToolEvalPoint
) -> str | None:
    """One trial; why it was killed, or None. Its database and whatever else it caches are thrown away."""
    with tempfile.TemporaryDirectory(prefix="campaign-") as home:
        # It loads the first .env found upwards of its cwd, which may be the user's own.
        (raw / ".env").touch()
        ended = harness.run(
            tool,
            PROGRAM,
            options,
            cwd=raw,
            log=raw / "output.log",
            env=harness.environment(Path(home), {"TOOL_EVAL_API_KEY": key} if key else None),
            silence_s=START_UP_S + point.timeout_s * point.max_turns,
        )
    (raw / ".env").unlink(missing_ok=True)
    shutil.rmtree(raw / "data", ignore_errors=True)
    return ended.killed


def _clean(raw: Path, hidden: dict[str, str]) -> None:
    """Mask hosts and the key in all that is kept."""
    harness.scrub((file for file in raw.rglob("*") if file.is_file()), hidden)
    for file in raw.glob("*.json"):
        text = file.read_text(encoding="utf-8", errors="replace")
        for name in HOST_KEYS:
            text = re.sub(rf'("{name}":\s*)"[^"]*"', r'\1"***"', text)
        file.write_text(URL.sub(r"\g<scheme>***", text), encoding="utf-8")


def _loaded(result: Path) -> Json | None:
    try:
        data = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _refusal(data: Json | None, point: ToolEvalPoint, log: str) -> tuple[Status, Reason] | None:
    """Why a trial's result doesn't count, None when it does."""
    if data is None:
        return "failed", _reason(
            "no_result", "tool-eval-bench ended without a result", harness.blamed_line(log)
        )
    scores = data.get("scores")
    if not isinstance(scores, dict) or data.get("error"):
        evidence = str(data.get("error") or harness.blamed_line(log))
        return "failed", _reason("no_result", "tool-eval-bench ended with an error", evidence)
    version = data.get("tool_eval_bench_version")
    if version is not None and version != point.version:
        return "failed", _reason("version", f"the result is of {version}, the point of {point.version}")
    results = scores.get("scenario_results") or []
    ungraded = [r for r in results if _ungraded(r, scores)]
    planned = _planned(data, point)
    if ungraded:
        summary = f"{len(ungraded)} of {len(planned)} scenarios could not be graded"
        return "failed", _reason(
            "not_graded", summary, f"{ungraded[0]['scenario_id']}: {_summary(ungraded[0])}"
        )
    missing = planned - {r.get("scenario_id") for r in results}
    rate = scores.get("completion_rate")
    if missing or not planned or rate not in (None, 100, 100.0):
        summary = f"{len(planned) - len(missing)} of {len(planned)} planned scenarios ran"
        return "failed", _reason(
            "incomplete", summary, ", ".join(sorted(missing)) or f"completion rate {rate}"
        )
    most = POINTS_EACH * len(planned)
    if scores.get("max_points") != most:
        evidence = f"max_points {scores.get('max_points')}, planned {most}"
        return "failed", _reason("incomplete", "the score is not out of all planned scenarios", evidence)
    return None


def _planned(data: Json, point: ToolEvalPoint) -> set[str]:
    """The scenarios that the harness set out to run, and those that the point asks for by name."""
    planned = set((data.get("config") or {}).get("scenario_ids") or [])
    if point.scenarios == "short":
        return planned | CORE_SCENARIOS
    return planned if isinstance(point.scenarios, str) else planned | set(point.scenarios)


def _ungraded(result: Json, scores: Json) -> bool:
    """Whether the serving stack failed this scenario, or the model was never heard in it."""
    silent = not result.get("turn_count") and not result.get("completion_tokens")
    excluded = result.get("scenario_id") in (scores.get("excluded_scenarios") or [])
    return excluded or silent or _kind(result) in NOT_THE_MODEL


def _details(complete: Sequence[Json]) -> dict[str, Any]:
    """What a table and a reader want beside the score, masked; empty when no trial left a result."""
    scored = [data for data in complete if isinstance(data.get("scores"), dict)]
    if not scored:
        return {}
    last, scores = scored[-1], scored[-1]["scores"]
    failed = {
        str(result["scenario_id"])
        for data in scored
        for result in data["scores"].get("scenario_results") or []
        if result.get("status") == "fail" and _kind(result) not in NOT_THE_MODEL
    }
    return {
        "scenarios": {
            str(r["scenario_id"]): {"status": r.get("status"), "points": r.get("points"), "kind": _kind(r)}
            for r in scores.get("scenario_results") or []
        },
        "failed": sorted(failed),
        "categories": [
            {name: entry.get(name) for name in ("category", "label", "earned", "max")}
            for entry in scores.get("category_scores") or []
        ],
        "config_fingerprint": (last.get("config") or {}).get("config_fingerprint"),
    }


def _category(scores: Json, field: str) -> float | None:
    """Hard mode's figure (category P), None in a run without hard mode."""
    found = (c for c in scores.get("category_scores") or [] if c.get("category") == HARD_MODE)
    entry = next(found, None)
    return None if entry is None else entry.get(field)


def _kind(result: Json) -> str | None:
    kind = result.get("failure_kind")
    return None if kind is None else str(kind)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _summary(result: Json) -> str:
    lines = str(result.get("summary") or result.get("failure_kind") or "no answer").splitlines()
    return URL.sub(r"\g<scheme>***", lines[0])


def _reason(cls: str, summary: str, evidence: str | None = None) -> Reason:
    return Reason(**{"class": cls}, summary=summary, evidence=evidence)
