"""A working directory with a campaign on the fake engine, and Snakemake run in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from campaign.process import MARK

ROOT = Path(__file__).parents[1]
FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
Job = tuple[str, str]

LANE: dict[str, Any] = {
    "description": "a fake engine, in tests only",
    "engine": "other",
    "command": ["python", str(FAKE_ENGINE), "--host", "{host}", "--port", "{port}", "--model", "{name}"],
    "model": {"name": "fake"},
    "flags": {"--ttft": 0.002, "--tps": 2000, "--ctx": 4096},
    "ready_timeout_s": 30,
    "stop_timeout_s": 5,
    "warm_up": {"requests": 1, "prompt_tokens": 16, "max_tokens": 4},
    "constraints": [{"name": "ctx-fits", "expression": "ctx <= 8192", "reason": "the fake has no more"}],
}
CAMPAIGN: dict[str, Any] = {
    "title": "A fake campaign",
    "question": "Does the workflow do what it says?",
    "lane": "fake",
    "venue": "here",
    "baseline": "base",
    "variants": {
        "base": {},
        "slow": {"flags": {"--tps": 1000}},
        "huge": {"flags": {"--ctx": 16384}},
    },
    "order": ["base", "slow", "huge", "base"],
    "instruments": [
        {
            "instrument": "probe",
            "prompt_tokens": [32, 64],
            "max_tokens": 16,
            "warmups": 1,
            "passes": 2,
            "timeout_s": 20,
        }
    ],
}


@dataclass
class Workspace:
    """Config, results and reports of one test, with a venue state of its own."""

    root: Path
    state: Path
    source: Path = ROOT
    lane: dict[str, Any] = field(default_factory=lambda: deepcopy(LANE))
    campaigns: dict[str, dict[str, Any]] = field(default_factory=lambda: {"demo": deepcopy(CAMPAIGN)})

    def write(self) -> Workspace:
        """Write the config files as they stand in this object."""
        self.dump("config/config.yaml", {"campaigns": list(self.campaigns)})
        self.dump("config/lanes/fake.yaml", self.lane)
        self.dump("config/venues/here.yaml", {"description": "this machine"})
        for name, campaign in self.campaigns.items():
            self.dump(f"config/campaigns/{name}.yaml", campaign)
        return self

    def dump(self, path: str, data: Any) -> None:
        """Write one YAML file of the workspace."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command in this workspace."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CAMPAIGN_")}
        return {
            **kept,
            "CAMPAIGN_STATE_DIR": str(self.state),
            "CAMPAIGN_ENVS": str(ROOT / ".envs"),
            "PYTHONPATH": str(self.source / "workflow"),
        }

    def command(self, *arguments: str) -> list[str]:
        """The Snakemake command line for these arguments."""
        profile = str(self.source / "profiles" / "default")
        snakefile = str(self.source / "Snakefile")
        base = [sys.executable, "-m", "snakemake", "--snakefile", snakefile, "--workflow-profile", profile]
        return [*base, "--directory", str(self.root), *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Snakemake in a session of its own."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, expect: int = 0) -> list[Job]:
        """Run Snakemake and give its jobs as (rule, first output), sorted; fails on another exit status."""
        return jobs_of(self.output(*arguments, expect=expect))

    def output(self, *arguments: str, expect: int = 0) -> str:
        """Run Snakemake and give what it printed."""
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == expect, said
        return said

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m …` in the workspace."""
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def engines(self) -> list[psutil.Process]:
        """Fake engines, keepers and cells of this workspace that are still up."""
        mine = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                belongs = environment.get("CAMPAIGN_STATE_DIR") == str(self.state)
                belongs = belongs or (MARK in environment and process.cwd() == str(self.root))
                text = " ".join(process.cmdline())
                belongs = belongs or (str(FAKE_ENGINE) in text and process.cwd() == str(self.root))
                if belongs and process.status() != psutil.STATUS_ZOMBIE:
                    mine.append(process)
            except psutil.Error:
                continue
        return mine


def jobs_of(said: str) -> list[Job]:
    """(rule, first output) of each job that Snakemake announced, `all` left out, sorted."""
    found = re.findall(
        r"^(?:local)?rule (\w+):\n(?: +input:.*\n)?(?: +output: ([^\s,]+))?", said, re.MULTILINE
    )
    return sorted((rule, output) for rule, output in found if rule != "all")
