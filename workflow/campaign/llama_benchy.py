"""llama-benchy 0.4.0, one process a point: how it is run, and what of its figures can be believed.

It exits 0 with null, partial or plausible-but-wrong rows when the engine dies, so the data are judged, never
the exit status. Cold means here: each prompt is drawn at random from the book, and `--no-cache` asks a
llama.cpp server for `cache_prompt: false` and ends each prompt in a UUID. What was cached all the same
llama-benchy doesn't read; the engine's counters over the cell's window are the evidence for that.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import benchy_progress, harness
from campaign.benchy_progress import Request
from campaign.files import sha256_of
from campaign.outcome import Measurement, Metric, Reason, Status, metrics_of
from campaign.settings import PROTOCOLS, BenchyPoint, Endpoint

NAME = "llama-benchy"
RESULT, EVENTS, LOG = "result.json", "progress.jsonl", "output.log"
START_UP_S = 60.0
ENOUGH_TOKENS = 0.95
PROMPT_TOLERANCE = 0.2
ROLE_GAP_S = 0.010
# The key goes in by the environment: a command line can be read by every user of the machine. The pause comes
# before the clock is started: llama.cpp closes a connection after a streamed answer without announcing it,
# and a request sent on it before the close is noticed fails with "Server disconnected". The discarded run
# sends no progress events, so what it asked of the engine is printed.
PROGRAM = f"""
import asyncio
from llama_benchy.__main__ import main
from llama_benchy.client import LLMClient
key = os.environ.pop({harness.KEY_VARIABLE!r}, None)
sys.argv[1:] += ["--api-key", key] if key else []
generate = LLMClient.run_generation
async def settled(*args, **kwargs):
    await asyncio.sleep(0.1)
    result = await generate(*args, **kwargs)
    if kwargs.get("request_id") is None:
        print(f"[campaign] discarded: {{result.prompt_tokens}} prompt tokens, {{result.total_tokens}} tokens")
    return result
LLMClient.run_generation = settled
main()
"""

AGGREGATE = {"pp_tps": "pp_throughput", "tg_tps": "tg_throughput"}
PER_REQUEST = {"pp_req_tps": "pp_req_throughput", "tg_req_tps": "tg_req_throughput"}
TIMES = {"ttfr_s": "ttfr", "e2e_ttft_s": "e2e_ttft", "est_ppt_s": "est_ppt"}
PEAK = {"peak_req_tps": "peak_req_throughput"}
GENERATION = ("tg_tps", "tg_req_tps")

Values = dict[str, list[float]]


@dataclass(eq=False)
class Refusal(Exception):
    """Why a row is not ok; carries the outcome's status and reason."""

    status: Status
    cls: str
    summary: str
    evidence: str | None = None


def measure(
    endpoint: Endpoint, point: BenchyPoint, raw: Path, *, tokenizer: str, book_file: Path, speculates: bool
) -> Measurement:
    """Run llama-benchy on one point; its result, progress events and output stay in the directory `raw`.

    `tokenizer` is a directory with tokenizer.json, or a name that the harness finds in its own cache.
    Raises CampaignError when the harness is not installed or the API key's variable is not set.
    """
    tool = harness.find(NAME, point.version)
    hidden = harness.masks(endpoint)
    raw = raw.resolve()
    raw.mkdir(parents=True, exist_ok=True)
    result, events, log = raw / RESULT, raw / EVENTS, raw / LOG
    for file in (result, events, log):
        file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="campaign-") as home:
        address = _shelve(book_file, Path(home))
        options = _options(endpoint, point, _absolute(tokenizer), address)
        key = harness.api_key(endpoint)
        ended = harness.run(
            tool,
            PROGRAM,
            options,
            cwd=raw,
            log=log,
            env=harness.environment(Path(home), {harness.KEY_VARIABLE: key} if key else None),
            silence_s=point.timeout_s + START_UP_S,
            watched=[events],
        )
    harness.scrub((result, events, log), hidden)
    requests = benchy_progress.read(events)
    measured = judge(
        _loaded(result),
        requests,
        point,
        speculates=speculates,
        n_first=_first_tokens(tool, requests, tokenizer),
        log=log.read_text(encoding="utf-8", errors="replace"),
        killed=ended.killed,
    )
    measured.raw = [f"{raw.name}/{file.name}" for file in (result, events, log) if file.exists()]
    if measured.reason:
        measured.reason.log = f"{raw.name}/{log.name}"
    measured.provenance = tool.provenance(PROTOCOLS["llama_benchy"]) | {
        "command": harness.mask(shlex.join([NAME, *_options(endpoint, point, tokenizer, address)]), hidden),
        "book_sha256": sha256_of(book_file),
        "tokenizer_sha256": _identity(tokenizer),
    }
    return measured


def judge(
    data: Mapping[str, Any] | None,
    requests: Sequence[Request],
    point: BenchyPoint,
    *,
    speculates: bool = False,
    n_first: Mapping[int, int] | None = None,
    log: str = "",
    killed: str | None = None,
) -> Measurement:
    """What llama-benchy's result (`data`) and its progress events prove of a point.

    `n_first` is the number of tokens in the first delta of each request, by request id, where it is known.
    Only an ok measurement has metrics; what a refused one read stands in details.claimed. Rates are in
    tok/s, times in s; pp_tps and tg_tps are totals over the c streams with one value a run, the others have
    one value a request.
    """
    details: dict[str, Any] = {}
    flags = [] if requests else ["no_progress_events"]
    try:
        row = _row(data, requests, point, log, killed)
        values = _values(row)
        details["claimed"] = values
        _check_requests(values, requests, point, speculates)
        _check_counts(values, point)
        _check_stream(values, requests, point, speculates)
        if correction := _correction(values, requests, n_first, speculates, details):
            values |= correction
            flags.append("tg_corrected_for_first_delta")
        else:
            del details["claimed"]
    except Refusal as refusal:
        reason = Reason(**{"class": refusal.cls}, summary=refusal.summary, evidence=refusal.evidence)
        return Measurement(status=refusal.status, reason=reason, flags=flags, details=details)
    if speculates:
        flags.append("speculative")
    return Measurement(status="ok", metrics=_metrics(values), flags=flags, details=details)


def _options(endpoint: Endpoint, point: BenchyPoint, tokenizer: str, address: str) -> list[str]:
    named = {
        "--base-url": endpoint.base_url,
        "--model": endpoint.model,
        "--tokenizer": tokenizer,
        "--book-url": address,
        "--pp": point.pp,
        "--tg": point.tg,
        "--depth": point.depth,
        "--concurrency": point.concurrency,
        "--runs": point.runs,
        "--latency-mode": point.latency_mode,
        "--format": "json",
        "--save-result": RESULT,
        "--emit-progress": EVENTS,
    }
    # Whether a model knows the capital of France is the tool_eval cell's business, not a gate of speed.
    switches = ["--no-cache", "--exact-tg", "--skip-coherence"]
    return [str(part) for pair in named.items() for part in pair] + switches


def _shelve(book_file: Path, home: Path) -> str:
    """Put the book where llama-benchy looks for a download of the address that this returns."""
    digest = sha256_of(book_file)
    address = f"sha256:{digest}"
    shelf = home / ".cache" / "llama-benchy"
    shelf.mkdir(parents=True)
    (shelf / f"{hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()}.txt").symlink_to(
        book_file.resolve()
    )
    return address


def _absolute(tokenizer: str) -> str:
    return str(Path(tokenizer).resolve()) if Path(tokenizer).exists() else tokenizer


def _identity(tokenizer: str) -> str | None:
    file = Path(tokenizer) / "tokenizer.json"
    return sha256_of(file) if file.is_file() else None


def _loaded(result: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _first_tokens(tool: harness.Harness, requests: Sequence[Request], tokenizer: str) -> dict[int, int]:
    """Tokens in each first delta: from token_ids where they came, else by encoding its text again."""
    known = {r.id: r.first_count for r in requests if r.first_count is not None}
    unknown = [r for r in requests if r.id not in known and r.first_text and r.coarse]
    texts = [r.first_text for r in unknown]
    counts = harness.count_tokens(tool, Path(tokenizer), texts) if texts else []
    return known | {request.id: count for request, count in zip(unknown, counts, strict=False)}


def _row(
    data: Mapping[str, Any] | None,
    requests: Sequence[Request],
    point: BenchyPoint,
    log: str,
    killed: str | None,
) -> Mapping[str, Any]:
    """The row of the point, unless a request failed or the row is missing or empty."""
    failed = [r for r in requests if r.error]
    if failed:
        raise Refusal(
            "failed",
            "request_failed",
            f"{len(failed)} of {point.runs * point.concurrency} requests failed",
            failed[0].error,
        )
    if killed:
        raise Refusal("failed", "hang", f"llama-benchy was killed: {killed}", harness.blamed_line(log))
    if data is None:
        raise Refusal("failed", "no_result", "llama-benchy ended without a result", harness.blamed_line(log))
    wanted = (point.concurrency, point.depth, point.pp, point.tg, False)
    keys = ("concurrency", "context_size", "prompt_size", "response_size", "is_context_prefill_phase")
    rows = data.get("benchmarks") or []
    row = next((r for r in rows if tuple(r.get(key) for key in keys) == wanted), None)
    if row is None:
        raise Refusal("failed", "no_row", f"the result has no row for {point.name}", harness.blamed_line(log))
    if not row.get("pp_throughput") and not row.get("e2e_ttft"):
        raise Refusal("failed", "null_row", "no request of this point succeeded", _error_line(log))
    return dict(row)


def _values(row: Mapping[str, Any]) -> Values:
    def read(column: str, scale: float = 1.0) -> list[float]:
        return [float(value) / scale for value in (row.get(column) or {}).get("values") or []]

    rates = {name: read(column) for name, column in (AGGREGATE | PER_REQUEST | PEAK).items()}
    return rates | {name: read(column, 1000.0) for name, column in TIMES.items()}


def _check_counts(values: Values, point: BenchyPoint) -> None:
    requests = point.runs * point.concurrency
    planned = dict.fromkeys(AGGREGATE, point.runs) | dict.fromkeys([*PER_REQUEST, *TIMES], requests)
    answered = len(values["e2e_ttft_s"])
    if answered == requests and any(len(values[name]) < planned[name] for name in GENERATION):
        raise Refusal("unmeasured", "one_delta", "a whole answer came at once, so it carries no decode rate")
    for name, count in planned.items():
        if len(values[name]) != count:
            summary = f"{answered} of {requests} requests answered"
            raise Refusal("failed", "partial", summary, f"{name}: {len(values[name])} of {count} values")


def _check_requests(
    values: Values, requests: Sequence[Request], point: BenchyPoint, speculates: bool
) -> None:
    """Each planned request ended, with the tokens that were asked of it and a prompt of the planned size."""
    if not requests:
        if not speculates:
            _check_implied_tokens(values, point)
        return
    ended = [r for r in requests if r.tokens is not None]
    planned = point.runs * point.concurrency
    if len(ended) != planned:
        raise Refusal("failed", "partial", f"{len(ended)} of {planned} requests ended")
    size = point.pp + point.depth
    for request in ended:
        tokens = request.tokens or 0
        evidence = f"request {request.id}: {tokens} of {point.tg} tokens"
        if tokens < ENOUGH_TOKENS * point.tg:
            if request.prompt_tokens is None:
                raise Refusal("failed", "cut_off", "the stream broke off before its usage", evidence)
            raise Refusal("invalid", "short_output", "the engine stopped short of the asked tokens", evidence)
        sent = request.prompt_tokens
        if sent is not None and abs(sent - size) > PROMPT_TOLERANCE * size:
            evidence = f"request {request.id}: {sent} prompt tokens, planned {size}"
            raise Refusal("invalid", "prompt_size", "the engine counted a prompt of another size", evidence)


def _check_implied_tokens(values: Values, point: BenchyPoint) -> None:
    """Without progress events a short answer still shows: its peak is N/T and its tg (N-1)/T.

    That holds for answers of less than a second; in longer ones the peak is a whole number of tokens.
    """
    for peak, rate in zip(values["peak_req_tps"], values["tg_req_tps"], strict=False):
        if peak > rate and not peak.is_integer():
            tokens = peak / (peak - rate)
            if tokens < ENOUGH_TOKENS * point.tg - 0.5:
                evidence = f"peak {peak:.1f} and tg {rate:.1f} tok/s imply {tokens:.0f} of {point.tg} tokens"
                raise Refusal(
                    "invalid", "short_output", "an answer stopped short of the asked tokens", evidence
                )


def _check_stream(values: Values, requests: Sequence[Request], point: BenchyPoint, speculates: bool) -> None:
    for early, token in zip(values["ttfr_s"], values["e2e_ttft_s"], strict=True):
        if token - early > max(ROLE_GAP_S, early):
            raise Refusal(
                "invalid",
                "role_early",
                "a chunk without a token came long before the first token, and pp was read from it",
                f"ttfr {early * 1000:.1f} ms, first token {token * 1000:.1f} ms",
            )
    for request in requests:
        if request.bursts is not None and (
            request.bursts < min(3, point.tg) or (request.coarse and not speculates)
        ):
            evidence = (
                f"request {request.id}: {request.tokens} tokens in {request.deltas} deltas, "
                f"{request.bursts} arrivals"
            )
            raise Refusal("unmeasured", "coarse_stream", "the stream is too coarse for a rate", evidence)


def _correction(
    values: Values,
    requests: Sequence[Request],
    n_first: Mapping[int, int] | None,
    speculates: bool,
    details: dict[str, Any],
) -> Values | None:
    """tg with (N - n_first) in place of llama-benchy's (N - 1), where deltas carry several tokens.

    None when llama-benchy's own figure is right: one token a delta, or token_ids in each of them.
    """
    if requests and not any(r.coarse and r.first_count is None for r in requests):
        return None
    if not requests and not speculates:
        return None
    known = n_first or {}
    if not requests or any(r.id not in known for r in requests):
        raise Refusal(
            "unmeasured",
            "first_delta_unknown",
            "deltas carry several tokens and how many the first one carried is unknown",
            f"tg {statistics.median(values['tg_req_tps']):.1f} tok/s is an upper bound",
        )
    ordered = sorted(requests, key=lambda request: request.id)
    shares = [((r.tokens or 0) - known[r.id], (r.tokens or 0) - 1) for r in ordered]
    c = len(ordered) // len(values["tg_tps"])
    runs = [shares[start : start + c] for start in range(0, len(shares), c)]
    details["n_first"] = [known[r.id] for r in ordered]
    return {
        "tg_req_tps": [
            value * kept / counted
            for value, (kept, counted) in zip(values["tg_req_tps"], shares, strict=True)
        ],
        "tg_tps": [
            value * sum(kept for kept, _ in run) / sum(counted for _, counted in run)
            for value, run in zip(values["tg_tps"], runs, strict=True)
        ],
    }


def _metrics(values: Values) -> dict[str, Metric]:
    units = dict.fromkeys([*AGGREGATE, *PER_REQUEST], "tok/s") | dict.fromkeys(TIMES, "s")
    return metrics_of(**{name: (units[name], values[name]) for name in units})


def _error_line(log: str) -> str | None:
    """The first line in which llama-benchy printed an error, else its last line."""
    errors = (line for line in log.splitlines() if line.startswith(("HTTP ", "Error")))
    return next(errors, None) or harness.blamed_line(log)
