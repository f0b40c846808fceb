"""A socket that replays recorded reads in time, and logs when it really wrote each.

The model's name picks the case. A request for one token (a calibration) gets the same bytes at once. Runs in
a thread of its own, for clients in other processes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wire import chunk, error, send_json

CASES = Path(__file__).parent / "cases" / "sse"
MANIFEST: dict[str, dict[str, Any]] = json.loads((CASES / "manifest.json").read_text())
Reads = list[tuple[float, bytes]]


def reads_of(name: str) -> Reads:
    """The case's timed reads: (seconds since the request, bytes)."""
    rows = [json.loads(line) for line in (CASES / f"{name}.jsonl").read_text().splitlines()]
    return [(row["t"], base64.b64decode(row["b64"])) for row in rows]


@dataclass
class Written:
    """One replayed answer: the moments before and after each write, on time.perf_counter()'s clock."""

    name: str
    times: list[tuple[float, float]] = field(default_factory=list)


class Replay:
    """`with Replay() as replay:` serves every case at replay.base_url; replay.log fills as it does."""

    def __init__(self) -> None:
        self.log: list[Written] = []
        self.base_url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                received = time.perf_counter()
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if head.startswith("POST"):
                    await self._replay(json.loads(body), received, writer)
                else:
                    send_json(writer, 404, error("File Not Found", "not_found_error", 404))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _replay(self, body: dict[str, Any], received: float, writer: asyncio.StreamWriter) -> None:
        name = body["model"]
        written = Written(name)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for t, data in reads_of(name):
            if body["max_tokens"] > 1 and (wait := received + t - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            before = time.perf_counter()
            chunk(writer, data)
            written.times.append((before, time.perf_counter()))
        if body["max_tokens"] > 1:
            self.log.append(written)
        if MANIFEST[name]["connection"] == "reset":
            await writer.drain()
            raise ConnectionError
        chunk(writer, b"")
