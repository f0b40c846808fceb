"""The writeup of a campaign: `python -m campaign.report` renders its results as Markdown.

The text is the same for the same data: its date is that of the newest outcome, and no clock is read.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from campaign import accounts, cells, errors, format, lane, matrix, statements, tables
from campaign.cells import BootRecord, Record, Results
from campaign.files import write_text
from campaign.markdown import code, escaped, link
from campaign.matrix import Matrix
from campaign.tables import Rows

TEMPLATES = Path(__file__).parents[1] / "templates"
CLIENT = {
    "cpu": "{}",
    "cores": "{} cores",
    "memory_gib": "{} GiB of memory",
    "os": "{}",
    "python": "Python {}",
}


def render(results: Results, out: Path) -> str:
    """The report as Markdown; its links are relative to the directory of `out`."""
    plan = results.matrix
    same_facts, boot_facts = accounts.facts(results)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template("report.md.j2").render(
        name=plan.name,
        campaign=plan.campaign,
        lane=plan.lane,
        venue=plan.venue,
        date=date(results),
        baseline=Rows(results).label(plan.campaign.baseline),
        warm_up=statements.warm_up(plan.lane.warm_up),
        instruments=statements.instruments(results),
        command=command(plan),
        setup=setup(results, same_facts),
        arms=accounts.arms(results),
        boot_facts=boot_facts,
        llama_benchy=tables.llama_benchy(results),
        probe=tables.probe(results),
        quality=tables.quality(results),
        failures=accounts.failures(results),
        ledger=accounts.ledger(results),
        checks=accounts.checks(results),
        flags=accounts.flags(results),
        gaps=statements.gaps(results),
        limits=statements.limits(results),
        sources=sources(results, out),
        ledger_link=link("the boot ledger", plan.ledger, out) if results.attempts else None,
        example=example(results),
    )
    return text.strip() + "\n"


def date(results: Results) -> str | None:
    """The day of the newest outcome; None before the first one."""
    ended = [outcome.ended for outcome in accounts.current(results) if outcome.ended]
    return max(ended)[:10] if ended else None


def command(plan: Matrix) -> str:
    """The baseline's command line, with placeholders for what differs from machine to machine."""
    words = lane.command_template(plan.lane, plan.variants[plan.campaign.baseline].flags)
    return " ".join(word if word and not set(word) & set(" \t\n\"'`$&|;<>") else repr(word) for word in words)


def setup(results: Results, facts: list[tuple[str, str]]) -> list[str]:
    """Lines of Markdown on engine, image, model, client and what every boot of the engine reports."""
    served = results.matrix.lane
    model = served.model
    rows = [
        ("engine", escaped(served.engine)),
        ("env of the baseline", _env(results.matrix)),
        ("image", code(served.image) if served.image else ""),
        ("model", escaped(model.name)),
        ("model file", code(model.file) if model.file else ""),
        ("model revision", code(model.revision) if model.revision else ""),
        ("model sha256", code(model.sha256) if model.sha256 else ""),
        *_packages(results),
        *_clients(results),
        ("at every boot the engine reports", "; ".join(f"{name} {value}" for name, value in facts)),
    ]
    return [f"{name}: {value}" for name, value in rows if value]


def sources(results: Results, out: Path) -> list[str]:
    """For each boot, links to the files behind its rows."""
    rows = Rows(results)
    return [
        f"{rows.name(boot.boot)}: {told}"
        for boot in results.boots
        if (told := _sources(boot, out)) is not None
    ]


def example(results: Results) -> str | None:
    """The path of one cell, a failed one if there is any: what a rerun could name."""
    found = sorted(results.cells, key=lambda record: record.state not in cells.RETRIED)
    return found[0].path.as_posix() if found else None


def _sources(boot: BootRecord, out: Path) -> str | None:
    parts: dict[str, list[str]] = {}
    named: list[tuple[str, str, Record]] = [
        ("", "boot", boot.record),
        ("", "warm-up", boot.warm_up),
        *((cell.cell.instrument, cell.cell.point, cell) for cell in boot.cells),
    ]
    for group, name, record in named:
        if record.current is not None:
            mark = " (recorded)" if record.recorded else ""
            parts.setdefault(group, []).append(link(name, record.path, out) + mark)
    if not parts:
        return None
    return "; ".join(
        " ".join([*([group] if group else []), ", ".join(links)]) for group, links in parts.items()
    )


def _env(plan: Matrix) -> str:
    env = plan.variants[plan.campaign.baseline].env
    return ", ".join(code(f"{name}={lane.text_of(value)}") for name, value in env.items())


def _packages(results: Results) -> list[tuple[str, str]]:
    found = accounts.distinct(results, "packages")
    return [
        ("engine packages" + _share(number, len(found)), _versions(value))
        for value, number in found
        if isinstance(value, dict)
    ]


def _clients(results: Results) -> list[tuple[str, str]]:
    found = accounts.distinct(results, "client")
    rows = []
    for value, number in found:
        if isinstance(value, dict):
            told = [shape.format(escaped(str(value[key]))) for key, shape in CLIENT.items() if value.get(key)]
            packages = value.get("packages")
            told += [_versions(packages)] if isinstance(packages, dict) and packages else []
            rows.append(("client" + _share(number, len(found)), ", ".join(told)))
    return rows


def _versions(packages: dict[str, Any]) -> str:
    return ", ".join(f"{escaped(name)} {escaped(str(v))}" for name, v in packages.items() if v is not None)


def _share(number: int, kinds: int) -> str:
    """Says of how many records one of several values is."""
    return f" of {format.plural(number, 'record')}" if kinds > 1 else ""


def main() -> int:
    """Render the report of one campaign."""
    parser = argparse.ArgumentParser(prog="python -m campaign.report", description=__doc__)
    parser.add_argument("--campaign", required=True, help="a file under config/campaigns, without .yaml")
    parser.add_argument("--out", required=True, type=Path, help="where the report is written")
    args = parser.parse_args()
    write_text(args.out, render(cells.read(matrix.load(args.campaign)), args.out))
    return 0


if __name__ == "__main__":
    errors.run(main)
