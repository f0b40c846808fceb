"""What tests of the harness adapters share: a fake engine on a thread, a tokenizer that counts as it does."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from campaign.settings import Endpoint
from fake_engine import FakeEngine, Settings

ENVS = Path(os.environ.get("CAMPAIGN_ENVS") or Path(__file__).parents[1] / ".envs")
WORDS = [f"word{n}" for n in range(3000)]


@contextmanager
def fake_engine(settings: Settings) -> Iterator[tuple[FakeEngine, Endpoint]]:
    """A fake engine that answers for the length of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    engine = FakeEngine(settings)
    try:
        port = asyncio.run_coroutine_threadsafe(engine.start(), loop).result(30)
        yield engine, Endpoint(f"http://127.0.0.1:{port}/v1", settings.model)
    finally:
        asyncio.run_coroutine_threadsafe(engine.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def word_tokenizer(folder: Path) -> Path:
    """A directory with a tokenizer.json whose tokens are words between blanks, as the fake engine counts."""
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "w", *WORDS])}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


def word_book(file: Path) -> Path:
    """A book of the tokenizer's words."""
    file.write_text(" ".join(WORDS))
    return file
