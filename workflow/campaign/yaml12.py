"""YAML as it is written: the scalars of YAML 1.2, and neither tags nor aliases.

YAML 1.1, which PyYAML reads, takes `on` for true, `022` for 18 and `1:30` for 90; here they stay text, as
does every scalar but true, false, null and decimal numbers without a leading zero.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

LONGEST_NUMBER = 40
TEXT = "tag:yaml.org,2002:str"
SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (
        r"[-+]?((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}


class Loader(yaml.SafeLoader):
    """A safe loader that refuses a key written twice, tags, and the aliases of a YAML bomb."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            raise _error("aliases (*name) are not read; write it out", self.get_mark())
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) not in (None, "!", TEXT):
            raise _error(f"the tag of {event.tag!r} is not read; write the plain value", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                raise _error(f"the key {key!r} is written twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def number(self, node: yaml.ScalarNode) -> int | float:
        """A number; one of more digits than any setting has is refused."""
        text = str(node.value)
        if len(text) > LONGEST_NUMBER:
            raise _error(f"a number of {len(text)} characters is too long; shorten it", node.start_mark)
        if node.tag.endswith(":int"):
            return int(text)
        return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))


for kind, (pattern, first) in SCALARS.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), first)
for kind in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.number)


def _error(said: str, mark: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, said, mark)
