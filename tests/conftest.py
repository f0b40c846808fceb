"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """A workspace whose engine must be gone at the end of the test."""
    made = Workspace(tmp_path / "work", tmp_path / "state")
    made.root.mkdir()
    yield made.write()
    left = made.engines()
    for process in left:
        process.kill()
    assert not left
