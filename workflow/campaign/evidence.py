"""What the engine's own counters and the nodes' sensors say for or against a cell that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from campaign import nodes
from campaign.benchy_traffic import Traffic
from campaign.counters import Window
from campaign.nodes import NodeReading
from campaign.outcome import Measurement, Reason

FOREIGN = "someone else used the engine during the measurement"
WARM = "the prefix cache answered part of a cold prompt"


def weighed(
    measured: Measurement, window: Window, own: Traffic | None, readings: Mapping[str, NodeReading]
) -> Measurement:
    """The measurement with the facts of its window in its details: `engine` and `nodes`, where there are any.

    With the cell's `own` traffic known, an ok one turns invalid if the counters show requests of someone
    else, or prefix-cache hits beyond those that a cold run has; what it read then stands in details.claimed.
    A lane with a slow node gets the flag slow_node.
    """
    slow = nodes.slow_nodes({node: reading.clock_mhz for node, reading in readings.items()})
    facts: dict[str, Any] = {
        "engine": window.facts() | ({"own": asdict(own)} if own and window.before else {}),
        "nodes": {node: reading.facts() for node, reading in readings.items()},
        "slow_nodes": slow,
    }
    details = measured.details | {name: value for name, value in facts.items() if value}
    flags = [*measured.flags, *(["slow_node"] if slow else [])]
    against = _against(window, own) if own and measured.status == "ok" else None
    if against is None:
        return measured.model_copy(update={"flags": flags, "details": details})
    claimed = {name: metric.values for name, metric in measured.metrics.items()}
    return measured.model_copy(
        update={
            "status": "invalid",
            "reason": against,
            "metrics": {},
            "flags": flags,
            "details": {"claimed": claimed} | details,
        }
    )


def _against(window: Window, own: Traffic) -> Reason | None:
    foreign = window.foreign(own.requests, own.concurrency, own.prompt_tokens, None, own.generated_tokens)
    if foreign is not None:
        return Reason.model_validate({"class": "foreign_traffic", "summary": FOREIGN, "evidence": foreign})
    allowed = own.cacheable(window.before.engine) if window.before else None
    warm = window.warm(allowed) if allowed is not None else None
    if warm is None:
        return None
    return Reason.model_validate({"class": "prefix_cache_hit", "summary": WARM, "evidence": warm})
