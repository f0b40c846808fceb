"""Ready means a generated token: /health and /v1/models have both been green on dead engines."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import httpx

from campaign.settings import Endpoint

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
REFUSAL_PATIENCE_S = 10.0
TOKEN_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")


class NotReady(Exception):
    """The engine did not come to its first token; `cls` is refused, timeout or died."""

    def __init__(self, cls: str, summary: str, evidence: str | None = None) -> None:
        super().__init__(summary)
        self.cls, self.summary, self.evidence = cls, summary, evidence


def headers(endpoint: Endpoint) -> dict[str, str]:
    """The authorisation that the lane names, read from its environment variable at the last moment."""
    key = os.environ.get(endpoint.api_key_env or "")
    return {"Authorization": f"Bearer {key}"} if key else {}


def wait(endpoint: Endpoint, budget_s: float, died: Callable[[], bool]) -> float:
    """Seconds until the engine's first token. Raises NotReady if it dies, refuses or takes too long."""
    began = time.monotonic()
    pause, refused_since, last = FIRST_WAIT_S, None, "no answer yet"
    while (waited := time.monotonic() - began) < budget_s:
        if died():
            raise NotReady("died", "the engine died before its first token")
        answer = generate_one(endpoint, timeout_s=max(1.0, min(120.0, budget_s - waited)))
        if answer is None:
            return time.monotonic() - began
        status, last = answer
        if status in (400, 401, 403, 404, 422):
            refused_since = refused_since or time.monotonic()
            if time.monotonic() - refused_since > REFUSAL_PATIENCE_S:
                raise NotReady("refused", f"the engine refuses a one-token request with HTTP {status}", last)
        else:
            refused_since = None
        time.sleep(pause)
        pause = min(pause * 1.3, LONGEST_WAIT_S)
    raise NotReady("timeout", f"no token within {budget_s:g} s of the start", last)


def generate_one(endpoint: Endpoint, timeout_s: float) -> tuple[int, str] | None:
    """Ask for a token: None if one came, else the HTTP status (0 for none) and what was said instead."""
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": "Say yes."}],
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
    }
    url = f"{endpoint.base_url}/chat/completions"
    deadline = time.monotonic() + timeout_s
    try:
        with (
            httpx.Client(timeout=httpx.Timeout(timeout_s, connect=5.0), trust_env=False) as client,
            client.stream("POST", url, json=body, headers=headers(endpoint)) as response,
        ):
            if response.status_code != 200:
                return response.status_code, next(response.iter_text(2000), "")[:2000]
            token = False
            for line in response.iter_lines():
                token = token or _has_token(line)
                if time.monotonic() > deadline:
                    return 200, "the answer took too long"
    except httpx.HTTPError as error:
        return 0, f"{type(error).__name__}: {error}"
    return None if token else (200, "the stream held no token")


def _has_token(line: str) -> bool:
    if not line.startswith("data:"):
        return False
    try:
        choices: Any = json.loads(line[5:])["choices"]
        return any(choice["delta"].get(key) for choice in choices for key in TOKEN_KEYS)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
