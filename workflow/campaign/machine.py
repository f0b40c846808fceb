"""The machine that measures, as an outcome's provenance tells it: no host name, no path."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil

from campaign.lane import package_versions

PACKAGES = ["snakemake", "httpx"]


def describe() -> dict[str, Any]:
    """CPU model, usable cores, memory in GiB, operating system, Python and package versions."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": package_versions(PACKAGES),
    }


def _cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or None
    return platform.processor() or None
