"""The text from which llama-benchy draws its prompts: made here, the same bytes on every machine."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from campaign.errors import CampaignError
from campaign.files import sha256_of, write_text

T = TypeVar("T")

SEED = 1017
SIZE = 1_500_000
SHA256 = "e6f2693d5384f3a902ee339e01f5b441b133daf9a5327a00421c16d007104179"
WORDS = {
    "noun": """time day man door house hand water night road morning letter voice window table friend
    mother father brother sister child garden river mountain village city street market church
    bridge harbour island boat ship captain sailor soldier doctor teacher farmer baker painter
    stranger neighbour guest servant king queen prince judge clerk lawyer merchant thief horse
    dog cat bird fish cow sheep wolf fox tree forest field meadow hill valley stone rock sand
    dust snow rain wind storm thunder cloud sky sun moon star fire lamp candle shadow light
    darkness silence noise song story book page word name question answer reason secret promise
    dream memory thought idea mistake lesson habit duty journey voyage battle war peace victory
    law rule order price coin purse gold silver iron copper glass paper ink pen knife sword gun
    wheel cart engine train station ticket clock hour minute season summer winter spring autumn
    year century kitchen cellar attic roof wall floor stair corridor chamber bed chair mirror
    carpet curtain kettle cup plate bread butter cheese apple pear honey salt sugar wine tea
    coffee dinner supper breakfast coat hat glove boot shirt button pocket ring chain rope
    basket box key lock gate fence path corner shop school hospital prison tower castle palace
    ruin grave crowd family company army council parliament crown courage fear anger sorrow joy
    hope pity shame pride doubt trust hunger fever wound cure machine lever spring pump measure
    weight distance number figure map compass telescope experiment theory proof fact error
    signal wire message telegram newspaper report""",
    "verb": """walked ran came went stood sat lay rose fell climbed crossed entered left returned
    arrived waited watched saw heard listened spoke answered asked told whispered shouted
    laughed wept smiled frowned nodded turned looked found lost kept held carried brought took
    gave sent threw caught dropped broke mended built burned opened closed locked pulled pushed
    lifted touched struck beat cut sold bought paid owed counted weighed measured wrote read
    painted sang played danced slept woke dreamed remembered forgot knew believed doubted feared
    hoped wanted needed loved hated thanked blamed forgave warned followed led chased fled hid
    discovered explained proved described copied compared repaired examined collected divided
    joined refused accepted promised borrowed lent stole wasted saved changed stayed vanished
    trembled shone rang""",
    "adjective": """old young new small great little long short tall wide narrow deep dark bright pale white
    black red green blue grey golden silver cold warm hot wet dry soft hard heavy light empty
    full quiet loud quick slow early late strange common rare simple clever foolish wise brave
    honest cruel kind gentle rough smooth sharp blunt clean dirty rich poor proud humble happy
    sad angry tired hungry sick healthy weak strong broken whole hidden open distant near
    foreign familiar sudden steady careful careless useful useless precious cheap ancient modern
    wooden stony muddy dusty frozen burning silent crooked straight hollow solid lonely crowded
    famous nameless certain doubtful patient restless faithful ordinary curious splendid
    terrible""",
    "adverb": """slowly quickly never often again soon hardly almost quite already seldom twice elsewhere
    upstairs yesterday at once alone together gladly badly well aloud forever meanwhile perhaps
    indeed""",
    "name": """Anna Martin Clara Edmund Ruth Oliver Helen Walter Agnes Thomas Julia Henry Margaret
    Simon Louisa Peter Harriet George Emily Victor Alice Robert Lucy Arthur""",
    "article": "the the the the a a his her their our no every that this one another",
    "preposition": """of of of in in on at by for from with under over near past through across before after
    until beside behind between against beyond without""",
    "joint": "and and and but but while because though so when where as if until",
    "pronoun": "he she they it we nobody someone everyone I you",
    "auxiliary": "had would could might must should never",
    "mark": ". . . . . . ? ! ; , ,",
}
SHAPES = """article noun verb article adjective noun
pronoun verb adverb preposition article noun
name verb article noun preposition article adjective noun
article adjective noun preposition article noun verb adverb
preposition article noun pronoun verb article noun
pronoun verb preposition article noun joint name verb article adjective noun
article noun joint article adjective noun verb preposition article noun preposition name
adverb pronoun verb article noun preposition article adjective noun
name joint name verb preposition article noun joint pronoun verb article noun
pronoun verb article noun of adjective noun joint article noun of name"""


def make() -> str:
    """At least SIZE characters of English words in the shapes of sentences, the same for ever.

    Only random() is drawn from, since Python promises its sequence for a seed. The words of a slot are
    equally likely, so that no long stretch comes twice: an n-gram draft finds little to copy elsewhere.
    """
    words = {slot: text.split() for slot, text in WORDS.items()}
    shapes = [shape.split() for shape in SHAPES.splitlines()]
    draw = random.Random(SEED).random

    paragraphs: list[str] = []
    size = 0
    while size < SIZE:
        paragraphs.append(" ".join(_sentence(draw, words, shapes) for _ in range(3 + int(draw() * 7))))
        size += len(paragraphs[-1]) + 2
    return "\n\n".join(paragraphs) + "\n"


def ensure(path: Path) -> Path:
    """Write the book to `path` unless it is there already; one of other bytes is a CampaignError."""
    if not path.exists():
        text = make()
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest != SHA256:
            raise CampaignError(
                f"This Python makes another book ({digest[:12]}…); use CPython 3.11 or later."
            )
        write_text(path, text)
    elif sha256_of(path) != SHA256:
        raise CampaignError(f"{path} is not the book that this project makes; delete it and run again.")
    return path


def _pick(draw: Callable[[], float], options: Sequence[T]) -> T:
    return options[int(draw() * len(options))]


def _sentence(draw: Callable[[], float], words: dict[str, list[str]], shapes: list[list[str]]) -> str:
    text, mark = "", ","
    while mark in ",;":
        shape = _pick(draw, shapes)
        clause = " ".join(_pick(draw, words[slot]) if slot in words else slot for slot in shape)
        mark = _pick(draw, words["mark"])
        text = f"{text} {clause}{mark}" if text else f"{clause[0].upper()}{clause[1:]}{mark}"
    return text
