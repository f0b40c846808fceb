"""What makes a cell another cell, and what doesn't."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign import instruments, lane, tokenizer
from campaign.errors import CampaignError
from campaign.expression import evaluate
from campaign.files import digest
from campaign.matrix import Matrix, load
from campaign.schema import Lane, Variant
from campaign.workflow import Plan
from hypothesis import given
from hypothesis import strategies as st
from workspace import Workspace


@pytest.fixture
def here(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace that is the working directory."""
    monkeypatch.chdir(workspace.root)
    return workspace


def fingerprints(matrix: Matrix) -> dict[str, str]:
    """By variant."""
    return {name: variant.fingerprint for name, variant in matrix.variants.items()}


CHANGES: dict[str, tuple[Callable[[Workspace], Any], set[str]]] = {
    "a flag of one variant": (
        lambda w: w.campaigns["demo"]["variants"]["slow"].update(flags={"--tps": 1}),
        {"slow"},
    ),
    "env of one variant": (lambda w: w.campaigns["demo"]["variants"]["slow"].update(env={"A": 1}), {"slow"}),
    "a flag of the lane": (lambda w: w.lane["flags"].update({"--ttft": 0.5}), {"base", "slow", "huge"}),
    "the image": (lambda w: w.lane.update(image="x:v2"), {"base", "slow", "huge"}),
    "the model's revision": (lambda w: w.lane["model"].update(revision="r2"), {"base", "slow", "huge"}),
    "a label": (lambda w: w.campaigns["demo"]["variants"]["slow"].update(label="other"), set()),
    "patience": (lambda w: w.lane.update(ready_timeout_s=9, stop_timeout_s=9, port=8123), set()),
    "prose": (lambda w: w.campaigns["demo"].update(findings="x", title="y"), set()),
    "a constraint that blocks": (
        lambda w: w.lane["constraints"][0].update(expression="tps > 1500"),
        {"slow", "huge"},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_identity_changes_with_what_is_measured_and_nothing_else(here: Workspace, change: str) -> None:
    before = fingerprints(load("demo"))
    edit, changed = CHANGES[change]
    edit(here)
    here.write()
    after = fingerprints(load("demo"))
    assert {name for name in before if before[name] != after[name]} == changed


def test_a_package_version_is_part_of_the_identity(here: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    here.lane["packages"] = ["httpx"]
    here.write()
    before = fingerprints(load("demo"))
    monkeypatch.setattr(lane.importlib.metadata, "version", lambda name: "99")
    assert fingerprints(load("demo"))["base"] != before["base"]


def test_another_venue_is_another_measurement_and_its_description_is_not(here: Workspace) -> None:
    before = fingerprints(load("demo"))
    here.dump("config/venues/here.yaml", {"description": "words", "lease_wait_s": 9})
    assert fingerprints(load("demo")) == before
    here.dump("config/venues/here.yaml", {"description": "words", "hosts": ["a", "b"]})
    assert fingerprints(load("demo"))["base"] != before["base"]
    here.campaigns["demo"]["venue"] = "there"
    here.write()
    here.dump("config/venues/there.yaml", {"description": "this machine"})
    assert fingerprints(load("demo"))["base"] != before["base"]


def test_weights_replaced_in_place_are_other_weights(here: Workspace) -> None:
    folder = here.root / "weights"
    folder.mkdir()
    for path in (folder / "a.bin", folder):
        (folder / "a.bin").write_text("a")
        here.lane["model"] = {"name": "m", "path": str(path)}
        here.write()
        before = fingerprints(load("demo"))["base"]
        assert fingerprints(load("demo"))["base"] == before
        (folder / ".cache").write_text("no weights")
        assert fingerprints(load("demo"))["base"] == before
        (folder / "a.bin").write_text("b")
        os.utime(folder / "a.bin", ns=(1, 1))
        assert fingerprints(load("demo"))["base"] != before
    here.lane["model"]["sha256"] = "0" * 64
    here.write()
    before = fingerprints(load("demo"))["base"]
    (folder / "a.bin").write_text("ccc")
    assert fingerprints(load("demo"))["base"] == before
    shutil.rmtree(folder)
    assert fingerprints(load("demo"))["base"] == before


def benchy_of(here: Workspace, **changes: Any) -> dict[str, str]:
    """Fingerprints of one llama-benchy cell and one of the probe, with these keys of the lane."""
    here.lane.update(changes)
    here.write()
    cells = [cell for cell in load("demo").cells if cell.boot.variant == "slow"]
    return {cell.instrument: cell.fingerprint for cell in cells}


def test_what_llama_benchys_prompts_are_made_of_is_part_of_its_cells(here: Workspace) -> None:
    here.campaigns["demo"]["instruments"].append({"instrument": "llama_benchy"})
    book, folder = here.root / "book.txt", here.root / "tokenizer"
    book.write_text("a")
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    seen = [
        benchy_of(here),
        benchy_of(here, tokenizer="a/hub-name"),
        benchy_of(here, tokenizer=str(folder)),
        benchy_of(here, book=str(book)),
    ]
    book.write_text("b")
    seen.append(benchy_of(here))
    (folder / "tokenizer.json").write_text("[]")
    seen.append(benchy_of(here))
    seen.append(benchy_of(here, speculates_if="tps == 1000"))
    assert benchy_of(here) == seen[-1]
    assert len({cells["llama_benchy"] for cells in seen}) == len(seen)
    assert len({cells["probe"] for cells in seen}) == 1


def test_a_timeout_is_no_part_of_an_instrument(here: Workspace) -> None:
    before = [cell.fingerprint for cell in load("demo").cells]
    here.campaigns["demo"]["instruments"][0]["timeout_s"] = 5
    here.write()
    assert [cell.fingerprint for cell in load("demo").cells] == before
    here.campaigns["demo"]["instruments"][0]["passes"] = 3
    here.write()
    assert all(a != b for a, b in zip([c.fingerprint for c in load("demo").cells], before, strict=True))


def test_order_gives_boots_and_a_variant_left_out_is_planned(here: Workspace) -> None:
    here.campaigns["demo"]["order"] = ["slow", "base", "slow"]
    matrix = load("demo") if here.write() else None
    assert matrix is not None
    assert [(b.variant, b.name) for b in matrix.boots] == [("slow", "b1"), ("base", "b1"), ("slow", "b2")]
    assert matrix.planned == ["huge"]
    with pytest.raises(CampaignError, match="no boot b2 of base"):
        matrix.boot("base", "b2")


def test_blocks_apply_to_their_variants_and_boots(here: Workspace) -> None:
    here.campaigns["demo"]["instruments"].append(
        {"instrument": "tool_eval", "label": "short", "variants": ["base"], "boots": ["b2"]}
    )
    here.write()
    cells = [c for c in load("demo").cells if c.instrument == "tool_eval"]
    assert [str(c.path) for c in cells] == ["results/demo/base/b2/tool_eval/short.json"]


def test_flags_become_arguments_and_null_takes_one_away() -> None:
    served = Lane(
        description="x",
        engine="other",
        command=["serve", "{model}"],
        model={"name": "m"},
        flags={"--a": 1, "--b": True, "--c": "x y"},
    )
    flags = lane.merged_flags(served, Variant(flags={"--a": None, "--d": False, "--e": [1, "two"]}))
    template = lane.command_template(served, flags)
    assert template == ["serve", "{model}", "--b", "--c", "x y", "--e", "1", "two"]
    assert lane.fill(template, served, 1)[:2] == ["serve", "m"]


def test_placeholders_are_filled_in_the_command_and_nowhere_else() -> None:
    served = Lane(
        description="x",
        engine="other",
        command=["serve", "{model}", "--url=http://{host}:{port}/{name}", "{names}"],
        model={"name": "{port}"},
        flags={"--json": '{"a":{port}}', "--b": "{model}"},
    )
    line = lane.fill(lane.command_template(served, served.flags), served, 7)
    assert line == [
        *["serve", "{port}", "--url=http://127.0.0.1:7/{port}", "{names}"],
        *["--json", '{"a":{port}}', "--b", "{model}"],
    ]


def test_env_may_be_used_in_a_constraint_as_a_number() -> None:
    rule = "max_prefill_tokens * 24 <= SPARK_ENGRAM_MAX_IDS"
    env = {"SPARK_ENGRAM_MAX_IDS": "65536"}
    assert evaluate(rule, {"--max-prefill-tokens": 2048}, env, "here")
    assert not evaluate(rule, {"--max-prefill-tokens": 8192}, env, "here")
    assert evaluate('value("spec_type", "none") == "none"', {}, {}, "here")


@given(st.text(max_size=60))
def test_any_expression_is_a_truth_or_a_sentence(text: str) -> None:
    try:
        told = str(evaluate(text, {"--ctx-size": 1}, {}, "here"))
    except CampaignError as error:
        told = str(error)
    assert told in ("True", "False") or told.startswith("here: ")


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=8)


@given(st.dictionaries(st.text(max_size=8), scalars))
def test_a_digest_does_not_depend_on_the_order_of_keys(data: dict[str, Any]) -> None:
    assert digest(dict(reversed(data.items()))) == digest(data)


def test_a_check_wants_only_what_the_cells_to_be_measured_need(
    here: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMPAIGN_ENVS", str(here.root / "none"))
    here.campaigns["demo"]["instruments"] += [
        {"instrument": "llama_benchy", "version": "0.3.8", "variants": ["base"]},
        {"instrument": "llama_benchy", "variants": ["slow", "huge"]},
    ]
    here.write()
    plan = Plan.of({"campaigns": ["demo"]})
    paths = {str(cell.path): cell for cell in plan.matrices["demo"].cells}
    plan.check([path for path, cell in paths.items() if cell.boot.variant in ("base", "huge")])
    plan.check(["reports/demo.md"])
    with pytest.raises(CampaignError, match=r"demo\.yaml can't be measured: .*tokenizer: gguf needs"):
        plan.check(paths)
    here.lane.update(tokenizer="a/hub-name", book="~/no/such/book")
    here.write()
    with pytest.raises(CampaignError, match=r"book: .*/no/such/book is not there"):
        Plan.of({"campaigns": ["demo"]}).check(paths)
    here.lane.pop("book")
    here.write()
    with pytest.raises(CampaignError, match=r"llama-benchy 0\.4\.0 is not installed"):
        Plan.of({"campaigns": ["demo"]}).check(paths)


@pytest.mark.parametrize("name", ["/models/x", "../x", "x"])
def test_a_tokenizer_made_from_the_weights_stays_under_results(
    here: Workspace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tokenizer, "ensure", lambda gguf, out: out)
    made = set()
    for file in ("a.gguf", "b.gguf"):
        (here.root / file).write_text("x")
        here.lane["model"] = {"name": name, "path": file}
        here.write()
        made.add(Path(instruments._tokenizer(load("demo"))))
    assert len(made) == 2
    assert {folder.parent for folder in made} == {instruments.ASSETS / "tokenizers"}
    assert all(".." not in folder.parts for folder in made)
