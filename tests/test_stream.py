"""The stream reader against each recorded quirk, and the same stream cut anywhere."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from campaign.stream import StreamReading, read_stream
from hypothesis import given, settings
from hypothesis import strategies as st

CASES = Path(__file__).parent / "cases" / "sse"
MANIFEST: dict[str, dict[str, Any]] = json.loads((CASES / "manifest.json").read_text())


def reads_of(name: str) -> list[tuple[float, bytes]]:
    rows = [json.loads(line) for line in (CASES / f"{name}.jsonl").read_text().splitlines()]
    return [(row["t"], base64.b64decode(row["b64"])) for row in rows]


def reading_of(name: str, reads: list[tuple[float, bytes]]) -> StreamReading:
    want = MANIFEST[name]
    return read_stream(reads, max_tokens=want.get("requested_max_tokens", 50), ending=want["connection"])


@pytest.mark.parametrize("name", MANIFEST)
def test_case(name: str) -> None:
    want, got = MANIFEST[name], reading_of(name, reads_of(name))
    assert got.outcome == want["outcome"]
    assert got.completion_tokens == want["completion_tokens"]
    assert got.n_deltas == want["n_deltas"]
    assert sorted(got.flags) == sorted(want["flags"])
    assert got.ttft_s == want["ttft"]
    if want["decode_formula"] is None:
        assert got.decode_formula_tps is None
    else:
        assert got.decode_formula_tps == pytest.approx(want["decode_formula"], rel=1e-6)
    if "n_first" in want:
        assert got.n_first == want["n_first"]
    if "ttft_content" in want:
        assert got.ttft_content_s == want["ttft_content"]
    if "cached_tokens" in want:
        assert got.cached_tokens == want["cached_tokens"]
    if got.outcome != "ok":
        assert got.decode_tps is None
    elif got.n_first is not None and "decode_true" in want:
        assert got.decode_tps == pytest.approx(want["decode_true"], rel=1e-6)


@pytest.mark.parametrize("name", MANIFEST)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_stream_cut_anywhere_measures_the_same(name: str, data: st.DataObject) -> None:
    reads = reads_of(name)
    cut: list[tuple[float, bytes]] = []
    for t, raw in reads:
        places = data.draw(st.lists(st.integers(0, len(raw)), max_size=4))
        edges = [0, *sorted(places), len(raw)]
        cut += [(t, raw[a:b]) for a, b in pairwise(edges)]
    assert reading_of(name, cut) == reading_of(name, reads)
