"""Which module measures a cell, with what the lane gives it."""

from __future__ import annotations

from pathlib import Path

from campaign.errors import CampaignError
from campaign.lane import model_path
from campaign.matrix import RESULTS, Cell, Matrix
from campaign.outcome import Measurement
from campaign.settings import PROTOCOLS, BenchyPoint, Endpoint, ProbePoint, ToolEvalPoint

ASSETS = RESULTS / ".assets"


def measure(cell: Cell, endpoint: Endpoint, matrix: Matrix, raw: Path) -> Measurement:
    """Measure the cell's point on the engine at that endpoint; raw files go into `raw`."""
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
    weights = model_path(matrix.lane.model)
    if weights is None:
        raise CampaignError(
            f"config/lanes/{matrix.campaign.lane}.yaml: tokenizer: gguf needs model.path or model.package; "
            "name a tokenizer directory instead."
        )
    from campaign import tokenizer

    return str(tokenizer.ensure(weights, ASSETS / "tokenizers" / matrix.lane.model.name))


def _book(matrix: Matrix) -> Path:
    if matrix.lane.book is None:
        from campaign import book

        return book.ensure(ASSETS / "book.txt")
    path = Path(matrix.lane.book).expanduser()
    if not path.is_file():
        raise CampaignError(
            f"config/lanes/{matrix.campaign.lane}.yaml: book: {path} is not there; correct it."
        )
    return path
