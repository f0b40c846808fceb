"""Cells on llama.cpp: a good one explains every token that the engine counted, a foreign request shows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import synthetic
import yaml
from campaign import instruments, matrix
from campaign.matrix import Matrix
from campaign.outcome import Measurement
from campaign.settings import Endpoint
from harnesses import ENVS
from real_engine import model, running

pytestmark = pytest.mark.engine
BENCHY = {"instrument": "llama_benchy", "pp": [96], "tg": [24], "runs": 1}


@pytest.fixture(scope="module")
def engine() -> Iterator[Endpoint]:
    with running("-np", "2", "-kvu") as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all cells: the tokenizer and the book are made once."""
    return tmp_path_factory.mktemp("cells")


@pytest.fixture
def work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CAMPAIGN_ENVS", str(ENVS))


def plan(**changes: Any) -> Matrix:
    """A campaign of one block whose lane serves the model that the engine has loaded."""
    synthetic.campaign(instruments=[BENCHY | changes], order=["base"])
    lane = synthetic.LANE | {"model": {"name": "smollm2", "path": str(model())}}
    Path("config/lanes/toy.yaml").write_text(yaml.safe_dump(lane))
    return matrix.load("toy")


def measure(planned: Matrix, endpoint: Endpoint) -> Measurement:
    return instruments.measure(planned.cells[0], endpoint, planned, Path("cell.raw"))


@pytest.mark.parametrize(
    "changes", [{"depth": [64], "concurrency": [2]}, {"latency_mode": "generation"}], ids=str
)
def test_a_good_cell_explains_every_token(changes: dict[str, Any], engine: Endpoint, work: None) -> None:
    got = measure(plan(**changes), engine)
    assert (got.status, got.reason) == ("ok", None)
    facts = got.details["engine"]
    own = facts["own"]
    assert facts["generated_tokens_delta"] == own["generated_tokens"]
    seen = facts["prompt_tokens_delta"] + facts["cached_tokens_delta"]
    # What llama-benchy's three latency requests are long, it doesn't say; the bound is its warm-up's length.
    spare = 3 * own["warm_up_tokens"] if "latency_mode" in changes else 0
    assert own["prompt_tokens"] - spare <= seen <= own["prompt_tokens"]


def test_one_request_of_someone_else_makes_it_invalid(engine: Endpoint, work: None) -> None:
    planned = plan()
    ask = {"model": "smollm2", "max_tokens": 8, "messages": [{"role": "user", "content": "And who are you?"}]}
    metrics = engine.base_url.removesuffix("v1") + "metrics"
    done = threading.Event()

    def intrude() -> None:
        with httpx.Client(timeout=60, trust_env=False) as client:
            idle = client.get(metrics).text
            while client.get(metrics).text == idle and not done.wait(0.05):
                pass
            client.post(f"{engine.base_url}/chat/completions", json=ask)

    intruder = threading.Thread(target=intrude)
    intruder.start()
    got = measure(planned, engine)
    done.set()
    intruder.join()
    assert got.reason is not None
    assert (got.status, got.reason.cls, got.metrics) == ("invalid", "foreign_traffic", {})
    assert got.reason.evidence
