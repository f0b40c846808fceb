"""Constraints over a variant's flags and env, evaluated with simpleeval and never with eval."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from simpleeval import DEFAULT_OPERATORS, InvalidExpression, NameNotDefined, SimpleEval

from campaign.errors import CampaignError

LONGEST = 500
BROKEN = (
    SyntaxError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    MemoryError,
    RecursionError,
)
Value = bool | int | float | str | None


def evaluate(expression: str, flags: Mapping[str, object], env: Mapping[str, object], where: str) -> bool:
    """Whether an expression holds for these flags and env.

    A flag's name loses its leading dashes and has _ for - and . (`--ctx-size` is `ctx_size`); an env variable
    keeps its name. `value("name", default)` reads one that may be absent. Numbers written as text count as
    numbers. Raises CampaignError, beginning with `where`, if the expression is broken or isn't a yes or no.
    """
    names = _names(flags, env)
    if len(expression) > LONGEST:
        raise CampaignError(f"{where}: the expression is longer than {LONGEST} characters; shorten it.")

    def value(name: str, default: Value = None) -> Value:
        return names.get(name, default)

    operators = {k: v for k, v in DEFAULT_OPERATORS.items() if k not in (ast.Pow, ast.LShift, ast.RShift)}
    reader = SimpleEval(
        operators=operators, names=names, functions={"value": value, "min": min, "max": max, "abs": abs}
    )
    try:
        # Parsed here: simpleeval reads the first of several statements and only warns of the others.
        tree = ast.parse(expression.strip(), mode="eval")
        result = reader.eval(expression, previously_parsed=tree.body)
    except NameNotDefined as error:
        known = ", ".join(sorted(names)) or "none"
        raise CampaignError(
            f'{where}: "{expression}" uses {error.name}, which is no flag or env of this variant ({known}); '
            f'set it, or write value("{error.name}", default).'
        ) from None
    except (InvalidExpression, *BROKEN) as error:
        told = " ".join(f'"{expression}" can\'t be evaluated ({error}); correct it.'.split())
        raise CampaignError(f"{where}: {told}") from None
    if not isinstance(result, bool):
        raise CampaignError(
            f'{where}: "{expression}" gives {result!r}, not true or false; make it a comparison.'
        )
    return result


def identifier(flag: str) -> str:
    """A flag's name as expressions write it."""
    return flag.lstrip("-").replace("-", "_").replace(".", "_")


def _names(flags: Mapping[str, object], env: Mapping[str, object]) -> dict[str, Value]:
    names = {identifier(flag): _number(value) for flag, value in flags.items()}
    names.update({name: _number(value) for name, value in env.items()})
    return names


def _number(value: object) -> Value:
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = str(value)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
