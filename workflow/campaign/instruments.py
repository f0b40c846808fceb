"""Which module measures a cell, with what the lane gives it."""

from __future__ import annotations

from pathlib import Path

from campaign.matrix import Cell, Matrix
from campaign.outcome import Measurement
from campaign.settings import PROTOCOLS, BenchyPoint, Endpoint, ProbePoint, ToolEvalPoint


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

    raise NotImplementedError(llama_benchy)


def version_of(instrument: str, cell: Cell | None) -> str:
    """The instrument's name and version, as tables of one version only may compare it."""
    point = cell.settings if cell else None
    if isinstance(point, BenchyPoint):
        return f"llama-benchy {point.version}"
    if isinstance(point, ToolEvalPoint):
        return f"tool-eval-bench {point.version}"
    return f"campaign.{instrument} protocol {PROTOCOLS[instrument]}"
