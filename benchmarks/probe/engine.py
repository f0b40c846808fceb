"""The fake engine of tests/ as the source of truth: what arrived when, what was written when.

    python -m probe.engine --tps R --tokens-per-delta K --log FILE

prints its port. The log has one JSON line a streamed answer, times on time.perf_counter()'s clock, which all
processes of a Linux machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import hashlib
import json
import selectors
import signal
import socket
import time
from pathlib import Path
from typing import Any

from campaign.arrival import StampedSocket
from fake_engine import FakeEngine, Job, Settings

TTFT_S = 0.05


def key_of(text: str) -> str:
    """By which a request is known: a digest of its last message."""
    return hashlib.sha256(text.encode()).hexdigest()


class _Socket(StampedSocket):
    """A connection of the engine; `sends` are the moments at which it was really written to."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sends: list[float] = []

    def send(self, data: Any, flags: int = 0, /) -> int:
        self.sends.append(time.perf_counter())
        return super().send(data, flags)

    def sent_after(self, moment: float) -> float:
        """The moment of the first write from then on."""
        return self.sends[bisect.bisect_left(self.sends, moment)]


class _Listener(socket.socket):
    """Accepts connections as _Socket and keeps them by the peer's address."""

    def __init__(self) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.known: dict[Any, _Socket] = {}
        self.bind(("127.0.0.1", 0))

    def accept(self) -> tuple[socket.socket, Any]:
        plain, address = super().accept()
        made = _Socket(plain.family, plain.type, plain.proto, plain.detach())
        self.known[address] = made
        return made, address


class TruthEngine(FakeEngine):
    """Also gives token ids where they are asked for, as vLLM does, so that each tool gets what it can use."""

    def __init__(self, settings: Settings, log: Path) -> None:
        super().__init__(settings)
        self._path = log
        self._listener = _Listener()
        self._ids: dict[Any, str | None] = {}
        self._about: dict[int, dict[str, Any]] = {}
        self._next: dict[str, Any] = {}

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        self._server = await asyncio.start_server(self._connection, sock=self._listener, backlog=512)
        return int(self._listener.getsockname()[1])

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = dict(line.partition(": ")[::2] for line in head.decode("latin-1").split("\r\n"))
        lower = {name.lower(): value for name, value in fields.items()}
        self._ids[writer.get_extra_info("peername")] = lower.get("x-request-id")
        await super()._answer(head, reader, writer)

    async def _complete(self, body: dict[str, Any], received: float, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        self._next = {"id": self._ids[peer], "socket": self._listener.known[peer]}
        self._next["arrived"] = self._next["socket"].arrived
        # It makes its job before it first waits.
        await super()._complete(body, received, writer)

    def _job(self, body: dict[str, Any], received: float) -> Job:
        job = super()._job(body, received)
        self._about[job.number] = self._next | {"key": key_of(str(body["messages"][-1].get("content") or ""))}
        return job

    def _delta(self, job: Job, tokens: int) -> dict[str, Any]:
        data = super()._delta(job, tokens)
        if job.body.get("return_token_ids"):
            data["choices"][0]["token_ids"] = [1] * tokens
        return data

    def _record(self, job: Job) -> None:
        about = self._about.pop(job.number)
        if not job.body.get("stream"):
            return
        (first, n_first), (last, n) = job.writes[0], job.writes[-1]
        sent = about.pop("socket").sent_after
        line = about | {"first": sent(first), "n_first": n_first, "last": sent(last), "n": n}
        with self._path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")


async def _serve(settings: Settings, log: Path) -> None:
    engine = TruthEngine(settings, log)
    print(await engine.start(), flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await engine.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="The fake engine, with a log of what really happened.")
    parser.add_argument("--tps", type=float, required=True)
    parser.add_argument("--tokens-per-delta", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    args = parser.parse_args()
    settings = Settings(tps=args.tps, ttft=TTFT_S, tokens_per_delta=args.tokens_per_delta)
    # epoll waits for whole milliseconds, select for microseconds: the schedule has steps of half a one.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_serve(settings, args.log))


if __name__ == "__main__":
    main()
