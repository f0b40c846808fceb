"""What one run of llama-benchy itself asked of the engine: the measure of what was someone else's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from campaign.benchy_progress import Request
from campaign.counters import SLACK_TOKENS
from campaign.settings import BenchyPoint

WARM_UPS = 2
LATENCY_REQUESTS = {"none": 0, "api": 0, "generation": 3}
"""One-token requests by latency mode; each is "hello", shorter than a warm-up."""
WARM_UP = re.compile(r"^Warmup \(.+?\) complete\. Delta: (-?\d+) tokens \(Server: (\d+), ", re.MULTILINE)
DISCARDED = re.compile(r"^\[campaign\] discarded: (\d+) prompt tokens, (\d+) tokens$", re.MULTILINE)


@dataclass(frozen=True)
class Traffic:
    """Requests and tokens of one process, its warm-ups, latency probes and discarded run among them.

    `warm_up_tokens` are prompt tokens of requests that are the same in each run, `template_tokens` what each
    other prompt may share with them. None where the engine didn't say.
    """

    requests: int
    concurrency: int
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    warm_up_tokens: int | None = None
    template_tokens: int | None = None

    def cacheable(self, engine: str) -> int | None:
        """Prompt tokens that may come from the prefix cache of a run that is cold.

        llama.cpp does as `cache_prompt: false` asks, so only the warm-ups, which don't ask, can hit there.
        """
        if self.warm_up_tokens is None or self.template_tokens is None:
            return None
        prompts = 0 if engine == "llama.cpp" else self.requests - WARM_UPS
        return self.warm_up_tokens + prompts * (self.template_tokens + SLACK_TOKENS)


def of(requests: Sequence[Request], log: str, point: BenchyPoint) -> Traffic:
    """The traffic of a run whose measured requests and output these are."""
    c, latency = point.concurrency, LATENCY_REQUESTS[point.latency_mode]
    count = WARM_UPS + latency + c * (point.runs + 1)
    warm_ups = [(int(delta), int(server)) for delta, server in WARM_UP.findall(log)]
    discarded = [(int(prompt), int(tokens)) for prompt, tokens in DISCARDED.findall(log)]
    prompts = [request.prompt_tokens for request in requests] + [prompt or None for prompt, _ in discarded]
    tokens = [request.tokens for request in requests] + [tokens for _, tokens in discarded]
    if len(warm_ups) != WARM_UPS or len(prompts) != c * (point.runs + 1):
        return Traffic(count, c)
    longest = max(server for _, server in warm_ups)
    warm_up_tokens = sum(server for _, server in warm_ups) + latency * longest
    sent, got = _sum(prompts), _sum(tokens)
    return Traffic(
        requests=count,
        concurrency=c,
        prompt_tokens=None if sent is None else sent + warm_up_tokens,
        generated_tokens=None if got is None else got + WARM_UPS + latency,
        warm_up_tokens=warm_up_tokens,
        template_tokens=max(0, *(delta for delta, _ in warm_ups)),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
