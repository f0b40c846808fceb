"""The tokenizer rebuilt from a GGUF: does it count as the engine does?"""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import harness, tokenizer
from campaign.errors import CampaignError
from campaign.files import read_json, sha256_of
from gguf import GGUFWriter
from harnesses import ENVS
from test_llama_server import model, serving

TEXTS = [
    "The captain of the old ship walked slowly through the harbour, and nobody knew why.",
    "In 2026 it ran 1,234.5 tokens a second; that is 17 % more than before!",
    "def add(a, b):\n    return a + b  # sum\n\n\n\tprint(add(1, 22))\n",
    "  spaces   before, it's we'll they've I'd  ",
    "Grüße aus Köln — naïve café, 日本語のテスト, привет 👍🏽",
    "",
    "x",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer.make(Path(model()), tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.engine
def test_counts_agree_with_the_engine(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_ENVS", str(ENVS))
    counted = harness.count_tokens(harness.find("llama-benchy", "0.4.0"), made, TEXTS)
    with serving("-c", "512") as server:
        answers = [server.client.post("/tokenize", json={"content": text}).json() for text in TEXTS]
    assert counted == [len(answer["tokens"]) for answer in answers]


def test_the_bytes_are_the_same_each_time(made: Path, tmp_path: Path) -> None:
    again = tokenizer.make(Path(model()), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert sha256_of(made / name) == sha256_of(again / name)
    config = read_json(made / "tokenizer_config.json")
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")


def test_it_is_made_again_only_for_another_file(tmp_path: Path) -> None:
    file, out = tmp_path / "model.gguf", tmp_path / "tokenizer"
    file.symlink_to(model())
    tokenizer.ensure(file, out)
    before = (out / "tokenizer.json").stat().st_mtime_ns
    assert tokenizer.ensure(file, out) == out
    assert (out / "tokenizer.json").stat().st_mtime_ns == before
    file.unlink()
    file.write_bytes(b"another file")
    with pytest.raises(CampaignError):
        tokenizer.ensure(file, out)


def test_special_tokens_are_kept_whole(made: Path) -> None:
    added = {token["content"]: token["id"] for token in read_json(made / "tokenizer.json")["added_tokens"]}
    assert added["<|im_start|>"] == 1
    assert added["<|endoftext|>"] == 0


def _gguf(file: Path, kind: str, pre: str) -> Path:
    writer = GGUFWriter(file, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(("kind", "pre"), [("llama", "default"), ("gpt2", "tekken")])
def test_a_kind_that_cannot_be_rebuilt_says_what_to_do(tmp_path: Path, kind: str, pre: str) -> None:
    with pytest.raises(CampaignError, match=rf"kind {kind}/{pre};.*Give the lane a `tokenizer` directory"):
        tokenizer.read(_gguf(tmp_path / "other.gguf", kind, pre))


def test_what_is_no_gguf_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a model at all, but long enough to hold a header")
    with pytest.raises(CampaignError, match="cannot be read as a GGUF"):
        tokenizer.read(file)
    with pytest.raises(CampaignError, match="cannot be read as a GGUF"):
        tokenizer.read(tmp_path / "missing.gguf")
