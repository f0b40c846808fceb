"""Which module measures a cell, with what the lane gives it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from campaign import benchy_traffic, evidence
from campaign.benchy_traffic import Traffic
from campaign.counters import Window
from campaign.errors import CampaignError
from campaign.files import digest
from campaign.lane import is_there, local, model_path
from campaign.matrix import RESULTS, Cell, Matrix
from campaign.nodes import Watch
from campaign.outcome import Measurement
from campaign.settings import PROTOCOLS, BenchyPoint, Endpoint, ProbePoint, ToolEvalPoint

ASSETS = RESULTS / ".assets"
SAMPLE_EVERY_S = 1.0


def measure(cell: Cell, endpoint: Endpoint, matrix: Matrix, raw: Path) -> Measurement:
    """Measure the cell's point on the engine at that endpoint; raw files go into `raw`.

    The engine's counters and this node's sensors are read before, during and after; see campaign.evidence.
    """
    point = cell.settings
    # The probe samples during each of its passes; a second sampler would only be in its way.
    every_s = None if isinstance(point, ProbePoint) else SAMPLE_EVERY_S
    with Watch() as watch, Window(endpoint, every_s) as window:
        measured = _measured(cell, endpoint, matrix, raw)
    own = _own_traffic(raw, point) if isinstance(point, BenchyPoint) else None
    return evidence.weighed(measured, window, own, watch.readings)


def _measured(cell: Cell, endpoint: Endpoint, matrix: Matrix, raw: Path) -> Measurement:
    point = cell.settings
    if isinstance(point, ProbePoint):
        from campaign import probe

        return probe.measure(endpoint, point)
    if isinstance(point, ToolEvalPoint):
        from campaign import tool_eval

        return tool_eval.measure(endpoint, point, raw)
    from campaign import llama_benchy

    return llama_benchy.measure(
        endpoint,
        point,
        raw,
        tokenizer=_tokenizer(matrix),
        book_file=_book(matrix),
        speculates=matrix.variants[cell.boot.variant].speculates,
    )


def _own_traffic(raw: Path, point: BenchyPoint) -> Traffic:
    from campaign import benchy_progress, llama_benchy

    requests = benchy_progress.read(raw / llama_benchy.EVENTS)
    return benchy_traffic.of(requests, (raw / llama_benchy.LOG).read_text(encoding="utf-8"), point)


def check(matrix: Matrix, cells: Iterable[Cell]) -> None:
    """Raise CampaignError when what these cells need is not there: harnesses, weights, tokenizer, book.

    A release of llama-benchy that is not run here needs nothing: its cells take recorded results only.
    """
    from campaign import harness, llama_benchy, tool_eval

    model_path(matrix.lane.model)
    points = [cell.settings for cell in cells]
    tools = {(tool_eval.NAME, point.version) for point in points if isinstance(point, ToolEvalPoint)}
    if any(isinstance(point, BenchyPoint) and point.version == llama_benchy.VERSION for point in points):
        tools.add((llama_benchy.NAME, llama_benchy.VERSION))
        if matrix.lane.tokenizer == "gguf":
            _gguf(matrix)
        if matrix.lane.book is not None:
            _own_book(matrix, matrix.lane.book)
    for name, version in sorted(tools):
        harness.find(name, version)


def version_of(instrument: str, cell: Cell | None) -> str:
    """The instrument's name and version, as tables of one version only may compare it."""
    point = cell.settings if cell else None
    if isinstance(point, BenchyPoint):
        return f"llama-benchy {point.version}"
    if isinstance(point, ToolEvalPoint):
        return f"tool-eval-bench {point.version}"
    return f"campaign.{instrument} protocol {PROTOCOLS[instrument]}"


def _tokenizer(matrix: Matrix) -> str:
    """The lane's tokenizer for llama-benchy; `gguf` is made from the weights, once."""
    given = matrix.lane.tokenizer
    if given != "gguf":
        return given
    weights = _gguf(matrix)
    from campaign import tokenizer

    model = matrix.lane.model
    # A name is whatever the engine serves, a path among them; a digest of it is a directory's name.
    folder = digest([model.name, model.package, model.file or model.path])
    return str(tokenizer.ensure(weights, ASSETS / "tokenizers" / folder))


def _gguf(matrix: Matrix) -> Path:
    weights = model_path(matrix.lane.model)
    if weights is None:
        raise CampaignError(
            f"config/lanes/{matrix.campaign.lane}.yaml: tokenizer: gguf needs model.path or model.package; "
            "name a tokenizer directory instead."
        )
    return weights


def _book(matrix: Matrix) -> Path:
    if matrix.lane.book is None:
        from campaign import book

        return book.ensure(ASSETS / "book.txt")
    return _own_book(matrix, matrix.lane.book)


def _own_book(matrix: Matrix, given: str) -> Path:
    path = local(given)
    if not is_there(path) or not path.is_file():
        raise CampaignError(
            f"config/lanes/{matrix.campaign.lane}.yaml: book: {path} is not there; correct it."
        )
    return path
