"""Cold prompts of an asked size: a fresh nonce first, then filler, then a task of about 150 words.

A prefix cache is keyed by the beginning of a prompt, so the nonce must lead. It and the filler are common
English words, which nearly every tokenizer takes as one token each: then the size grows evenly with the
number of words, and two measured sizes give the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

_WORDS = """
    time year people way day man thing woman life child world school state family student group country
    problem hand part place case week company system program question work number night point home water
    room mother area money story fact month lot right study book eye job word business issue side kind
    head house service friend father power hour game line end member law car city name team minute idea
    body back parent face others level office door health person art war history party result change
    morning reason research girl guy moment air teacher force education foot boy age policy music market
    sense nation plan college interest death course someone experience behind local sure street table
    north south green river
"""
WORDS = _WORDS.split()
NONCE_WORDS = 10
"""Ten of these words are 69 bits: two prompts agree in a word or two by chance, never in a whole nonce."""
TASK = "Write one paragraph of about 150 words on the history of bridges."
TOLERANCE = 0.02
"""A prompt within this share of the asked size has that size."""


def nonce() -> str:
    """A beginning that no earlier prompt had, of any run."""
    return " ".join(secrets.choice(WORDS) for _ in range(NONCE_WORDS))


def cold_prompt(filler_words: int) -> str:
    """A prompt never sent before, with so many words between its nonce and its task."""
    filler = "".join(f" {secrets.choice(WORDS)}" for _ in range(filler_words))
    return f"{nonce()}.{filler} {TASK}"


@dataclass(frozen=True)
class Sizing:
    """How the server's prompt tokens grow with the filler: `base` + `per_word` x words."""

    base: float
    per_word: float

    @classmethod
    def of(cls, measured: Sequence[tuple[int, int]]) -> Sizing | None:
        """From (filler words, prompt tokens) pairs; None if the server's count doesn't follow the prompt."""
        if not measured:
            return None
        (w0, t0), (w1, t1) = min(measured), max(measured)
        if w1 == w0 or t1 <= t0:
            return None
        slope = (t1 - t0) / (w1 - w0)
        return cls(t0 - slope * w0, slope)

    def words(self, prompt_tokens: int) -> int:
        """Filler words that bring a prompt nearest to so many tokens; 0 where even none is too many."""
        return max(0, round((prompt_tokens - self.base) / self.per_word))


def fits(asked: int, measured: int) -> bool:
    """Whether the server's count is the asked size within TOLERANCE, or the nearest whole token."""
    return abs(measured - asked) <= max(1.0, TOLERANCE * asked)
