"""What nvidia-smi says of a node, through a fake one on PATH, and which node of a lane is slow."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import psutil
import pytest
from campaign import nodes
from campaign.nodes import LOCAL, NodeReading, Sample, Watch, parse, slow_nodes

TWO_GPUS = """\
0, 45.30, 2100, 54, 97, 0x0000000000000004
1, [N/A], 1400, 71, 99, 0x0000000000000040
"""
FAKE = """\
#!/bin/sh
# A FAKE nvidia-smi, for tests only: idle when asked once, busy in a loop.
case "$*" in
  *{refused}*) echo "Field \\"{refused}\\" is not a valid field to query."; exit 2 ;;
  *--loop=1*) while echo "0, 80.5, 2400, 60, 98, 0x0000000000000024"; do echo >> {ticks}; sleep 0.05; done ;;
  *) echo "0, 11.0, 300, 41, 0, 0x0000000000000001" ;;
esac
"""


def sample(clock: float | None = 2400.0, load: float | None = 98.0, gpu: int = 0) -> Sample:
    return Sample(gpu, 80.0, clock, 60.0, load, ())


def test_a_line_of_nvidia_smi() -> None:
    first, second = parse(TWO_GPUS)
    assert first == Sample(0, 45.3, 2100.0, 54.0, 97.0, ("sw_power_cap",))
    assert (second.power_w, second.throttle) == (None, ("hw_thermal_slowdown",))
    assert parse("0, 1.0, [Not Supported], 50, [N/A], [N/A]\n") == [Sample(0, 1.0, None, 50.0, None, None)]
    assert parse("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n") == []


def test_only_samples_under_load_tell_the_clock() -> None:
    reading = NodeReading(during=[sample(300.0, 0.0), sample(2300.0), sample(2500.0)])
    assert reading.clock_mhz == 2400
    assert NodeReading(during=[sample(300.0, 0.0)]).clock_mhz is None
    assert NodeReading(during=[sample(2000.0, None)]).clock_mhz == 2000
    assert NodeReading(during=[sample(2400.0), sample(1500.0, gpu=1)]).clock_mhz == 1500


def test_facts_leave_out_what_is_unknown() -> None:
    unknown = Sample(0, None, None, None, None, None)
    assert NodeReading(before=[unknown], during=[unknown]).facts() == [
        {"gpu": 0, "before": {}, "load": {"samples": 1}}
    ]


@pytest.mark.parametrize(
    ("clocks", "slow"),
    [
        ({"n0": 2400.0, "n1": 2390.0, "n2": 1500.0, "n3": 2410.0}, ["n2"]),
        ({"n0": 2400.0, "n1": 1919.0}, ["n1"]),
        ({"n0": 2400.0, "n1": 1920.0}, []),
        ({"n0": 1500.0}, []),
        ({"n0": 2400.0, "n1": None}, []),
        ({}, []),
    ],
)
def test_a_slow_node_is_far_below_its_peers(clocks: dict[str, float | None], slow: list[str]) -> None:
    assert list(slow_nodes(clocks)) == slow


def test_the_evidence_names_both_clocks() -> None:
    assert slow_nodes({"n0": 2400.0, "n1": 1500.0})["n1"] == "1500 MHz under load, its peers 2400 MHz"


@pytest.mark.parametrize("refused", ["nothing", "clocks_event_reasons.active"])
def test_before_under_load_and_after(refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = tmp_path / "ticks"
    fake_tool(tmp_path / "bin", FAKE.format(refused=refused, ticks=ticks), monkeypatch)
    with Watch() as watch:
        wait_for(ticks, 3)
    (gpu,) = watch.readings[LOCAL].facts()
    assert (gpu["before"]["clock_mhz"], gpu["after"]["power_w"]) == (300, 11)
    assert gpu["before"]["throttle"] == []
    assert gpu["load"]["samples"] >= 2
    assert gpu["load"]["power_w"] == 80.5
    assert gpu["load"]["throttle"] == ["sw_power_cap", "sw_thermal_slowdown"]
    assert not [child for child in psutil.Process().children() if "nvidia-smi" in " ".join(child.cmdline())]


@pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 9\n"], ids=["absent", "failing"])
def test_a_node_without_sensors_has_no_reading(
    script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        fake_tool(tmp_path / "bin", script, monkeypatch)
    with Watch() as watch:
        pass
    assert watch.readings == {}


def fake_tool(folder: Path, script: str, patch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    tool = folder / nodes.TOOL
    tool.write_text(script)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def wait_for(ticks: Path, lines: int) -> None:
    """Until the fake has written so many samples."""
    pause = threading.Event()
    for _ in range(500):
        if ticks.exists() and len(ticks.read_text().splitlines()) >= lines:
            return
        pause.wait(0.02)
    raise AssertionError("the fake nvidia-smi wrote no samples")
