"""A warm-up that the engine didn't answer is a failed one, whatever the status line said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from campaign import warm_up
from campaign.schema import WarmUp
from campaign.settings import Endpoint


@contextmanager
def answering(status: int, body: object) -> Iterator[Endpoint]:
    """A server that gives one answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Endpoint(f"http://127.0.0.1:{server.server_port}/v1", "m")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


ANSWERS = {
    "a token": (200, {"choices": [{"message": {"content": "yes"}}]}, "ok"),
    "an error under HTTP 200": (200, {"error": {"message": "boom"}}, "failed"),
    "no choice": (200, {"choices": []}, "failed"),
    "not an object": (200, [], "failed"),
    "an HTTP error": (500, {"error": {"message": "boom"}}, "failed"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_warm_up_needs_an_answer(answer: str) -> None:
    status, body, expected = ANSWERS[answer]
    with answering(status, body) as endpoint:
        measured = warm_up.measure(endpoint, WarmUp(requests=2, prompt_tokens=8), timeout_s=10)
    assert measured.status == expected
    if expected == "ok":
        assert len(measured.metrics["request_s"].values) == 2
    else:
        assert measured.metrics == {}
        assert measured.reason is not None


def test_nobody_there_is_a_failed_warm_up() -> None:
    measured = warm_up.measure(Endpoint("http://127.0.0.1:9/v1", "m"), WarmUp(), timeout_s=10)
    assert (measured.status, measured.reason and measured.reason.cls) == ("failed", "connection")
