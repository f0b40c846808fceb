"""The probe's connections: when a read is said to have come, and what a closed connection does."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time

import pytest
from campaign.arrival import StampedSocket, connect
from campaign.client import Client
from campaign.settings import Endpoint
from wire import chunk, event, send_json

BODY = {"model": "fake", "stream": True, "messages": []}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when a packet came")
@pytest.mark.parametrize("into", [False, True])
def test_a_read_is_timed_by_its_arrival_not_by_when_we_came_to_it(into: bool) -> None:
    async def reader() -> StampedSocket:
        return await connect("127.0.0.1", server.getsockname()[1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = asyncio.run(reader())
        theirs, _ = server.accept()
        with ours, theirs:
            before = time.perf_counter()
            theirs.send(b"token")
            after = time.perf_counter()
            time.sleep(0.1)
            data = bytearray(5)
            assert (ours.recv_into(data) if into else ours.recv(100)) in (5, b"token")
            assert before - 0.001 < ours.arrived < after + 0.02


class Scripted:
    """A server that answers each POST with the given writes, and then keeps the connection or not."""

    def __init__(self, *writes: bytes, close: bool) -> None:
        self.writes, self.close, self.connections = writes, close, 0

    def __enter__(self) -> Endpoint:
        self._loop, ready = asyncio.new_event_loop(), threading.Event()

        async def serve() -> None:
            self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
            ready.set()

        self._thread = threading.Thread(
            target=lambda: (self._loop.run_until_complete(serve()), self._loop.run_forever()), daemon=True
        )
        self._thread.start()
        assert ready.wait(10)
        return Endpoint(f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1", "fake")

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while head := await reader.read(65536):
            if head.startswith(b"GET"):
                send_json(writer, 404, {})
                continue
            for data in self.writes:
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0.01)
            if self.close:
                writer.close()
                return


class Chunked:
    """Stands in for a writer, to make a chunk's bytes."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def chunked(*bodies: bytes) -> bytes:
    made = Chunked()
    for body in bodies:
        chunk(made, body)  # type: ignore[arg-type]
    return made.data


def test_framing_may_be_split_anywhere_and_a_connection_is_kept() -> None:
    stream = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(event({"a": 1}), b"data: [DONE]\n\n", b"")
    server = Scripted(*(stream[i : i + 7] for i in range(0, len(stream), 7)), close=False)
    with server as endpoint, Client(endpoint, 10) as client:
        for _ in range(2):
            (answer,) = client.send([BODY]).answers
            assert (answer.ending, answer.status, answer.content_type) == ("clean", 200, "text/event-stream")
            assert b"".join(data for _, data in answer.reads) == event({"a": 1}) + b"data: [DONE]\n\n"
            times = [t for t, _ in answer.reads]
            assert times == sorted(times)
    assert server.connections == 1


def test_a_connection_that_the_server_closed_without_a_word_is_made_anew() -> None:
    stream = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"data: [DONE]\n\n", b"")
    server = Scripted(stream, close=True)
    with server as endpoint, Client(endpoint, 10) as client:
        assert [client.send([BODY]).answers[0].ending for _ in range(3)] == ["clean"] * 3
    assert server.connections == 3


@pytest.mark.parametrize(
    ("head", "body", "ending"),
    [
        (HEAD + b"\r\n", b"data: [DONE]\n\n", "clean"),
        (HEAD + b"Content-Length: 14\r\n\r\n", b"data: [DONE]\n\n", "clean"),
        (HEAD + b"Content-Length: 99\r\n\r\n", b"data: [DONE]\n\n", "reset"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + HEAD + b"\r\n", b"data: [DONE]\n\n", "clean"),
        (b"", b"", "reset"),
        (b"no HTTP at all\r\n\r\n", b"", "reset"),
    ],
)
def test_every_end_of_a_body(head: bytes, body: bytes, ending: str) -> None:
    with Scripted(head, body, close=True) as endpoint, Client(endpoint, 10) as client:
        (answer,) = client.send([BODY]).answers
    assert answer.ending == ending
    assert (answer.detail is None) == (ending == "clean")
