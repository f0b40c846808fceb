"""The instruments under comparison: each run by its own command, read from its own results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from campaign import llama_benchy as llama_benchy_cell
from campaign.harness import environment, find
from campaign.settings import Endpoint
from harnesses import word_book, word_tokenizer

from probe.score import OURS, Reading, Setting, Truth

PROMPT_TOKENS = 256
LLAMA_BENCHY, AIPERF = "llama-benchy 0.4.0", "aiperf 0.13.0"
SAME_BATCH_S = 0.045
"""Requests of one batch arrive within this; answers take longer, so the next batch is further away."""

# What is measured is llama-benchy's own; only which prompt the n-th request had is noted, since its results
# don't say. That is done after the request.
BENCHY = """
import hashlib, json, sys
from llama_benchy.__main__ import main
from llama_benchy.client import LLMClient
generate, keys = LLMClient.run_generation, []
async def noted(self, session, context_text, prompt_text, *args, **kwargs):
    slot = len(keys)
    keys.append(None)
    result = await generate(self, session, context_text, prompt_text, *args, **kwargs)
    keys[slot] = hashlib.sha256(prompt_text.encode()).hexdigest()
    return result
LLMClient.run_generation = noted
main()
with open("keys.json", "w") as out:
    json.dump(keys, out)
"""


class ToolError(Exception):
    """A tool gave no figures, or not those of all its requests."""


def _run(command: Sequence[str | Path], folder: Path, env: dict[str, str] | None) -> None:
    with (folder / "output.log").open("w") as log:
        done = subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        tail = (folder / "output.log").read_text(errors="replace").splitlines()[-15:]
        raise ToolError(f"{Path(command[0]).name} ended with {done.returncode}:\n" + "\n".join(tail))


def ours(
    endpoint: Endpoint, setting: Setting, folder: Path, truths: Callable[[], list[Truth]]
) -> list[Reading]:
    """campaign.probe. Its answers are known by their order: requests arrive as they were sent."""
    out = folder / "outcome.json"
    command = [
        *(sys.executable, "-m", "campaign.probe", "--base-url", endpoint.base_url),
        *("--model", endpoint.model, "--prompt-tokens", str(PROMPT_TOKENS), "--warmups", "1"),
        *("--max-tokens", str(setting.max_tokens), "--passes", str(setting.batches)),
        *("--concurrency", str(setting.concurrency), "--out", str(out)),
    ]
    _run(command, folder, None)
    outcome = json.loads(out.read_text())
    if outcome["status"] != "ok":
        raise ToolError(f"campaign.probe says {outcome['status']}: {outcome['reason']}")
    rows: list[dict[str, Any]] = sorted(outcome["passes"], key=lambda row: (row["pass"], row["t0_s"]))
    told = truths()
    readings = []
    for batch in range(setting.batches):
        mine = rows[batch * setting.concurrency : (batch + 1) * setting.concurrency]
        begin, end = mine[0]["t0_s"], mine[-1]["t0_s"] + SAME_BATCH_S
        theirs = sorted((t for t in told if begin - 0.001 < t.arrived < end), key=lambda t: t.arrived)
        readings += [
            Reading(truth, row["ttft_s"], row["decode_tps"]) for row, truth in zip(mine, theirs, strict=True)
        ]
    return readings


def llama_benchy(
    endpoint: Endpoint, setting: Setting, folder: Path, truths: Callable[[], list[Truth]]
) -> list[Reading]:
    """llama-benchy without its progress events, which would cost it a write a token."""
    tool = find("llama-benchy", "0.4.0")
    options = {
        "--base-url": endpoint.base_url,
        "--model": endpoint.model,
        "--tokenizer": _tokenizer(folder / "tokenizer"),
        "--book-url": llama_benchy_cell._shelve(word_book(folder / "book.txt"), folder),
        "--pp": PROMPT_TOKENS,
        "--tg": setting.max_tokens,
        "--depth": 0,
        "--concurrency": setting.concurrency,
        "--runs": setting.batches,
        "--latency-mode": "none",
        "--format": "json",
        "--save-result": "result.json",
    }
    switches = ["--no-cache", "--exact-tg", "--skip-coherence"]
    flat = [str(part) for pair in options.items() for part in pair] + switches
    _run([tool.python, "-I", "-c", BENCHY, *flat], folder, environment(folder))
    row = json.loads((folder / "result.json").read_text())["benchmarks"][0]
    ttfts, rates = row["e2e_ttft"]["values"], row["tg_req_throughput"]["values"]
    # The first batch is its warm-up.
    keys = json.loads((folder / "keys.json").read_text())[setting.concurrency :]
    told = {truth.key: truth for truth in truths()}
    if not len(keys) == len(ttfts) == len(rates):
        raise ToolError(f"llama-benchy gave {len(rates)} rates for {len(keys)} requests")
    return [Reading(told[key], ttft / 1000, rate) for key, ttft, rate in zip(keys, ttfts, rates, strict=True)]


def aiperf(
    endpoint: Endpoint, setting: Setting, folder: Path, truths: Callable[[], list[Truth]]
) -> list[Reading]:
    """aiperf with the server's own token counts a chunk, which it needs where a delta has several tokens."""
    tool = find("aiperf", "0.13.0")
    requests = setting.concurrency * setting.batches
    options = {
        "--model": endpoint.model,
        "--url": endpoint.base_url.removesuffix("/v1"),
        "--endpoint-type": "chat",
        "--tokenizer": _tokenizer(folder / "tokenizer"),
        "--isl": PROMPT_TOKENS,
        "--isl-stddev": 0,
        "--osl": setting.max_tokens,
        "--osl-stddev": 0,
        "--extra-inputs": "ignore_eos:true",
        "--concurrency": setting.concurrency,
        # Its own rule makes it one worker on two cores, which did worse at c64.
        "--workers-max": min(setting.concurrency, os.cpu_count() or 1),
        "--request-count": requests,
        "--num-dataset-entries": requests,
        "--warmup-request-count": setting.concurrency,
        "--artifact-dir": "artifacts",
        "--ui": "none",
    }
    switches = [
        *("--streaming", "--use-server-token-count", "--per-chunk-usage"),
        *("--no-gpu-telemetry", "--no-server-metrics"),
    ]
    flat = [str(part) for pair in options.items() for part in pair] + switches
    command: list[str | Path] = [tool.python, "-m", "aiperf", "profile", *flat]
    # Told to stay offline, it looks for a tokenizer in its cache only, and not in the directory given.
    env = {name: value for name, value in environment(folder).items() if not name.endswith("_OFFLINE")}
    _run(command, folder, env)
    found = list((folder / "artifacts").rglob("profile_export.jsonl"))
    records = [json.loads(line) for line in found[0].read_text().splitlines()] if found else []
    told = {truth.id: truth for truth in truths()}
    readings = []
    for record in records:
        about, figures = record["metadata"], record["metrics"]
        if about["benchmark_phase"] == "profiling" and not record.get("error"):
            ttft = figures["time_to_first_token"]
            rate = figures["output_token_throughput_per_user"]["value"]
            assert ttft["unit"] == "ms"
            readings.append(Reading(told[about["x_request_id"]], ttft["value"] / 1000, rate))
    if len(readings) != requests:
        raise ToolError(f"aiperf gave {len(readings)} records for {requests} requests")
    return readings


Tool = Callable[[Endpoint, Setting, Path, Callable[[], list[Truth]]], list[Reading]]
TOOLS: dict[str, Tool] = {OURS: ours, LLAMA_BENCHY: llama_benchy, AIPERF: aiperf}


def _tokenizer(folder: Path) -> Path:
    """A tokenizer that counts as the fake engine does; transformers also wants to know its kind."""
    word_tokenizer(folder)
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    return folder
