"""A tokenizer.json for harnesses that count tokens themselves, made from a GGUF's own vocabulary."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader, TokenType

from campaign import errors
from campaign.errors import CampaignError
from campaign.files import read_json, write_json

Json = dict[str, Any]

CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
LLAMA3_SPLIT = CASELESS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = CASELESS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTE_LEVEL: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF says of its tokenizer: pieces by id, merges by rank, and which pieces are special."""

    pre: str
    pieces: list[str]
    types: list[int]
    merges: list[str]
    bos: int | None
    eos: int | None
    chat_template: str | None


def _split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _gpt2() -> Json:
    return BYTE_LEVEL | {"use_regex": True}


def _digits_then_gpt2() -> Json:
    return _sequence({"type": "Digits", "individual_digits": True}, _gpt2())


def _by(pattern: str) -> Callable[[], Json]:
    return lambda: _sequence(_split(pattern), BYTE_LEVEL | {"use_regex": False})


PRE_TOKENIZERS: dict[str, Callable[[], Json]] = {
    "gpt-2": _gpt2,
    "smollm": _digits_then_gpt2,
    "starcoder": _digits_then_gpt2,
    "llama-bpe": _by(LLAMA3_SPLIT),
    "llama3": _by(LLAMA3_SPLIT),
    "qwen2": _by(QWEN2_SPLIT),
}


def read(gguf: Path) -> Vocabulary:
    """The vocabulary of a GGUF; a CampaignError when it is of a kind that cannot be rebuilt here."""
    try:
        fields = GGUFReader(gguf).fields
    except (OSError, ValueError) as error:
        raise CampaignError(f"{gguf} cannot be read as a GGUF ({error}); check the path.") from None

    def value(name: str) -> Any:
        field = fields.get(f"tokenizer.{name}")
        return None if field is None else field.contents()

    kind, pre = value("ggml.model"), value("ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise CampaignError(
            f"{gguf} has a tokenizer of kind {kind}/{pre}; only gpt2 with {', '.join(PRE_TOKENIZERS)} can be "
            "rebuilt. Give the lane a `tokenizer` directory with the model's own tokenizer.json."
        )
    pieces = value("ggml.tokens")
    return Vocabulary(
        pre=pre,
        pieces=pieces,
        types=value("ggml.token_type") or [TokenType.NORMAL] * len(pieces),
        merges=value("ggml.merges"),
        bos=value("ggml.bos_token_id"),
        eos=value("ggml.eos_token_id"),
        chat_template=value("chat_template"),
    )


def tokenizer_json(vocabulary: Vocabulary) -> Json:
    """The vocabulary in the format of the `tokenizers` library (BPE, byte level)."""
    special = {TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN}
    added = [
        {
            "id": number,
            "content": piece,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != TokenType.USER_DEFINED,
        }
        for number, (piece, kind) in enumerate(zip(vocabulary.pieces, vocabulary.types, strict=True))
        if kind in special
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[vocabulary.pre](),
        "post_processor": None,
        "decoder": BYTE_LEVEL | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": vocabulary.pre in ("llama-bpe", "llama3"),
            "vocab": {piece: number for number, piece in enumerate(vocabulary.pieces)},
            "merges": [merge.split(" ", 1) for merge in vocabulary.merges],
        },
    }


def tokenizer_config(vocabulary: Vocabulary) -> Json:
    """The tokenizer_config.json that goes with it; a token that the GGUF doesn't name is null."""

    def piece(number: int | None) -> str | None:
        return None if number is None else vocabulary.pieces[number]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": piece(vocabulary.bos),
        "eos_token": piece(vocabulary.eos),
        "chat_template": vocabulary.chat_template,
        "clean_up_tokenization_spaces": False,
    }


def make(gguf: Path, out: Path) -> Path:
    """Write tokenizer.json and tokenizer_config.json of a GGUF into `out`; the same bytes each time."""
    vocabulary = read(gguf)
    write_json(out / "tokenizer_config.json", tokenizer_config(vocabulary))
    write_json(out / "tokenizer.json", tokenizer_json(vocabulary))
    return out


def ensure(gguf: Path, out: Path) -> Path:
    """As `make`, unless `out` was made before from this very file (by its name, size and time)."""
    try:
        stat = gguf.stat()
    except OSError as error:
        raise CampaignError(f"{gguf} cannot be read as a GGUF ({error}); check the path.") from None
    source = {"gguf": gguf.name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    note = out / "source.json"
    if not note.exists() or read_json(note) != source:
        make(gguf, out)
        write_json(note, source)
    return out


def main() -> int:
    """The command line: python -m campaign.tokenizer --gguf FILE --out DIR."""
    parser = argparse.ArgumentParser(prog="python -m campaign.tokenizer", description=__doc__)
    parser.add_argument("--gguf", type=Path, required=True, metavar="FILE", help="the model file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the two files go")
    options = parser.parse_args()
    make(options.gguf, options.out)
    return 0


if __name__ == "__main__":
    errors.run(main)
