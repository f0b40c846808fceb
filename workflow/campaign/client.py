"""Streamed requests as raw timed reads: what came off the socket when, and how it ended. No parsing.

Parsing waits until all answers of a pass are in, so that no stream's reads are late for another's JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from campaign.settings import Endpoint
from campaign.stream import Ending

MAX_BODY_BYTES = 64 * 1024 * 1024
CONNECT_WITHIN_S = 10.0
AFTER_DONE_S = 1.0
"""How long the end of a body may take after [DONE], so that its connection can be used again."""
LAG_EVERY_S = 0.005

_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]\s*$")


@dataclass
class RawAnswer:
    """One answer: reads as (seconds since `t0`, bytes), and how it ended.

    `t0` is the moment on time.perf_counter() at which the request's first byte was about to be sent, on a
    connection already open. `unreachable` says that no connection came about, `detail` why it ended badly.
    """

    t0: float
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    ending: Ending = "clean"
    status: int = 200
    content_type: str | None = None
    unreachable: bool = False
    detail: str | None = None


@dataclass(frozen=True)
class Flight:
    """Answers to requests sent at once; `lag_s` is the longest that the event loop was away meanwhile."""

    answers: list[RawAnswer]
    lag_s: float


class Client:
    """Keep-alive connections to one endpoint, one for each stream, and the event loop that they live in.

    Each stream has a connection pool of its own: a shared one looks through all its connections and requests
    at each start and end, which holds up 64 streams for a third of a second.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._url = endpoint.base_url.rstrip("/")
        self._timeout_s = timeout_s
        key = os.environ.get(endpoint.api_key_env or "")
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._certificates = httpx.create_ssl_context(trust_env=False)
        self._streams: list[httpx.AsyncClient] = []
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            self._runner.run(stream.aclose())
        self._runner.close()

    def send(self, bodies: Sequence[dict[str, Any]]) -> Flight:
        """Post the bodies to /chat/completions at once, over open connections, and read the answers."""
        # A full collection holds up every stream for tens of milliseconds; reads make no cycles worth one.
        gc.disable()
        try:
            return self._runner.run(self._together(bodies))
        finally:
            gc.enable()

    async def _together(self, bodies: Sequence[dict[str, Any]]) -> Flight:
        while len(self._streams) < len(bodies):
            self._streams.append(self._stream())
        url = f"{self._url}/chat/completions"
        pairs = [
            (stream, stream.build_request("POST", url, json=body))
            for stream, body in zip(self._streams, bodies, strict=False)
        ]
        await asyncio.gather(*(self._warm(stream) for stream, _ in pairs))
        lag = asyncio.create_task(_lag())
        answers = await asyncio.gather(*(self._answer(*pair) for pair in pairs))
        lag.cancel()
        return Flight(list(answers), await lag)

    def _stream(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers=self._headers,
            timeout=httpx.Timeout(self._timeout_s, connect=min(CONNECT_WITHIN_S, self._timeout_s)),
            verify=self._certificates,
            trust_env=False,
        )

    async def _warm(self, stream: httpx.AsyncClient) -> None:
        """Have a connection open and idle; whatever is wrong will show in the request itself."""
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await stream.get(f"{self._url}/models")

    async def _answer(self, stream: httpx.AsyncClient, request: httpx.Request) -> RawAnswer:
        answer = RawAnswer(time.perf_counter())

        async def trace(name: str, _: dict[str, Any]) -> None:
            # A connection that had to be opened after all is no part of the engine's time.
            if name == "http11.send_request_headers.started":
                answer.t0 = time.perf_counter()

        request.extensions["trace"] = trace
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                await self._read(stream, request, answer, limit)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            answer.unreachable, answer.ending, answer.detail = True, "reset", str(error)
        except (TimeoutError, httpx.TimeoutException):
            answer.ending, answer.detail = "timeout", f"no end of the answer within {self._timeout_s:g} s"
        except httpx.HTTPError as error:
            answer.ending, answer.detail = "reset", str(error) or type(error).__name__
        return answer

    async def _read(
        self, stream: httpx.AsyncClient, request: httpx.Request, answer: RawAnswer, limit: asyncio.Timeout
    ) -> None:
        response = await stream.send(request, stream=True)
        try:
            answer.status = response.status_code
            answer.content_type = response.headers.get("content-type")
            size, tail = 0, b""
            async for data in response.aiter_raw():
                answer.reads.append((time.perf_counter() - answer.t0, data))
                size += len(data)
                if size > MAX_BODY_BYTES:
                    answer.ending = "oversized"
                    return
                tail = (tail + data[-32:])[-32:]
                if _DONE.search(tail):
                    limit.reschedule(asyncio.get_running_loop().time() + AFTER_DONE_S)
        finally:
            await response.aclose()


async def _lag() -> float:
    """The longest overshoot of a short sleep until cancelled: what the loop was late by at worst."""
    worst = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            worst = max(worst, time.perf_counter() - before - LAG_EVERY_S)
    return worst
