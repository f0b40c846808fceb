"""Requests made after a boot and thrown away, so that the first measured pass isn't the engine's first."""

from __future__ import annotations

import time
import uuid

import httpx

from campaign.outcome import Measurement, Reason, metrics_of
from campaign.readiness import headers
from campaign.schema import WarmUp
from campaign.settings import Endpoint


def measure(endpoint: Endpoint, settings: WarmUp, timeout_s: float) -> Measurement:
    """Send the warm-up requests one after another; metric request_s, seconds each."""
    seconds: list[float] = []
    # Some engines close a kept-alive connection after an answer without saying so.
    fresh = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(timeout=timeout_s, trust_env=False, headers=headers(endpoint), limits=fresh) as client:
        for _ in range(settings.requests):
            began = time.perf_counter()
            try:
                answer = client.post(f"{endpoint.base_url}/chat/completions", json=_body(endpoint, settings))
            except httpx.HTTPError as error:
                return _failed("connection", f"{type(error).__name__}: {error}")
            if answer.status_code != 200 or not _answered(answer):
                return _failed("http_error", f"HTTP {answer.status_code}: {answer.text[:500]}")
            seconds.append(time.perf_counter() - began)
    return Measurement(status="ok", metrics=metrics_of(request_s=("s", seconds)))


def _answered(answer: httpx.Response) -> bool:
    """Whether an answer has a choice; engines have put errors under HTTP 200."""
    try:
        return bool(answer.json()["choices"])
    except (ValueError, KeyError, TypeError):
        return False


def _body(endpoint: Endpoint, settings: WarmUp) -> dict[str, object]:
    words = " ".join(f"word{number}" for number in range(settings.prompt_tokens // 3))
    return {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": f"{uuid.uuid4().hex} Repeat: {words}"}],
        "max_tokens": settings.max_tokens,
        "temperature": 0,
    }


def _failed(cls: str, evidence: str) -> Measurement:
    reason = Reason.model_validate(
        {"class": cls, "summary": "a warm-up request failed", "evidence": " ".join(evidence.split())[:500]}
    )
    return Measurement(status="failed", reason=reason)
