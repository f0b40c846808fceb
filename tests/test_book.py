"""The book of prompts: the same bytes everywhere, large and varied enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import book
from campaign.errors import CampaignError
from campaign.files import sha256_of


def test_the_book_is_the_one_whose_checksum_is_known(tmp_path: Path) -> None:
    file = book.ensure(tmp_path / "assets" / "book.txt")
    assert sha256_of(file) == book.SHA256
    assert file.stat().st_size >= 1_000_000
    before = file.stat().st_mtime_ns
    assert book.ensure(file).stat().st_mtime_ns == before


def test_another_text_in_its_place_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("once upon a time")
    with pytest.raises(CampaignError, match=r"book\.txt is not the book"):
        book.ensure(file)


def test_no_long_stretch_comes_twice() -> None:
    words = book.make().split()
    stretches = [tuple(words[start : start + 12]) for start in range(len(words) - 12)]
    assert len(set(stretches)) > 0.999 * len(stretches)
