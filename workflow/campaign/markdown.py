"""Text put safely into Markdown: engines' error lines, labels, links and aligned tables."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from tabulate import tabulate

LONGEST = 240
_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\))")
_SPECIAL = re.compile(r"[\\`*\[\]~#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "$": "&#36;"}


def one_line(text: str, longest: int = LONGEST) -> str:
    """Text without colours, control characters and line breaks, cut in the middle if it is too long."""
    plain = "".join(c if c.isprintable() else " " for c in _ANSI.sub("", text))
    plain = " ".join(plain.split())
    if len(plain) <= longest:
        return plain
    head = longest * 2 // 3
    return f"{plain[:head].rstrip()} … {plain[-(longest - head - 3) :].lstrip()}"


def escaped(text: str, longest: int = LONGEST) -> str:
    """Foreign text on one line that reads the same after rendering, inside a table or out of it."""
    safe = _SPECIAL.sub(lambda found: "\\" + found[0], one_line(text, longest))
    return "".join(_ENTITIES.get(c, c) for c in safe)


def code(text: str, longest: int = LONGEST) -> str:
    """Foreign text as a code span; `table` escapes the pipes in it."""
    plain = one_line(text, longest)
    # In a table a pipe gets a backslash even in code, and then no other may stand before it.
    if not plain or "\\|" in plain:
        return escaped(plain, longest)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def inline(text: str) -> str:
    """A label or note that is Markdown already, on one line."""
    return " ".join(text.split())


def link(text: str, target: Path, report: Path) -> str:
    """A link from the report to another file of the project, relative to the report's directory."""
    return f"[{text}]({quote(Path(os.path.relpath(target, report.parent)).as_posix())})"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A pipe table of Markdown; `align` has one letter a column, l or r. Empty columns are left out."""
    kept = [n for n in range(len(headers)) if any(row[n] for row in rows)]
    sides = {"l": "left", "r": "right"}
    return tabulate(
        [[_piped(row[n]) for n in kept] for row in rows],
        headers=[_piped(headers[n]) for n in kept],
        tablefmt="pipe",
        colalign=[sides[align[n]] for n in kept],
        disable_numparse=True,
    )


def _piped(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


class Notes:
    """Footnotes of one table: equal texts share a mark, ¹ ² ³ in order of first use."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """The superscript for a text."""
        number = str(len(self._marks) + 1).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return self._marks.setdefault(text, number)

    def lines(self) -> list[str]:
        """Each mark with its text."""
        return [f"{mark} {text}" for text, mark in self._marks.items()]
