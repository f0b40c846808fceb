"""`make benchmark-probe`: our probe and its peers against the truth, in one run.

    python -m probe [--quick] [--tools NAME …] [--keep DIR]

Prints a table of errors and exits 1 if ours misses a limit, or a peer is better in any column.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from campaign.errors import CampaignError
from campaign.settings import Endpoint

from probe.score import OURS, Reading, Scores, Setting, Truth, shortfalls, spreads, tables
from probe.tools import TOOLS, ToolError

TOTAL_TPS = 2000
"""Tokens a second that the engine gives, over all streams together."""
SIZES = {1: (1000, 40), 8: (500, 6), 64: (256, 2)}
"""By concurrency: tokens of each answer, and batches of so many answers at once."""
QUICK = {1: (400, 3), 8: (200, 1), 64: (64, 1)}


@contextmanager
def engine(setting: Setting, log: Path) -> Iterator[Endpoint]:
    """A fresh engine in a process of its own, for one tool at one point."""
    command = [sys.executable, "-m", "probe.engine", "--log", str(log)]
    command += ["--tps", str(TOTAL_TPS / setting.concurrency)]
    command += ["--tokens-per-delta", str(setting.tokens_per_delta)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Endpoint(f"http://127.0.0.1:{int(process.stdout.readline())}/v1", "fake")
        finally:
            process.send_signal(signal.SIGTERM)


def measure(tool: str, setting: Setting, folder: Path) -> list[Reading]:
    """What the tool says of each measured answer, beside the truth."""
    folder.mkdir(parents=True)
    log = folder / "truth.jsonl"

    def truths() -> list[Truth]:
        return [Truth(**json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]

    with engine(setting, log) as endpoint:
        return TOOLS[tool](endpoint, setting, folder, truths)


def note(tool: str, setting: Setting, readings: list[Reading]) -> None:
    """A line of progress on stderr."""
    ttft, decode = spreads(readings)
    load = os.getloadavg()[0]
    print(
        f"{setting.name:>12}  {tool:<20} TTFT {ttft.median:.3f} ms, decode {decode.median:.4f} %"
        f"  ({len(readings)} answers, load {load:.1f})",
        file=sys.stderr,
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m probe", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few short answers, to see that it works")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--keep", type=Path, help="directory for what the tools and the engine wrote")
    args = parser.parse_args()
    # So that ending us ends the engine too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes = QUICK if args.quick else SIZES
    settings = [Setting(c, k, *sizes[c]) for k in (1, 4) for c in sizes]
    scores: Scores = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-probe-") as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        for setting in settings:
            for tool in args.tools:
                place = folder / setting.name.replace(", ", "-").replace(" ", "") / tool.replace(" ", "-")
                scores[tool, setting] = measure(tool, setting, place)
                note(tool, setting, scores[tool, setting])
    print(
        f"\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; "
        f"{TOTAL_TPS} tok/s in all; absolute error over all answers: median / p95 / max\n"
    )
    print(tables(scores, args.tools, settings))
    found = shortfalls(scores, args.tools, settings) if OURS in args.tools else []
    print("\n" + ("\n".join(found) if found else "Every limit is met, and no peer has a lower median."))
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ToolError, CampaignError) as problem:
        sys.exit(str(problem))
