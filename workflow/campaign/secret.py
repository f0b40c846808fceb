"""What looks like a secret in a config file: refused, since everything written there ends up in results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from campaign.errors import CampaignError

NAME = re.compile(
    r"(^|[_-])(api[_-]?key|key|access[_-]?key[_-]id|token|secrets?|passwd|pwd|passphrase|credentials?"
    r"|auth|authorization)$|password$|(?-i:(^|_|PG)PASS$)",
    re.IGNORECASE,
)
"""Names of secrets: ANTHROPIC_KEY, --hf-token, PGPASS; not --max-tokens, --cache-type-k or --pass."""
VALUE = re.compile(
    r"\bBearer\s+\S|\bAuthorization\s*[:=]|(?<![\w./-])(sk-[A-Za-z0-9]|hf_([A-Za-z0-9]{16}|[A-Za-z]*\d)|gh[pousr]_\w"
    r"|nvapi-\w|AKIA[A-Z0-9]{16})|://[^/\s:@]*:[^/\s@]+@",
    re.IGNORECASE,
)
"""Values of secrets: bearer tokens by their usual beginnings, and a password within an address."""


def refuse(flags: Mapping[str, object], env: Mapping[str, object], where: str) -> None:
    """Raise CampaignError for a flag or env that looks like a secret; the sentence never holds its value."""
    for kind, values in (("flags", flags), ("env", env)):
        for name, value in values.items():
            if NAME.search(name) and value is not None and not isinstance(value, bool):
                raise _error(f"{where}: {kind}: {name}")
            if any(VALUE.search(text) for text in _texts(value)):
                raise _error(f"{where}: {kind}: the value of {name}")
            if isinstance(value, list):
                refuse_words(_texts(value), f"{where}: {kind}.{name}")


def refuse_words(words: Iterable[str], where: str) -> None:
    """The same for the words of a command line, where a word may be --flag, --flag=value or NAME=value."""
    for number, word in enumerate(words):
        if VALUE.search(word):
            raise _error(f"{where}: word {number + 1}")
        for piece in word.split():
            name, assigned, _ = piece.partition("=")
            if (assigned or name.startswith("-")) and NAME.search(name):
                raise _error(f"{where}: {name}")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)


def _error(what: str) -> CampaignError:
    return CampaignError(
        f"{what} looks like a secret, and what is written here ends up in results; name its environment "
        "variable in the lane's pass_env (an API key's in api_key_env)."
    )
