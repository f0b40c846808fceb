"""The boot ledger keeps what was written, whatever happens to the writer."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

from campaign import ledger

START = {"variant": "v", "boot": "b1", "attempt": 1, "run": "r", "fingerprint": "f", "log": "l", "why": "w"}


def test_an_attempt_is_told_from_its_events(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    ledger.append(path, "start", "v.b1.1", **START)
    assert ledger.read(path)[0].status == "interrupted"
    ledger.append(path, "ready", "v.b1.1", boot_s=1.5, facts={"kv_tokens": 7})
    ledger.append(path, "died", "v.b1.1", how="SIGKILL")
    ledger.append(path, "start", "v.b1.2", **{**START, "attempt": 2})
    ledger.append(path, "failed", "v.b1.2", boot_s=0.5, facts={}, reason={"class": "x", "summary": "y"})
    first, second = ledger.read(path)
    assert (first.status, first.boot_s, first.end, first.death) == ("ready", 1.5, "died", "SIGKILL")
    assert first.facts == {"kv_tokens": 7}
    assert (second.status, second.reason and second.reason.cls) == ("failed", "x")


def test_a_torn_line_is_passed_over_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.append(path, "start", "v.b1.1", **START)
    with path.open("ab") as handle:
        handle.write(b'{"event": "ready", "id": "v.b')
    ledger.append(path, "ready", "v.b1.1", boot_s=2.0, facts={})
    assert [attempt.boot_s for attempt in ledger.read(path)] == [2.0]
    path.write_bytes(b"\xff\xfe garbage\n[]\n{}\n" + path.read_bytes())
    assert [attempt.boot_s for attempt in ledger.read(path)] == [2.0]


def test_a_line_of_another_shape_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"event": "start", "id": [], "at": 1}\n{"event": "start", "id": "x"}\n')
    ledger.append(path, "start", "v.b1.1", **START)
    with path.open("a") as handle:
        handle.write(
            '{"event": "failed", "id": "v.b1.1", "boot_s": "x", "facts": 3}\n{"event": "ready", "id": []}\n'
        )
    (attempt,) = ledger.read(path)
    assert (attempt.status, attempt.boot_s, attempt.facts) == ("failed", None, {})
    assert attempt.reason is not None
    assert attempt.reason.cls == "unknown"


def _write_many(path: Path, name: str) -> None:
    for number in range(50):
        ledger.append(path, "start", f"{name}.{number}", **START)


def test_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = get_context("fork")
    writers = [context.Process(target=_write_many, args=(path, name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(ledger.read(path)) == 100


def test_no_ledger_is_an_empty_one(tmp_path: Path) -> None:
    assert ledger.read(tmp_path / "none.jsonl") == []
