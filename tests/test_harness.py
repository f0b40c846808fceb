"""Running someone else's harness: found by version, shut in, ended with all its children."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from campaign import harness
from campaign.errors import CampaignError
from campaign.settings import Endpoint


def install(envs: Path, name: str, version: str, holds: str) -> Path:
    home = envs / f"{name}-{version}"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(sys.executable)
    info = home / "lib" / "python3.11" / "site-packages" / f"{name.replace('-', '_')}-{holds}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {holds}\n")
    return home


def test_the_version_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_ENVS", str(tmp_path))
    home = install(tmp_path, "some-bench", "1.2.3", "1.2.3")
    tool = harness.find("some-bench", "1.2.3")
    assert tool.python == home / "bin" / "python"
    assert tool.provenance(4) == {"harness": "some-bench", "harness_version": "1.2.3", "protocol": 4}


def test_a_missing_or_wrong_harness_says_make_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAMPAIGN_ENVS", raising=False)
    with pytest.raises(CampaignError, match=r"not installed.*make setup"):
        harness.find("some-bench", "1.2.3")
    install(tmp_path / ".envs", "some-bench", "1.2.3", "1.2.4")
    with pytest.raises(CampaignError, match=r"holds some-bench 1\.2\.4, not 1\.2\.3"):
        harness.find("some-bench", "1.2.3")


def run(tmp_path: Path, code: str, silence_s: float = 60.0) -> tuple[harness.Ended, str]:
    log = tmp_path / "output.log"
    ended = harness.run(
        harness.Harness("bench", "1", Path(sys.executable)),
        code,
        [],
        cwd=tmp_path,
        log=log,
        env=harness.environment(tmp_path / "home", {"GIVEN": "yes"}),
        silence_s=silence_s,
    )
    return ended, log.read_text()


def test_a_harness_sees_no_home_no_proxy_and_no_thread_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "HTTP_PROXY", "OPENAI_API_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    ended, said = run(tmp_path, "import os; print(sorted(os.environ)); print(os.environ['HOME'])")
    assert ended.returncode == 0
    assert ended.killed is None
    assert not any(name in said for name in ("OMP_NUM_THREADS", "HTTP_PROXY", "OPENAI_API_KEY", "PYTHONPATH"))
    assert "HF_HUB_OFFLINE" in said
    assert "GIVEN" in said
    assert said.splitlines()[1] == str(tmp_path / "home")


def test_the_exit_status_and_both_streams_are_kept(tmp_path: Path) -> None:
    ended, said = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert ended.returncode == 3
    assert sorted(said.split()) == ["err", "out"]


CHILD = """
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
print(child.pid, flush=True)
"""


@pytest.mark.parametrize("then", ["time.sleep(600)", "sys.exit(0)"])
def test_no_child_outlives_a_harness(tmp_path: Path, then: str) -> None:
    ended, said = run(tmp_path, CHILD + then, silence_s=1.0)
    assert (ended.killed is None) == (then == "sys.exit(0)")
    pid = int(said.split()[0])
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=30)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


OWNER = """
import sys
from pathlib import Path
from campaign import harness
here = Path(sys.argv[1])
tool = harness.Harness("bench", "1", Path(sys.executable))
program = "import time; print(os.getpid(), flush=True); time.sleep(600)"
harness.run(tool, program, [], cwd=here, log=here / "log", env=harness.environment(here), silence_s=600)
"""


def test_a_harness_does_not_outlive_us_when_we_are_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)])
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child = psutil.Process(int(log.read_text()))
    owner.kill()
    owner.wait(30)
    with contextlib.suppress(psutil.NoSuchProcess):
        child.wait(timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_harness_that_speaks_is_not_silent(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, "import time\nfor n in range(30): print(n, flush=True); time.sleep(0.1)", 2.0)
    assert ended.returncode == 0


def test_host_names_and_keys_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANE_KEY", "sk-1")
    endpoint = Endpoint("http://spark-01.lan:8000/v1", "m", "LANE_KEY")
    hidden = harness.masks(endpoint)
    node = os.uname().nodename
    file = tmp_path / "kept.log"
    file.write_text(f"spark-01.lan said sk-1 to {node}\n")
    harness.scrub([file, tmp_path / "missing"], hidden)
    assert file.read_text() == (
        "*** said *** to ***\n" if node != "localhost" else "*** said *** to localhost\n"
    )
    assert "127.0.0.1" not in harness.masks(Endpoint("http://127.0.0.1:1/v1", "m"))


def test_a_named_key_that_is_not_set_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANE_KEY", raising=False)
    with pytest.raises(CampaignError, match="LANE_KEY"):
        harness.api_key(Endpoint("http://127.0.0.1:1/v1", "m", "LANE_KEY"))


def test_the_locks_name_no_registry_and_hash_everything() -> None:
    envs = Path(__file__).parents[1] / "envs"
    locks = sorted(envs.glob("*.lock"))
    assert len(locks) >= 6
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text
        assert "index" not in {line.split()[0].lstrip("-") for line in text.splitlines() if line[:2] == "--"}
        pinned = [line for line in text.splitlines() if "==" in line and not line.lstrip().startswith("#")]
        assert pinned
        assert all(line.rstrip().endswith("\\") for line in pinned)


def test_installed_version_of_nothing_is_none(tmp_path: Path) -> None:
    assert harness.installed_version(tmp_path, "some-bench") is None
    assert subprocess.run([sys.executable, "-c", harness.COUNT, "none"], capture_output=True).returncode != 0
