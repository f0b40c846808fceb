"""llama-benchy 0.4.0, one process a point: how it is run (campaign.benchy_rows judges it).

Cold means here: each prompt is drawn at random from the book, and `--no-cache` asks a
llama.cpp server for `cache_prompt: false` and ends each prompt in a UUID. What was cached all the same
llama-benchy doesn't read; the engine's counters over the cell's window are the evidence for that.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaign import benchy_progress, benchy_rows, harness
from campaign.benchy_progress import Request
from campaign.errors import CampaignError
from campaign.files import sha256_of
from campaign.outcome import Measurement
from campaign.settings import PROTOCOLS, BenchyPoint, Endpoint

NAME, VERSION = "llama-benchy", "0.4.0"
RESULT, EVENTS, LOG = "result.json", "progress.jsonl", "output.log"
START_UP_S = 60.0
# The key goes in by the environment: a command line can be read by every user of the machine. The pause comes
# before the clock is started: llama.cpp closes a connection after a streamed answer without announcing it,
# and a request sent on it before the close is noticed fails with "Server disconnected". The discarded run
# sends no progress events, so what it asked of the engine is printed.
PROGRAM = f"""
import asyncio
from llama_benchy.__main__ import main
from llama_benchy.client import LLMClient
key = os.environ.pop({harness.KEY_VARIABLE!r}, None)
sys.argv[1:] += ["--api-key", key] if key else []
generate = LLMClient.run_generation
async def settled(*args, **kwargs):
    await asyncio.sleep(0.1)
    result = await generate(*args, **kwargs)
    if kwargs.get("request_id") is None:
        print(f"[campaign] discarded: {{result.prompt_tokens}} prompt tokens, {{result.total_tokens}} tokens")
    return result
LLMClient.run_generation = settled
main()
"""


def measure(
    endpoint: Endpoint, point: BenchyPoint, raw: Path, *, tokenizer: str, book_file: Path, speculates: bool
) -> Measurement:
    """Run llama-benchy on one point; its result, progress events and output stay in the directory `raw`.

    `tokenizer` is a directory with tokenizer.json, or a name that the harness finds in its own cache.
    Raises CampaignError when the harness is not installed, the point is of a release that is not run here, or
    the API key's variable is not set.
    """
    if point.version != VERSION:
        raise CampaignError(
            f"{point.name}: llama-benchy {point.version} is not run here; bring its results in with "
            f"`python -m campaign.recorded`, or plan the point with version {VERSION}."
        )
    tool = harness.find(NAME, point.version)
    hidden = harness.masks(endpoint)
    raw = raw.resolve()
    raw.mkdir(parents=True, exist_ok=True)
    result, events, log = raw / RESULT, raw / EVENTS, raw / LOG
    for file in (result, events, log):
        file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="campaign-") as home:
        address = _shelve(book_file, Path(home))
        options = _options(endpoint, point, _absolute(tokenizer), address)
        key = harness.api_key(endpoint)
        ended = harness.run(
            tool,
            PROGRAM,
            options,
            cwd=raw,
            log=log,
            env=harness.environment(Path(home), {harness.KEY_VARIABLE: key} if key else None),
            silence_s=point.timeout_s + START_UP_S,
            watched=[events],
        )
    harness.scrub((result, events, log), hidden)
    requests = benchy_progress.read(events)
    measured = benchy_rows.judge(
        _loaded(result),
        requests,
        point,
        speculates=speculates,
        n_first=_first_tokens(tool, requests, tokenizer),
        log=log.read_text(encoding="utf-8", errors="replace"),
        killed=ended.killed,
    )
    measured.raw = [f"{raw.name}/{file.name}" for file in (result, events, log) if file.exists()]
    if measured.reason:
        measured.reason.log = f"{raw.name}/{log.name}"
    measured.provenance = tool.provenance(PROTOCOLS["llama_benchy"]) | {
        "command": harness.mask(shlex.join([NAME, *_options(endpoint, point, tokenizer, address)]), hidden),
        "book_sha256": sha256_of(book_file),
        "tokenizer_sha256": _identity(tokenizer),
    }
    return measured


def _options(endpoint: Endpoint, point: BenchyPoint, tokenizer: str, address: str) -> list[str]:
    named = {
        "--base-url": endpoint.base_url,
        "--model": endpoint.model,
        "--tokenizer": tokenizer,
        "--book-url": address,
        "--pp": point.pp,
        "--tg": point.tg,
        "--depth": point.depth,
        "--concurrency": point.concurrency,
        "--runs": point.runs,
        "--latency-mode": point.latency_mode,
        "--format": "json",
        "--save-result": RESULT,
        "--emit-progress": EVENTS,
    }
    # Whether a model knows the capital of France is the tool_eval cell's business, not a gate of speed.
    switches = ["--no-cache", "--exact-tg", "--skip-coherence"]
    return [str(part) for pair in named.items() for part in pair] + switches


def _shelve(book_file: Path, home: Path) -> str:
    """Put the book where llama-benchy looks for a download of the address that this returns."""
    digest = sha256_of(book_file)
    address = f"sha256:{digest}"
    shelf = home / ".cache" / "llama-benchy"
    shelf.mkdir(parents=True)
    (shelf / f"{hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()}.txt").symlink_to(
        book_file.resolve()
    )
    return address


def _absolute(tokenizer: str) -> str:
    return str(Path(tokenizer).resolve()) if Path(tokenizer).exists() else tokenizer


def _identity(tokenizer: str) -> str | None:
    file = Path(tokenizer) / "tokenizer.json"
    return sha256_of(file) if file.is_file() else None


def _loaded(result: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _first_tokens(tool: harness.Harness, requests: Sequence[Request], tokenizer: str) -> dict[int, int]:
    """Tokens in each first delta: from token_ids where they came, else by encoding its text again."""
    known = {r.id: r.first_count for r in requests if r.first_count is not None}
    unknown = [r for r in requests if r.id not in known and r.first_text and r.coarse]
    texts = [r.first_text for r in unknown]
    counts = harness.count_tokens(tool, Path(tokenizer), texts) if texts else []
    return known | {request.id: count for request, count in zip(unknown, counts, strict=False)}
