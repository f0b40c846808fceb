"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import synthetic
from campaign.matrix import Matrix
from workspace import Workspace


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    """The toy campaign in a directory of the test's own, with every cell measured."""
    monkeypatch.chdir(tmp_path)
    made = synthetic.campaign()
    synthetic.run_all(made)
    return made


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
