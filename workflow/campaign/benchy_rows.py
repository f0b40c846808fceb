"""What a row of llama-benchy proves: the result's figures, its progress events, and the rules between them.

It exits 0 with null, partial or plausible-but-wrong rows when the engine dies, so the data are judged, never
the exit status. Rows of 0.3.7 and 0.3.8 come in as recorded results only, without progress events.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from campaign import harness
from campaign.benchy_progress import Request
from campaign.outcome import Measurement, Metric, Reason, Status, metrics_of
from campaign.settings import BenchyPoint

ENOUGH_TOKENS = 0.95
PROMPT_TOLERANCE = 0.2
ROLE_GAP_S = 0.010
ABOVE_PEAK = 1.5
CLOCKED_TO_THE_END = "0.3.7"
"""This release takes tg from the first token to the end of the response, later ones to the last token."""
FIRST_DELTA_LEFT_OUT = "0.3.8"
"""This release counts the tokens of each delta by itself and leaves those of the first one out of tg."""
AGGREGATE = {"pp_tps": "pp_throughput", "tg_tps": "tg_throughput"}
PER_REQUEST = {"pp_req_tps": "pp_req_throughput", "tg_req_tps": "tg_req_throughput"}
TIMES = {"ttfr_s": "ttfr", "e2e_ttft_s": "e2e_ttft", "est_ppt_s": "est_ppt"}
PEAK = {"peak_tps": "peak_throughput", "peak_req_tps": "peak_req_throughput"}
GENERATION = ("tg_tps", "tg_req_tps")

Values = dict[str, list[float]]


@dataclass(eq=False)
class Refusal(Exception):
    """Why a row is not ok; carries the outcome's status and reason."""

    status: Status
    cls: str
    summary: str
    evidence: str | None = None


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
        if correction := _correction(values, requests, n_first, speculates, point.version, details):
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
        _check_pace(values)
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


def _check_pace(values: Values) -> None:
    """Without progress events an answer that came in one read shows: its rate is far above its peak."""
    for peak, rate in zip(values["peak_req_tps"], values["tg_req_tps"], strict=False):
        if rate > ABOVE_PEAK * peak:
            evidence = f"tg {rate:.1f} tok/s, at most {peak:.1f} in any second"
            raise Refusal("unmeasured", "coarse_stream", "the stream is too coarse for a rate", evidence)


def _check_implied_tokens(values: Values, point: BenchyPoint) -> None:
    """Without progress events a short answer still shows: its peak is N/T and its tg (N-1)/T.

    That holds for answers of less than a second; in longer ones the peak is a whole number of tokens. Where
    tg is clocked to the end of the response, only the totals of several streams have one T for both: their
    peak is sum(N)/T and their tg (sum(N)-c)/T, which gives the mean N.
    """
    of = "req_tps"
    if point.version == CLOCKED_TO_THE_END:
        if point.concurrency == 1:
            return
        of = "tps"
    for peak, rate in zip(values[f"peak_{of}"], values[f"tg_{of}"], strict=False):
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
    version: str,
    details: dict[str, Any],
) -> Values | None:
    """tg with (N - n_first) in place of llama-benchy's (N - 1), where deltas carry several tokens.

    None when llama-benchy's own figure is right: one token a delta, token_ids in each of them, or a release
    that leaves the first delta out.
    """
    if requests and not any(r.coarse and r.first_count is None for r in requests):
        return None
    if not requests and (not speculates or version == FIRST_DELTA_LEFT_OUT):
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
