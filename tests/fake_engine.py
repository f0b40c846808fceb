"""A FAKE engine, for tests only: fault injection and known truth. It runs no model.

It speaks enough HTTP/1.1 and the OpenAI API on a real loopback socket that each write is under control, keeps
an exact schedule, and logs (one JSON line a request) the moments at which it really wrote, on the clock of
time.perf_counter(): these are the truth that an instrument is compared with.

    python tests/fake_engine.py --host 127.0.0.1 --port P [--model NAME] [--ctx N] [--tps R] [--ttft S]
                                [--tokens-per-delta K] [--quirk NAME[=VALUE] …] [--log FILE]

Quirks can also ride on a request's model name: "fake+error-mid=4+no-usage". VALUE is a count of tokens if the
list doesn't say otherwise. The last line is of the process, not of a request; die-request counts all
completions, those of a readiness check among them.

    error-500 error-first error-mid[=N] drop[=N] close[=N] early-stop[=N] hang hang-mid[=N] empty done-only
    not-sse hidden-thinking[=N] one-delta buffered reasoning[=N] role-early tool-calls no-usage no-continuous
    no-timings cached[=N] busy[=N running requests of someone else, in /metrics] no-metrics
    die-request=N[:SIGNAL] die-after=SECONDS[:SIGNAL] slow-load=SECONDS exit-boot=CODE:TEXT
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wire import choices, chunk, context_error, error, event, send, send_json

TEMPLATE_TOKENS = 8
NAMES = """
    error-500 error-first error-mid drop close early-stop hang hang-mid empty done-only not-sse
    hidden-thinking one-delta buffered reasoning role-early tool-calls no-usage no-continuous no-timings
    cached busy no-metrics die-request die-after slow-load exit-boot
"""
QUIRKS = frozenset(NAMES.split())
Quirks = dict[str, str]


def parse_quirks(items: Iterable[str]) -> Quirks:
    """{"name": "value"} from NAME or NAME=VALUE; an unknown name is a ValueError."""
    pairs = dict(item.partition("=")[::2] for item in items)
    if unknown := sorted(set(pairs) - QUIRKS):
        raise ValueError(f"unknown quirk {unknown[0]!r}")
    return pairs


@dataclass
class Settings:
    """What the engine does for each request: times in seconds, `tps` in tokens per second and stream."""

    model: str = "fake"
    ctx: int = 131072
    tps: float = 500.0
    ttft: float = 0.002
    tokens_per_delta: int = 1
    quirks: Quirks = field(default_factory=dict)
    log: Path | None = None


@dataclass
class Job:
    """One completion request as understood, with what was written when."""

    number: int
    received: float
    model: str
    prompt_tokens: int
    max_tokens: int
    quirks: Quirks
    body: dict[str, Any]
    cached: int = 0
    sent: int = 0
    writes: list[tuple[float, int]] = field(default_factory=list)

    def value(self, quirk: str, default: int) -> int | None:
        """The count that a quirk was given, its default, or None where the quirk is not set."""
        return None if quirk not in self.quirks else int(self.quirks[quirk] or default)


class Finish(Exception):
    """The connection is to be closed now; `abort` resets it."""

    def __init__(self, abort: bool = False) -> None:
        super().__init__()
        self.abort = abort


class FakeEngine:
    """The engine: `start` gives its port, `close` ends it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loading_until = 0.0
        self.requests = 0
        self.running = 0
        self.totals = {"prompt": 0, "cached": 0, "predicted": 0}
        self.jobs: list[Job] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port."""
        if seconds := self.settings.quirks.get("slow-load"):
            self.loading_until = time.perf_counter() + float(seconds)
        self._server = await asyncio.start_server(self._connection, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop what is open."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self._answer(head, reader, writer)
        except Finish as finish:
            if finish.abort:
                writer.transport.abort()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = time.perf_counter()
        request_line, *fields = head.decode("latin-1").split("\r\n")
        path = request_line.split(" ")[1].split("?")[0]
        length = next((int(f.split(":")[1]) for f in fields if f.lower().startswith("content-length:")), 0)
        raw = await reader.readexactly(length)
        if time.perf_counter() < self.loading_until:
            send_json(writer, 503, error("Loading model", "unavailable_error", 503))
        elif path == "/health":
            send_json(writer, 200, {"status": "ok"})
        elif path == "/v1/models":
            send_json(
                writer, 200, {"object": "list", "data": [{"id": self.settings.model, "object": "model"}]}
            )
        elif path == "/metrics" and "no-metrics" not in self.settings.quirks:
            send(writer, 200, "text/plain; version=0.0.4", self._metrics().encode())
        elif path == "/v1/chat/completions":
            await self._complete(json.loads(raw), received, writer)
        else:
            send_json(writer, 404, error("File Not Found", "not_found_error", 404))
        await writer.drain()

    def _metrics(self) -> str:
        busy = int(self.settings.quirks.get("busy") or 1) if "busy" in self.settings.quirks else 0
        values = {
            "prompt_tokens_total": ("counter", self.totals["prompt"]),
            "prompt_tokens_cached_total": ("counter", self.totals["cached"]),
            "tokens_predicted_total": ("counter", self.totals["predicted"]),
            "requests_processing": ("gauge", self.running + busy),
            "requests_deferred": ("gauge", 0),
        }
        return "".join(f"# TYPE llamacpp:{k} {kind}\nllamacpp:{k} {v}\n" for k, (kind, v) in values.items())

    async def _complete(self, body: dict[str, Any], received: float, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        job = self._job(body, received)
        self.jobs.append(job)
        if "die-request" in job.quirks:
            nth, _, name = job.quirks["die-request"].partition(":")
            if self.requests >= int(nth):
                os.kill(os.getpid(), getattr(signal, name or "SIGKILL"))
        if job.prompt_tokens > self.settings.ctx:
            send_json(writer, 400, context_error(job.prompt_tokens, self.settings.ctx))
            return
        if "error-500" in job.quirks:
            send_json(writer, 500, error("engine failed", "server_error", 500))
            return
        self.running += 1
        try:
            await (self._stream if body.get("stream") else self._whole)(job, writer)
        finally:
            self.running -= 1
            self.totals["prompt"] += job.prompt_tokens - job.cached
            self.totals["cached"] += job.cached
            self.totals["predicted"] += job.sent
            self._record(job)

    def _job(self, body: dict[str, Any], received: float) -> Job:
        name, *ridden = str(body.get("model", "")).split("+")
        quirks = self.settings.quirks | parse_quirks(ridden)
        texts = [str(message.get("content") or "") for message in body.get("messages", [])]
        job = Job(
            number=self.requests,
            received=received,
            model=name,
            prompt_tokens=TEMPLATE_TOKENS + sum(len(text.split()) for text in texts),
            max_tokens=int(body.get("max_completion_tokens") or body.get("max_tokens") or 16),
            quirks=quirks,
            body=body,
        )
        job.cached = min(job.value("cached", job.prompt_tokens - 1) or 0, job.prompt_tokens - 1)
        job.max_tokens = min(job.value("early-stop", 3) or job.max_tokens, job.max_tokens)
        return job

    def _record(self, job: Job) -> None:
        if self.settings.log is not None:
            line = {
                "request": job.number,
                "model": job.model,
                "quirks": job.quirks,
                "received": job.received,
                "prompt_tokens": job.prompt_tokens,
                "writes": job.writes,
            }
            with self.settings.log.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")

    async def _whole(self, job: Job, writer: asyncio.StreamWriter) -> None:
        if "hang" in job.quirks:
            await asyncio.Event().wait()
        await asyncio.sleep(self.settings.ttft)
        job.sent = job.max_tokens
        called = bool(job.body.get("tools")) and job.body["messages"][-1].get("role") != "tool"
        message: dict[str, Any] = {"role": "assistant", "content": None if called else " w" * job.sent}
        if called:
            function = job.body["tools"][0]["function"]["name"]
            call = {"id": "call_1", "type": "function", "function": {"name": function, "arguments": "{}"}}
            message["tool_calls"] = [call]
        finish = "tool_calls" if called else "length"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        answer = {"object": "chat.completion", "model": job.model, "choices": [choice], "usage": usage(job)}
        job.writes.append((time.perf_counter(), job.sent))
        send_json(writer, 200, answer)

    async def _stream(self, job: Job, writer: asyncio.StreamWriter) -> None:
        if "hang" in job.quirks:
            await asyncio.Event().wait()
        if "not-sse" in job.quirks:
            await self._whole(job, writer)
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if "role-early" in job.quirks:
            chunk(writer, event(choices({"role": "assistant", "content": ""})))
        held = b""
        async for text in self._events(job):
            if job.quirks.keys() & {"buffered", "one-delta"}:
                held += text
            else:
                job.writes.append((time.perf_counter(), job.sent))
                chunk(writer, text)
            if job.sent == job.value("error-mid", job.max_tokens // 2):
                chunk(writer, event(error("engine failed", "InternalServerError", 500)) + b"data: [DONE]\n\n")
                chunk(writer, b"")
                return
            if job.sent == job.value("hang-mid", job.max_tokens // 2):
                await asyncio.Event().wait()
            for quirk in ("drop", "close"):
                if job.sent == job.value(quirk, job.max_tokens // 2):
                    await writer.drain()
                    if quirk == "close":
                        chunk(writer, b"")
                    raise Finish(abort=quirk == "drop")
        if held:
            job.writes.append((time.perf_counter(), job.sent))
        chunk(writer, held + self._tail(job))
        chunk(writer, b"")

    async def _events(self, job: Job) -> AsyncIterator[bytes]:
        """The token-bearing events, each at its time; `job.sent` counts the tokens that each completes."""
        begin = job.received + self.settings.ttft * (job.prompt_tokens - job.cached) / job.prompt_tokens
        if job.quirks.keys() & {"empty", "done-only", "error-first"}:
            await asyncio.sleep(self.settings.ttft)
            return
        hidden = job.value("hidden-thinking", job.max_tokens - 2) or 0
        begin += hidden / self.settings.tps
        job.sent = hidden
        step = job.max_tokens if "one-delta" in job.quirks else self.settings.tokens_per_delta
        tick = begin
        while job.sent < job.max_tokens:
            if (wait := tick - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tokens = min(step, job.max_tokens - job.sent)
            job.sent += tokens
            yield event(self._delta(job, tokens))
            tick = begin + (job.sent - hidden) / self.settings.tps

    def _delta(self, job: Job, tokens: int) -> dict[str, Any]:
        text = " w" * tokens
        if job.sent <= (job.value("reasoning", job.max_tokens // 2) or 0):
            delta: dict[str, Any] = {"reasoning_content": text}
        elif "tool-calls" in job.quirks:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        else:
            delta = {"content": text}
        data = choices(delta)
        options = job.body.get("stream_options") or {}
        if options.get("continuous_usage_stats") and not job.quirks.keys() & {"no-usage", "no-continuous"}:
            data["usage"] = usage(job)
        if job.body.get("timings_per_token") and "no-timings" not in job.quirks:
            data["timings"] = timings(job)
        return data

    def _tail(self, job: Job) -> bytes:
        done = b"data: [DONE]\n\n"
        if "empty" in job.quirks:
            return b""
        if "done-only" in job.quirks:
            return done
        if "error-first" in job.quirks:
            return event(error("engine failed", "InternalServerError", 504)) + done
        finish = "stop" if "early-stop" in job.quirks else "length"
        last = event(choices({}, "tool_calls" if "tool-calls" in job.quirks else finish))
        data: dict[str, Any] = choices(None)
        options = job.body.get("stream_options") or {}
        if options.get("include_usage") and "no-usage" not in job.quirks:
            data["usage"] = usage(job)
        if not job.quirks.keys() & {"no-timings", "no-usage", "hidden-thinking"}:
            data["timings"] = timings(job)
        return last + (event(data) if len(data) > 3 else b"") + done


def usage(job: Job) -> dict[str, Any]:
    """The counts so far."""
    return {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": job.sent,
        "total_tokens": job.prompt_tokens + job.sent,
        "prompt_tokens_details": {"cached_tokens": job.cached},
    }


def timings(job: Job) -> dict[str, Any]:
    """llama.cpp's own timings, taken from the moments of the writes."""
    first = job.writes[0][0] if job.writes else time.perf_counter()
    last = job.writes[-1][0] if job.writes else first
    return {
        "cache_n": job.cached,
        "prompt_n": job.prompt_tokens - job.cached,
        "prompt_ms": (first - job.received) * 1000,
        "predicted_n": job.sent,
        "predicted_ms": max((last - first) * 1000, 0.001),
    }


def say(text: str) -> None:
    """A line of log, as llama.cpp writes them."""
    stamp = f"0.{int(time.perf_counter()) % 60:02d}.{int(time.perf_counter() * 1000) % 1000:03d}.000"
    print(f"{stamp} I srv  llama_server: {text}", file=sys.stderr, flush=True)


class Arguments(argparse.ArgumentParser):
    """Refuses a bad command line as llama.cpp does."""

    def error(self, message: str) -> Any:
        print(f"error: invalid argument: {message}", file=sys.stderr)
        sys.exit(1)


async def serve(settings: Settings, host: str, port: int) -> None:
    """Run until SIGTERM or SIGINT."""
    engine = FakeEngine(settings)
    port = await engine.start(host, port)
    loop = asyncio.get_running_loop()
    if "die-after" in settings.quirks:
        seconds, _, name = settings.quirks["die-after"].partition(":")
        loop.call_later(float(seconds), os.kill, os.getpid(), getattr(signal, name or "SIGKILL"))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    say(f"listening on http://{host}:{port}")
    if wait := engine.loading_until - time.perf_counter():
        loop.call_later(max(wait, 0), say, "model loaded")
    await stop.wait()
    say("cleaning up before exit...")
    await engine.close()


def main() -> int:
    """The command."""
    parser = Arguments(description="A fake engine for tests; see the module's text.", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default=Settings.model)
    parser.add_argument("--ctx", type=int, default=Settings.ctx)
    parser.add_argument("--tps", type=float, default=Settings.tps)
    parser.add_argument("--ttft", type=float, default=Settings.ttft)
    parser.add_argument("--tokens-per-delta", type=int, default=1)
    parser.add_argument("--quirk", action="append", default=[])
    parser.add_argument("--log", type=Path)
    options = vars(parser.parse_args())
    host, port = options.pop("host"), options.pop("port")
    try:
        quirks = parse_quirks(options.pop("quirk"))
    except ValueError as problem:
        parser.error(str(problem))
    say(f"loading model '{options['model']}'")
    if "exit-boot" in quirks:
        code, _, text = quirks["exit-boot"].partition(":")
        print(text or "error: failed to load model", file=sys.stderr, flush=True)
        return int(code or 1)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Settings(quirks=quirks, **options), host, port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
