"""Bad input gets one sentence with file and key, before any boot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from campaign import config, reference, schema
from campaign.errors import CampaignError
from campaign.matrix import load
from workspace import Workspace

Path_ = tuple[str, ...]


@pytest.fixture
def here(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace that is the working directory."""
    monkeypatch.chdir(workspace.root)
    return workspace


def put(data: dict[str, Any], path: Path_, value: Any) -> None:
    """Set a nested key."""
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


EMPTY = {
    "probe": ["variants", "boots", "prompt_tokens", "concurrency"],
    "llama_benchy": ["pp", "tg", "depth", "concurrency"],
    "tool_eval": ["scenarios"],
}
LIKE = {"base": {"label": "a b"}, "slow": {"label": " a  b "}, "huge": {}}
CAMPAIGN_MISTAKES: dict[str, tuple[Path_, Any, list[str]]] = {
    "misspelt key": (("questoin",), "?", ["questoin", "no such key"]),
    "unknown baseline": (("baseline",), "bas", ["baseline", "bas is no variant", "base, slow, huge"]),
    "unknown variant in order": (("order",), ["base", "slwo"], ["order", "slwo is no variant"]),
    "empty order": (("order",), [], ["order", "names no variant"]),
    "unsafe variant name": (("variants", "../up"), {}, ["variants", "../up", "must match"]),
    "absolute variant name": (("variants", "/tmp/x"), {}, ["variants", "/tmp/x", "must match"]),
    "reserved variant name": (("variants", "cells.csv"), {}, ["variants", "cells.csv", "file that results"]),
    "blank label": (("variants", "slow", "label"), " ", ["variants.slow.label", "must have words"]),
    "label like another's": (("variants",), LIKE, ["variants.slow.label", "also the label of base"]),
    "label with a newline": (
        ("variants", "slow", "label"),
        "a\nb",
        ["variants.slow.label", "must be one line"],
    ),
    "title with an escape": (("title",), "a\x1b[1mb", ["title", "without control characters"]),
    "note with a line separator": (
        ("variants", "slow", "note"),
        "a\u2028b",
        ["slow.note", "must be one line"],
    ),
    "boot that nobody has": (
        ("instruments",),
        [{"instrument": "probe", "variants": ["slow"], "boots": ["b2"]}],
        ["instruments.0.boots", "b2 is no boot of this block's variants", "1x"],
    ),
    **{
        f"empty {key} of {name}": (
            ("instruments",),
            [{"instrument": name, key: [], **({"label": "x"} if name == "tool_eval" else {})}],
            ["instruments.0", key, "at least 1 item"],
        )
        for name, keys in EMPTY.items()
        for key in keys
    },
    "infinite time": (
        ("instruments",),
        [{"instrument": "probe", "timeout_s": "inf"}],
        ["timeout_s", "finite number"],
    ),
    "duplicate label": (
        ("variants", "slow", "label"),
        "base",
        ["variants.slow.label", "also the label of base"],
    ),
    "flag without a dash": (("variants", "slow", "flags"), {"tps": 1}, ["variants.slow.flags", "must match"]),
    "unknown lane": (("lane",), "nowhere", ["config/lanes/nowhere.yaml is not there"]),
    "unknown instrument": (
        ("instruments",),
        [{"instrument": "stopwatch"}],
        ["instruments.0", "stopwatch", "probe"],
    ),
    "misspelt instrument key": (
        ("instruments",),
        [{"instrument": "probe", "pases": 3}],
        ["instruments.0.probe.pases", "no such key"],
    ),
    "point in two blocks": (
        ("instruments",),
        [{"instrument": "probe"}, {"instrument": "probe"}],
        ["instruments.1", "pp2048-tg256-c1", "two blocks"],
    ),
    "secret in env": (
        ("variants", "slow", "env"),
        {"HF_TOKEN": "hunter2"},
        ["variants.slow", "HF_TOKEN", "pass_env"],
    ),
    "secret in a flag": (
        ("variants", "slow", "flags"),
        {"--api-key": "hunter2"},
        ["variants.slow", "--api-key", "pass_env"],
    ),
    "zero passes": (("instruments",), [{"instrument": "probe", "passes": 0}], ["passes", "greater than"]),
}


@pytest.mark.parametrize("mistake", CAMPAIGN_MISTAKES)
def test_a_mistake_in_a_campaign_is_one_sentence(here: Workspace, mistake: str) -> None:
    path, value, told = CAMPAIGN_MISTAKES[mistake]
    put(here.campaigns["demo"], path, value)
    here.write()
    with pytest.raises(CampaignError) as caught:
        load("demo")
    said = str(caught.value)
    assert "\n" not in said
    assert all(part in said for part in told), said
    assert "config/" in said
    assert "hunter2" not in said


LANE_MISTAKES: dict[str, tuple[Path_, Any, list[str]]] = {
    "bad expression": (
        ("constraints", 0, "expression"),
        "ctx <=",
        ["constraints.0.expression", "can't be evaluated"],
    ),  # type: ignore[dict-item]
    "unknown name": (("constraints", 0, "expression"), "ctxx <= 1", ["uses ctxx", 'value("ctxx", default)']),  # type: ignore[dict-item]
    "not a yes or no": (("constraints", 0, "expression"), "ctx + 1", ["not true or false"]),  # type: ignore[dict-item]
    "code": (
        ("constraints", 0, "expression"),  # type: ignore[dict-item]
        "__import__('os').system('touch owned')",
        ["can't be evaluated"],
    ),
    "no such letter": (("constraints", 0, "expression"), '"abc"[10] == "a"', ["can't be evaluated"]),  # type: ignore[dict-item]
    "no such attribute": (("constraints", 0, "expression"), "ctx.x == 1", ["can't be evaluated"]),  # type: ignore[dict-item]
    "two expressions": (("constraints", 0, "expression"), "1==1;2==2", ["can't be evaluated"]),  # type: ignore[dict-item]
    "two lines": (("constraints", 0, "expression"), "1==1\n2==2", ["can't be evaluated"]),  # type: ignore[dict-item]
    "huge power": (("constraints", 0, "expression"), "9**9**9 > 1", ["can't be evaluated"]),  # type: ignore[dict-item]
    "path and package": (("model",), {"name": "x", "path": "p", "package": "q", "file": "f"}, ["not both"]),
    "endless patience": (("stop_timeout_s",), "inf", ["stop_timeout_s", "finite number"]),
    "port out of range": (("port",), 70000, ["port", "65535"]),
}


@pytest.mark.parametrize("mistake", LANE_MISTAKES)
def test_a_mistake_in_a_lane_is_one_sentence(here: Workspace, mistake: str) -> None:
    path, value, told = LANE_MISTAKES[mistake]
    put(here.lane, path, value)
    here.write()
    with pytest.raises(CampaignError) as caught:
        load("demo")
    said = str(caught.value)
    assert "\n" not in said
    assert all(part in said for part in told), said
    assert "config/lanes/fake.yaml" in said
    assert not Path("owned").exists()


RAW = {
    "not YAML": ("title: [", "is not YAML"),
    "not a mapping": ("- a\n- b\n", "must be a mapping"),
    "empty": ("", "must be a mapping"),
    "key twice": ("title: a\ntitle: b\n", "the key 'title' is written twice"),
    "alias": ("a: &a [x]\nb: [*a, *a]\n", "aliases (*name) are not read"),
    "python tag": ("a: !!python/object/apply:os.system ['touch owned']\n", "is not YAML"),
    "integer's tag": ("a: !!int x\n", "the tag of 'tag:yaml.org,2002:int' is not read"),
    "float's tag": ("a: !!float x\n", "is not read"),
    "bool's tag": ("a: !!bool x\n", "is not read"),
    "set's tag": ("a: !!set {x}\n", "is not read"),
    "timestamp's tag": ("a: !!timestamp x\n", "is not read"),
    "endless integer": ("a: " + "9" * 5000 + "\n", "5000 characters is too long"),
    "endless float": ("a: " + "9" * 5000 + ".5\n", "is too long"),
    "half a surrogate pair": ('title: "a\\ud800"\n', "title: 'a\\ud800' holds a NUL byte or half"),
    "NUL": (
        'variants: {base: {flags: {--a: [x, "\\0"]}}}\n',
        "variants.base.flags.--a.1: '\\x00' holds a NUL",
    ),
    "NUL in a key": ('"a\\0": 1\n', "holds a NUL"),
    "infinite": ("variants: {base: {flags: {--a: .inf}}}\n", "variants.base.flags.--a: inf is not a number"),
    "overflow": ("variants: {base: {flags: {--a: 1.0e+999}}}\n", "inf is not a number"),
    "not a number": ("a: -.NAN\nb: .nan\n", "b: nan is not a number"),
    "tab": ("a:\n\t- b\n", "is not YAML"),
    "not UTF-8": (b"title: \xff\xfe\n", "is not YAML"),
}


@pytest.mark.parametrize("kind", RAW)
def test_a_file_that_cannot_be_read_is_named(here: Workspace, kind: str) -> None:
    text, told = RAW[kind]
    file = here.root / "config/campaigns/demo.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CampaignError) as caught:
        load("demo")
    assert told in str(caught.value)
    assert str(caught.value).startswith("config/campaigns/demo.yaml")
    assert "\n" not in str(caught.value)
    assert not Path("owned").exists()


AS_WRITTEN = {
    "022": "022",
    "1:30": "1:30",
    "1_000": "1_000",
    "0x1F": "0x1F",
    "0b_": "0b_",
    "0o17": "0o17",
    "2024-13-45": "2024-13-45",
    "2024-02-30": "2024-02-30",
    "2024-02-03": "2024-02-03",
    "on": "on",
    "Off": "Off",
    "yes": "yes",
    "n": "n",
    "=": "=",
    "1e5": "1e5",
    "00.5": "00.5",
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "FALSE": False,
    "0": 0,
    "-17": -17,
    "+3": 3,
    "1.50": 1.5,
    ".5": 0.5,
    "-2.0e-3": -0.002,
    '"1"': "1",
    "!!str 1": "1",
}


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_a_scalar_is_what_it_looks_like(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"a: {text}\n")
    found = config.read_yaml(file)["a"]
    assert (found, type(found)) == (AS_WRITTEN[text], type(AS_WRITTEN[text]))


SECRET_ENV = [
    *["HF_TOKEN", "HF_AUTH", "ANTHROPIC_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
    *["PGPASS", "PGPASSWORD", "DB_PASS"],
]
SECRET_FLAGS = ["--api-key", "--hf-token", "--Authorization", "--admin-password", "--ssl-key"]
SECRET_VALUES = [
    "Bearer hunter2",
    "Authorization: Basic hunter2",
    "sk-hunter2",
    "hf_hunter2",
    ["x", "sk-hunter2"],
    ["--api-key", "hunter2"],
    "http://me:hunter2@host",
    '{"headers": {"authorization": "bearer hunter2"}}',
]
SECRET_WORDS = [
    ["--api-key", "hunter2"],
    ["--api-key=hunter2"],
    ["env", "HF_TOKEN=hunter2"],
    ["x", "sk-hunter2"],
    ["bash", "-c", "vllm serve --api-key hunter2"],
]
NO_SECRETS: dict[str, Any] = {
    "--max-tokens": 3,
    "--tokenizer": "hf_transfer",
    "--cache-type-k": "f16",
    "--pass": "x",
    "--two-pass": "x",
    "--pass-through": "x",
    "--key-value-cache": "fp8",
    "--no-auth": True,
    "--path": "/disk-1/risk-x/sk-y",
    "--json": '{"cudagraph_mode": "full", "url": "http://host:80/x"}',
}


@pytest.mark.parametrize("place", ["lane", "variant"])
@pytest.mark.parametrize("name", [*SECRET_ENV, *SECRET_FLAGS, *map(str, range(len(SECRET_VALUES)))])
def test_what_looks_like_a_secret_is_refused_and_not_said(here: Workspace, name: str, place: str) -> None:
    key, value = ("--x", SECRET_VALUES[int(name)]) if name.isdigit() else (name, "hunter2")
    target = here.lane if place == "lane" else here.campaigns["demo"]["variants"]["slow"]
    target.setdefault("flags" if key.startswith("-") else "env", {})[key] = value
    here.write()
    with pytest.raises(CampaignError, match=r"looks like a secret.*pass_env") as caught:
        load("demo")
    assert key in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert ("config/lanes/fake.yaml" if place == "lane" else "variants.slow") in str(caught.value)


@pytest.mark.parametrize("words", SECRET_WORDS)
def test_a_secret_in_the_command_is_refused_and_not_said(here: Workspace, words: list[str]) -> None:
    here.lane["command"] += words
    here.write()
    with pytest.raises(CampaignError, match=r"fake\.yaml: command: .*looks like a secret") as caught:
        load("demo")
    assert "hunter2" not in str(caught.value)


def test_what_only_reminds_of_a_secret_is_read(here: Workspace) -> None:
    here.lane["flags"].update(NO_SECRETS)
    here.lane["env"] = {
        "SPARK_ENGRAM_MAX_IDS": 65536,
        "TOKENIZERS_PARALLELISM": "true",
        "BYPASS": "x",
        "KEYS": 1,
    }
    here.lane["command"] += ["--max-tokens", "3", "--chat-template={{ eos_token }}", "-e", "HF_TOKEN"]
    here.write()
    assert load("demo").variants["base"].flags["--pass"] == "x"


def test_a_campaign_name_cannot_leave_its_folder() -> None:
    with pytest.raises(CampaignError, match="is not a name"):
        config.load_campaign("../lanes/fake")


def test_snakemake_says_the_sentence_without_a_traceback(workspace: Workspace) -> None:
    workspace.campaigns["demo"]["baseline"] = "bas"
    said = workspace.write().output("-n", expect=1)
    assert (
        "config/campaigns/demo.yaml: baseline: bas is no variant of this campaign (base, slow, huge)." in said
    )
    assert "Traceback" not in said


@pytest.mark.parametrize("kind", schema.FILES)
def test_schemas_are_in_step_with_the_models(kind: str) -> None:
    written = (reference.SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8")
    assert written == reference.schema_of(kind), "run make schemas"
    assert reference.README.read_text(encoding="utf-8") == reference.readme(), "run make schemas"


@pytest.mark.parametrize("kind", schema.FILES)
def test_every_key_has_a_description_and_unknown_keys_are_refused(kind: str) -> None:
    definition = schema.FILES[kind].model_json_schema()
    for part in [definition, *definition.get("$defs", {}).values()]:
        if part.get("type") != "object":
            continue
        assert part["additionalProperties"] is False, part["title"]
        for key, value in part["properties"].items():
            assert value.get("description") or "$ref" in value, f"{part['title']}.{key}"


def test_the_shipped_campaigns_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    matrix = load("smollm2-cpu")
    assert matrix.variants["kv_q8_no_fa"].blocked is not None
    assert matrix.variants["ngram"].speculates
    assert not matrix.variants["baseline"].speculates
    assert [boot.name for boot in matrix.boots if boot.variant == "baseline"] == ["b1", "b2"]
