"""Other people's harnesses, each in its locked environment: where one is, what it is, and one run of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from campaign.errors import CampaignError
from campaign.files import write_text
from campaign.settings import Endpoint

KEY_VARIABLE = "CAMPAIGN_API_KEY"
PASSED_ON = ("PATH", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
GRACE_S = 3.0
POLL_S = 0.2
# The child holds the read end of a pipe of ours: however we die, it closes, and the group kills itself.
LEASH = """
import os, signal, sys, threading
def leash():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=leash, daemon=True).start()
"""
COUNT = """
import json, sys
from tokenizers import Tokenizer
encode = Tokenizer.from_file(sys.argv[1]).encode
print(json.dumps([len(encode(text, add_special_tokens=False).ids) for text in json.load(sys.stdin)]))
"""


@dataclass(frozen=True)
class Harness:
    """One release of a harness in its environment; `version` is what is really installed there."""

    name: str
    version: str
    python: Path

    def provenance(self, protocol: int) -> dict[str, str | int]:
        """What an outcome says of the harness: name, installed version, and our protocol of driving it."""
        return {"harness": self.name, "harness_version": self.version, "protocol": protocol}


@dataclass(frozen=True)
class Ended:
    """How a run of a harness ended; `killed` says why we ended it, None when it ended by itself."""

    returncode: int
    seconds: float
    killed: str | None


def find(name: str, version: str) -> Harness:
    """The harness in $CAMPAIGN_ENVS (`.envs` under the working directory when unset).

    Raises CampaignError when it is not installed, or when another version than the pinned one is.
    """
    root = Path(os.environ.get("CAMPAIGN_ENVS") or ".envs").resolve()
    home = root / f"{name}-{version}"
    python = home / "bin" / "python"
    if not python.exists():
        raise CampaignError(f"{name} {version} is not installed at {home}; run `make setup`.")
    installed = installed_version(home, name)
    if installed != version:
        raise CampaignError(
            f"{home} holds {name} {installed or 'nowhere'}, not {version}; delete it and run `make setup`."
        )
    return Harness(name, installed, python)


def installed_version(home: Path, name: str) -> str | None:
    """The version of a distribution in the environment `home`, from its metadata; nothing is imported."""
    places = [str(place) for place in sorted(home.glob("lib/python*/site-packages"))]
    found = next(iter(metadata.distributions(name=name, path=places)), None)
    return found.version if found else None


def environment(home: Path, extra: dict[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a harness: offline, a home of its own, no proxy, no thread counts."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return passed | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "HF_HOME": str(home / ".cache" / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "TERM": "dumb",
        "COLUMNS": "200",
        **(extra or {}),
    }


def run(
    tool: Harness,
    program: str,
    arguments: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    env: dict[str, str],
    silence_s: float,
    watched: Iterable[Path] = (),
) -> Ended:
    """Run a Python program in the harness's environment and a process group of its own, its output in `log`.

    When neither the log nor a `watched` file has grown for `silence_s` seconds, the whole group is killed.
    Nothing of the group is left when this returns or raises, nor when our own process is killed.
    """
    files = (log, *watched)
    started = time.monotonic()
    with log.open("ab") as sink:
        child = subprocess.Popen(
            [tool.python, "-I", "-c", LEASH + program, *arguments],
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            killed = _await(child, files, silence_s)
            if killed:
                _note(sink, killed)
        finally:
            _end_group(child)
            if child.stdin:
                child.stdin.close()
    return Ended(child.returncode, time.monotonic() - started, killed)


def count_tokens(tool: Harness, tokenizer: Path, texts: Sequence[str]) -> list[int]:
    """Tokens of each text by tokenizer.json, with the harness's own library; empty when that can't be had."""
    if not (tokenizer / "tokenizer.json").is_file():
        return []
    done = subprocess.run(
        [tool.python, "-I", "-c", COUNT, tokenizer / "tokenizer.json"],
        input=json.dumps(list(texts)),
        capture_output=True,
        text=True,
        check=False,
    )
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


def api_key(endpoint: Endpoint) -> str | None:
    """The endpoint's key from the variable that it names; a named but unset variable is a CampaignError."""
    if endpoint.api_key_env is None:
        return None
    key = os.environ.get(endpoint.api_key_env)
    if not key:
        raise CampaignError(
            f"{endpoint.api_key_env}, which names the API key, is not set; export it and run again."
        )
    return key


def masks(endpoint: Endpoint) -> dict[str, str]:
    """What may not be kept in files of this endpoint, and what stands there instead."""
    host = urlsplit(endpoint.base_url).hostname
    hidden = {} if host is None or host in LOOPBACK else {host: "***"}
    node = os.uname().nodename
    if node and node not in LOOPBACK:
        hidden[node] = "***"
    key = api_key(endpoint)
    return hidden | ({key: "***"} if key else {})


def mask(text: str, hidden: dict[str, str]) -> str:
    """The text with everything hidden replaced, longest first."""
    for secret in sorted(hidden, key=len, reverse=True):
        text = text.replace(secret, hidden[secret])
    return text


def scrub(files: Iterable[Path], hidden: dict[str, str]) -> None:
    """Mask files in place; those that are not there are passed over."""
    for file in files:
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            clean = mask(text, hidden)
            if clean != text:
                write_text(file, clean)


def blamed_line(log: str) -> str | None:
    """The last line of a harness's output that speaks of an error or a failure, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    blamed = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
    chosen = blamed or lines
    return chosen[-1] if chosen else None


def _await(child: subprocess.Popen[bytes], files: Sequence[Path], silence_s: float) -> str | None:
    size = -1
    alive = time.monotonic()
    while True:
        try:
            child.wait(timeout=POLL_S)
            return None
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        grown = sum(file.stat().st_size for file in files if file.exists())
        if grown != size:
            size, alive = grown, now
        elif now - alive > silence_s:
            return f"no sign of life for {silence_s:g} s"


def _note(sink: IO[bytes], killed: str) -> None:
    sink.write(f"\n[campaign] killed: {killed}\n".encode())


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End whatever is left of the group: ask, wait, kill."""
    _signal(child.pid, signal.SIGTERM if child.poll() is None else signal.SIGKILL)
    try:
        child.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(child.pid, signal.SIGKILL)
        child.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
