"""workflow/schemas/ and config/README.md, written from the models; a test keeps them in step.

`python -m campaign.reference` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from campaign.files import write_text
from campaign.schema import FILES

SCHEMAS = Path(__file__).parents[1] / "schemas"
README = Path(__file__).parents[2] / "config" / "README.md"
PLACES = {
    "config": "config/config.yaml",
    "campaign": "config/campaigns/NAME.yaml",
    "lane": "config/lanes/NAME.yaml",
    "venue": "config/venues/NAME.yaml",
}
INTRODUCTION = """# The files under config/

Made by `make schemas` from the models in `workflow/campaign/schema.py` and `settings.py`. A key that is not
listed here is an error, and so is a key written twice."""


def schema_of(kind: str) -> str:
    """The JSON schema of one kind of file, as workflow/schemas/<kind>.schema.json holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **FILES[kind].model_json_schema()}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def readme() -> str:
    """config/README.md: every key of every file with its meaning and default."""
    parts = [INTRODUCTION]
    for kind, place in PLACES.items():
        root = FILES[kind].model_json_schema()
        parts += [f"## {place}", _says(root), _table(root, root.get("$defs", {}))]
        for part in root.get("$defs", {}).values():
            if part.get("type") == "object":
                parts += [f"### {part['title']}", _says(part), _table(part, root["$defs"])]
    return "\n\n".join(parts) + "\n"


def _says(part: dict[str, Any]) -> str:
    return str(part["description"]).splitlines()[0]


def _table(part: dict[str, Any], definitions: dict[str, Any]) -> str:
    rows = []
    for key, value in part["properties"].items():
        required = key in part.get("required", [])
        default = "required" if required else f"`{json.dumps(value.get('default'))}`"
        meaning = value.get("description") or _says(definitions[value["$ref"].rpartition("/")[2]])
        rows.append([f"`{key}`", meaning.replace("|", "\\|"), default])
    return tabulate(rows, headers=["key", "meaning", "default"], tablefmt="github")


def main() -> None:
    """Write all schemas and config/README.md."""
    for kind in FILES:
        write_text(SCHEMAS / f"{kind}.schema.json", schema_of(kind))
    write_text(README, readme())


if __name__ == "__main__":
    main()
