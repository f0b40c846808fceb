"""Streamed requests as raw timed reads: what came off the socket when, and how it ended.

A read's time is that of its arrival (campaign.arrival). While answers come in only HTTP's framing is taken
off; the rest waits until all answers of a pass are in, so that no stream waits for another's parsing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import re
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import h11
import httpx

from campaign import arrival
from campaign.arrival import StampedSocket
from campaign.settings import Endpoint
from campaign.stream import Ending

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 128 * 1024
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
    """Keep-alive connections to one endpoint, one for each stream, and the event loop that they live in."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._address = httpx.URL(endpoint.base_url.rstrip("/"))
        self._timeout_s = timeout_s
        self._headers = {
            "Host": self._address.netloc.decode("ascii"),
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "User-Agent": "campaign-probe",
        }
        if key := os.environ.get(endpoint.api_key_env or ""):
            self._headers["Authorization"] = f"Bearer {key}"
        elif self._address.userinfo:
            pair = f"{self._address.username}:{self._address.password}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        secure = self._address.scheme == "https"
        self._certificates = httpx.create_ssl_context(trust_env=False) if secure else None
        self._connections: list[_Connection | None] = []
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._close())
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
        requests = [self._request("POST", "/chat/completions", body) for body in bodies]
        self._connections += [None] * (len(requests) - len(self._connections))
        await asyncio.gather(*(self._warm(stream) for stream in range(len(requests))))
        lag = asyncio.create_task(_lag())
        answers = await asyncio.gather(*(self._answer(*numbered) for numbered in enumerate(requests)))
        lag.cancel()
        return Flight(list(answers), await lag)

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> _Request:
        """The request's bytes, made before any clock starts."""
        made = httpx.Request(method, f"{self._address}{path}", headers=self._headers, json=body)
        head = h11.Request(method=method, target=made.url.raw_path, headers=made.headers.raw)
        state = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        parts = [state.send(head), state.send(h11.Data(made.content)), state.send(h11.EndOfMessage())]
        return _Request(b"".join(part for part in parts if part), state)

    async def _warm(self, stream: int) -> None:
        """Have a connection open and idle; whatever is wrong will show in the request itself."""
        with contextlib.suppress(OSError):
            # One that was used before may have been closed by the server without our knowing it yet.
            connection = await self._open(stream)
            async with asyncio.timeout(CONNECT_WITHIN_S) as limit:
                await connection.exchange(self._request("GET", "/models"), limit)
        with contextlib.suppress(OSError):
            await self._open(stream)

    async def _answer(self, stream: int, request: _Request) -> RawAnswer:
        try:
            connection = await self._open(stream)
        except OSError as error:
            return RawAnswer(time.perf_counter(), ending="reset", unreachable=True, detail=_cause(error))
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await connection.exchange(request, limit)
        except TimeoutError:
            return connection.give_up(f"no end of the answer within {self._timeout_s:g} s")

    async def _open(self, stream: int) -> _Connection:
        """The stream's connection, made anew unless it can be used; an OSError if that fails."""
        known = self._connections[stream]
        if known is not None and known.idle:
            return known
        if known is not None:
            known.close()
        secure = self._certificates
        async with asyncio.timeout(min(CONNECT_WITHIN_S, self._timeout_s)):
            host, port = self._address.raw_host.decode("ascii"), self._address.port or (443 if secure else 80)
            socket = await arrival.connect(host, port)
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(socket),
                sock=socket,
                ssl=secure,
                server_hostname=host if secure else None,
            )
        self._connections[stream] = made
        return made

    async def _close(self) -> None:
        for connection in self._connections:
            if connection is not None:
                connection.close()
        # Transports close in the loop's next turn.
        await asyncio.sleep(0)


@dataclass
class _Request:
    """A request ready to be written, and the HTTP state from which its answer is read."""

    data: bytes
    state: h11.Connection


class _Connection(asyncio.Protocol):
    """One connection: reads are timed as they come, then stripped of HTTP's framing."""

    def __init__(self, socket: StampedSocket) -> None:
        self._socket = socket
        self._transport: asyncio.Transport | None = None
        self._raw: list[tuple[float, bytes]] = []
        self._answer = RawAnswer(0.0)
        self._state: h11.Connection | None = None
        self._limit: asyncio.Timeout | None = None
        self._ended: asyncio.Future[None] | None = None
        self._size, self._tail = 0, b""

    @property
    def idle(self) -> bool:
        """Whether a request can be written now, as far as is known."""
        open_still = self._transport is not None and not self._transport.is_closing()
        return open_still and self._state is None

    async def exchange(self, request: _Request, limit: asyncio.Timeout) -> RawAnswer:
        """Write the request at once and read its answer; `limit` is brought forward after [DONE]."""
        assert self._transport is not None
        self._raw, self._size, self._tail = [], 0, b""
        self._state, self._limit = request.state, limit
        self._ended = asyncio.get_running_loop().create_future()
        self._answer = RawAnswer(time.perf_counter())
        self._transport.write(request.data)
        await self._ended
        return self._answer

    def give_up(self, detail: str) -> RawAnswer:
        """Drop the connection and give what came so far."""
        self._parse()
        if self._state is not None:
            self._end("timeout", detail)
        return self._answer

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready for a request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Note when it came; what several connections read in one turn is parsed in the next."""
        self._raw.append((self._socket.arrived, data))
        if len(self._raw) == 1:
            asyncio.get_running_loop().call_soon(self._parse)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a body without a length, or of an answer before its end."""
        self._parse()
        if self._state is None:
            return
        if exc is not None:
            self._end("reset", _cause(exc))
        elif self._state.their_state is h11.SEND_RESPONSE:
            self._end("reset", "the server closed the connection without an answer")
        else:
            self._raw.append((time.perf_counter(), b""))
            self._parse()

    def _parse(self) -> None:
        """Take HTTP's framing off the reads at hand."""
        raw, self._raw = self._raw, []
        for t, data in raw:
            if self._state is None:
                return
            try:
                self._state.receive_data(data)
                for event in self._events(self._state):
                    self._take(event, t)
            except h11.RemoteProtocolError as error:
                self._end("reset", str(error))

    def _events(self, state: h11.Connection) -> Iterator[h11.Event]:
        while self._state is state:
            event = state.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            assert isinstance(event, h11.Event)
            yield event

    def _take(self, event: h11.Event, t: float) -> None:
        answer = self._answer
        if isinstance(event, h11.Data):
            data = bytes(event.data)
            answer.reads.append((t - answer.t0, data))
            self._size += len(data)
            self._tail = (self._tail + data[-32:])[-32:]
            if self._size > MAX_BODY_BYTES:
                self._end("oversized", None)
            elif self._limit is not None and not self._limit.expired() and _DONE.search(self._tail):
                soon = asyncio.get_running_loop().time() + AFTER_DONE_S
                self._limit.reschedule(min(soon, self._limit.when() or soon))
        elif isinstance(event, h11.Response):
            answer.status = event.status_code
            kinds = (value for name, value in event.headers if name == b"content-type")
            answer.content_type = next((kind.decode("latin-1") for kind in kinds), None)
        elif isinstance(event, h11.EndOfMessage):
            self._end("clean", None)

    def _end(self, ending: Ending, detail: str | None) -> None:
        """The answer is over; the connection stays open only if HTTP says that it can be used again."""
        state, self._state, self._limit = self._state, None, None
        self._answer.ending, self._answer.detail = ending, detail
        done = state is not None and state.our_state is state.their_state is h11.DONE
        if state is None or not done or state.trailing_data[0] or ending != "clean":
            self.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _cause(error: Exception) -> str:
    """Why a connection failed, without the address that Python's own text names."""
    if isinstance(error, TimeoutError):
        return "no answer to the attempt to connect"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or type(error).__name__}"
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else "no connection came about"


async def _lag() -> float:
    """The longest overshoot of a short sleep until cancelled: what the loop was late by at worst."""
    worst = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            worst = max(worst, time.perf_counter() - before - LAG_EVERY_S)
    return worst
