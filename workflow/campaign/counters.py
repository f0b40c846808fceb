"""What an engine counts of itself around a measurement: /metrics of llama.cpp (--metrics), vLLM and SGLang.

A Window takes a snapshot before and after, and samples while the measurement runs. A counter that the engine
doesn't have is None, and so is a difference across a restart.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from campaign.settings import Endpoint

NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "llama.cpp": {
        "running": ("llamacpp:requests_processing",),
        "queued": ("llamacpp:requests_deferred",),
        "prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "cached_tokens": ("llamacpp:prompt_tokens_cached_total",),
        "generated_tokens": ("llamacpp:tokens_predicted_total",),
        "drafts": ("llamacpp:spec_decode_num_drafts_total",),
        "draft_tokens": ("llamacpp:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("llamacpp:spec_decode_num_accepted_tokens_total",),
        "kv_use": ("llamacpp:kv_cache_usage_ratio",),
    },
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "queued": ("vllm:num_requests_waiting",),
        "requests": ("vllm:request_success_total",),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "cached_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "generated_tokens": ("vllm:generation_tokens_total",),
        "drafts": ("vllm:spec_decode_num_drafts_total",),
        "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
        "kv_use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "queued": ("sglang:num_queue_reqs",),
        "requests": ("sglang:num_requests_total",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "cached_tokens": ("sglang:cached_tokens_total",),
        "generated_tokens": ("sglang:generation_tokens_total",),
        "acceptance_gauge": ("sglang:spec_accept_length",),
        "kv_use": ("sglang:token_usage",),
    },
}
COUNTERS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "drafts",
    "draft_tokens",
    "accepted_tokens",
)
GAUGES = ("kv_use", "acceptance_gauge")
"""Gauges that are a property of the engine, not a sum over its workers."""
PREFIXES = {"llamacpp:": "llama.cpp", "vllm:": "vllm", "sglang:": "sglang"}
EXACT_ENGINES = frozenset({"llama.cpp"})
"""Engines whose counters grow by just what usage says; their prompt counter leaves cached tokens out."""
LAGGING_ENGINES = frozenset({"sglang"})
"""Engines whose gauges keep the last batch's size for up to 30 s after it (sgl-project/sglang#26495)."""
SAMPLE_EVERY_S = 0.25
ANSWER_WITHIN_S = 5.0
SETTLE_WITHIN_S = 1.0
SLACK_TOKENS = 8
"""Tokens a request that other engines may count beyond usage: begin-of-text, an overshot draft."""


@dataclass(frozen=True)
class Counters:
    """One snapshot. Tokens and requests are totals since the engine's start; `kv_use` is a share of 1."""

    engine: str
    running: float | None = None
    queued: float | None = None
    requests: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    generated_tokens: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    acceptance_gauge: float | None = None
    kv_use: float | None = None

    @property
    def in_engine(self) -> float | None:
        """Requests running and waiting; None if the engine tells neither."""
        known = [n for n in (self.running, self.queued) if n is not None]
        return sum(known) if known else None

    @property
    def lagging(self) -> bool:
        """True if `in_engine` may be of a batch that ended long ago."""
        return self.engine in LAGGING_ENGINES

    @property
    def busy(self) -> bool:
        """True if something surely runs or waits."""
        return bool(self.in_engine) and not self.lagging


def parse(text: str) -> Counters | None:
    """The snapshot in a /metrics text; None for an engine that isn't known, or no such text."""
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError:
        return None
    engine = next((e for s in samples for prefix, e in PREFIXES.items() if s.name.startswith(prefix)), None)
    if engine is None:
        return None
    found: dict[str, float] = {}
    for name, spellings in NAMES[engine].items():
        # Tensor-parallel ranks each repeat what rank 0 says; data-parallel ones add to it.
        values = [
            sample.value
            for sample in samples
            if sample.name in spellings
            and sample.labels.get("tp_rank", "0") == "0"
            and sample.labels.get("pp_rank", "0") == "0"
        ]
        if values:
            found[name] = max(values) if name in GAUGES else sum(values)
    return Counters(engine, **found)


def read(endpoint: Endpoint, client: httpx.Client) -> Counters | None:
    """A snapshot now; None if the engine has no /metrics or doesn't answer."""
    return parse(_text(endpoint, client) or "")


def _text(endpoint: Endpoint, client: httpx.Client) -> str | None:
    url = endpoint.base_url.rstrip("/").removesuffix("/v1") + "/metrics"
    key = os.environ.get(endpoint.api_key_env or "")
    try:
        answer = client.get(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    except httpx.HTTPError:
        return None
    return answer.text if answer.status_code == 200 else None


@dataclass(frozen=True)
class Acceptance:
    """Tokens a speculative step brings, and how the figure was come by."""

    length: float
    estimator: str


class Window:
    """The engine's counters over a `with` block: once it has settled before, every `every_s`, and after.

    Sampling is a thread that only fetches text; it is parsed afterwards, so that it takes nothing from a
    client that measures in this process. None samples nothing between the two ends.
    """

    def __init__(self, endpoint: Endpoint, every_s: float | None = SAMPLE_EVERY_S) -> None:
        self.endpoint, self.every_s = endpoint, every_s
        self.before: Counters | None = None
        self.after: Counters | None = None
        self.during: list[Counters] = []
        self._texts: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        # The first client of a process loads certificates for 60 ms; here it is out of anyone's way.
        self._client = httpx.Client(timeout=ANSWER_WITHIN_S, trust_env=False)
        self.before = self._settled(SETTLE_WITHIN_S)
        if self.before is not None and self.every_s is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.before is not None:
            self.after = self._settled(0.0 if self.before.busy else SETTLE_WITHIN_S)
        self.during = [counters for text in self._texts if (counters := parse(text))]
        self._client.close()

    def _sample(self) -> None:
        while not self._stop.wait(self.every_s):
            text = _text(self.endpoint, self._client)
            if text is not None:
                self._texts.append(text)

    def _settled(self, within_s: float) -> Counters | None:
        """The counters once nothing runs; engines count a request a moment after its last byte.

        Where the gauges lag, nothing runs when two readings are the same.
        """
        deadline = time.monotonic() + within_s
        last: Counters | None = None
        while True:
            counters = read(self.endpoint, self._client)
            if counters is None or time.monotonic() > deadline:
                return counters
            if not counters.busy and (counters == last or not counters.lagging):
                return counters
            last = counters
            time.sleep(0.02)

    def delta(self, name: str) -> float | None:
        """By how much a counter grew; None if the engine lacks it or was restarted meanwhile."""
        if self.before is None or self.after is None or self.restarted:
            return None
        first, last = getattr(self.before, name), getattr(self.after, name)
        return None if first is None or last is None else last - first

    @property
    def restarted(self) -> bool:
        """True if a counter fell: the engine that answers now is another than before."""
        if self.before is None or self.after is None:
            return False
        pairs = ((getattr(self.before, name), getattr(self.after, name)) for name in COUNTERS)
        return any(a is not None and b is not None and b < a for a, b in pairs)

    @property
    def acceptance(self) -> Acceptance | None:
        """Tokens a step of speculation: 1 + accepted/drafts over the window, else SGLang's own gauge."""
        drafts, accepted = self.delta("drafts"), self.delta("accepted_tokens")
        if drafts and accepted is not None:
            return Acceptance(
                1 + accepted / drafts, "1 + accepted/drafts over the window, drafted steps only"
            )
        gauge = self.after.acceptance_gauge if self.after else None
        return Acceptance(gauge, "the engine's gauge after the window") if gauge else None

    def foreign(
        self, requests: int, concurrency: int, prompt: int | None, cached: int | None, generated: int | None
    ) -> str | None:
        """One sentence if someone else used the engine in the window, None if nothing shows that.

        `requests` were ours, at most `concurrency` at once, with `prompt` tokens in all, `cached` of them
        from the prefix cache (None: as many as the engine counted itself), and `generated` tokens; None
        where usage didn't say: then nothing is compared.
        """
        if self.before is None or self.after is None:
            return None
        for when, seen, ours in self._seen(concurrency):
            if seen is not None and seen > ours:
                return f"{seen:g} requests were in the engine {when}, at most {ours} of them ours"
        exact = self.before.engine in EXACT_ENGINES
        if prompt is not None and exact:
            prompt -= int(self.delta("cached_tokens") or 0) if cached is None else cached
        slack = requests * (1 if exact else SLACK_TOKENS)
        limits = (
            ("requests", requests, 0),
            ("prompt_tokens", prompt, slack),
            ("generated_tokens", generated, slack),
        )
        for name, expected, spare in limits:
            grown = self.delta(name)
            if expected is not None and grown is not None and grown > expected + spare:
                return f"the engine counted {grown:g} {name.replace('_', ' ')}, ours were {expected}"
        return None

    def warm(self, allowed: int) -> str | None:
        """One sentence if the prefix cache gave more than `allowed` prompt tokens; None if not or unknown."""
        cached = self.delta("cached_tokens")
        if cached is None or cached <= allowed:
            return None
        return f"the engine's prefix cache gave {cached:g} prompt tokens, a cold run's at most {allowed}"

    def _seen(self, concurrency: int) -> Iterable[tuple[str, float | None, int]]:
        before, after = self.before, self.after
        lagging = before is not None and before.lagging
        if before is not None and not lagging:
            yield "before we began", before.in_engine, 0
        for sample in self.during:
            if not lagging or (before is not None and sample.in_engine != before.in_engine):
                yield "while we measured", sample.in_engine, concurrency
        if after is not None and not lagging:
            yield "after we ended", after.in_engine, 0

    def facts(self) -> dict[str, Any]:
        """Plain data for an outcome's details; what the engine doesn't tell is left out."""
        if self.before is None:
            return {}
        grown = {name: self.delta(name) for name in COUNTERS}
        peaks = {
            f"{name}_peak": max((v for c in self.during if (v := getattr(c, name)) is not None), default=None)
            for name in ("running", "queued", "kv_use")
        }
        facts: dict[str, Any] = {
            "engine": self.before.engine,
            "before": _known(self.before),
            "after": _known(self.after) if self.after else None,
            "restarted": self.restarted,
            **{f"{name}_delta": value for name, value in grown.items() if value is not None},
            **{name: value for name, value in peaks.items() if value is not None},
        }
        if (acceptance := self.acceptance) is not None:
            facts["acceptance"] = asdict(acceptance)
        return facts


def _known(counters: Counters) -> dict[str, float]:
    values = {f.name: getattr(counters, f.name) for f in fields(counters) if f.name != "engine"}
    return {name: value for name, value in values.items() if value is not None}
