"""Time texts that repeat one thing, and find where the time grows faster than the text.

Command: python benchmarks/bench_repeats.py

Every shape is parsed at a quarter of the length and at the whole of it, in processor seconds of one thread. The growth
is the exponent of the time between the two: 1 is linear. Words a second say little here, since 20,000 letters in a row
are one word; characters a second are comparable between shapes. ``--before`` adds the shapes of an earlier result.

The default tagger labels sentences of words that its encoder splits into many subwords, such as web addresses; their
lengths vary by chance, and the growth is that of the time per character. ``--shapes`` without a value leaves out the
parser.
"""

import argparse
import hashlib
import json
import math
import random
import string
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.taggers.base import Tagger
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document, ParsedDocument
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.workflows.registry import find_tagger

CHARACTERS = "()[]{}<>\"'`.,-_/\\|*=+#@%&;:?!$^~09aZ\u00e9\u0434\u4e2d\u306e\ud55c\u0639\u0e01\u2014\u2026\u00ad"
INVISIBLE = (" ", "\n", "\t", "\u00a0", "\u200b", "\u200d", "\ufeff", "\u0301", "\x1c", "\x85", "\x92")
STRINGS = (
    *("a.", "a-", "a ", "a, ", "a\n", "a\n\n", "A.", "Ab ", "1.", "1,", "1 ", "(a", "a)", "[1]", "'s", "can't ", "n't"),
    *("http://a.b/", "http://", "a@b.co ", "a@", "a@a.", "@a", "www.", ".com", "a.b.", "a:", "://", "--", "...", ". "),
    *(
        "\U0001f600",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f1ec\U0001f1e7",
        "e\u0301",
        "\u4e2d\u6587\u3002",
    ),
)
SHAPES = (*CHARACTERS, *INVISIBLE, *STRINGS)
ADDRESS = "@ "
"""Some work is only done for a paragraph that may hold an address; shapes that begin with this repeat only the rest."""
AFTER_ADDRESS = tuple(ADDRESS + shape for shape in ("a", "A", "aB", "a.", "a-", "-", "=", "/", "1", "_", "a@", "www."))

PROSE = "Ada met Charles in London on a cold day in May, and left."


def letters(chance: random.Random, length: int, of: str = string.ascii_letters + string.digits) -> str:
    """Draw a word."""
    return "".join(chance.choices(of, k=length))


WORDS: Mapping[str, Callable[[random.Random, int], str]] = {
    "prose": lambda chance, number: PROSE.split()[number % 13],
    "web addresses": lambda chance, number: f"http://www.example.org/archive/2000-July/{letters(chance, 12)}.html",
    "checksums": lambda chance, number: hashlib.sha256(str(number).encode()).hexdigest(),
    "keys": lambda chance, number: letters(chance, 76),
    "sequences": lambda chance, number: letters(chance, 60, "ACGT"),
    "words of 1 to 1,000 letters": lambda chance, number: letters(chance, int(10 ** chance.uniform(0, 3))),
}
"""Words that the tagger labels, by their number in the sentence."""


def text_of(shape: str, length: int) -> str:
    """Repeat a shape."""
    before = ADDRESS if shape.startswith(ADDRESS) else ""
    unit = shape.removeprefix(before)
    return before + unit * (length // len(unit))


def seconds_of(parser: StanzaParser, text: str) -> tuple[float, int]:
    """Parse a text; return processor seconds and words."""
    document = Document(doc_id="repeats", text=text, source_uri="repeats", source_position=0)
    start = time.process_time()
    (result,) = parser.parse([document])
    seconds = time.process_time() - start
    return seconds, sum(len(s.words) for s in result.sentences) if isinstance(result, ParsedDocument) else 0


def measure(parser: StanzaParser, shape: str, *, length: int) -> dict[str, Any]:
    """Measure one shape at a quarter of the length and at the whole of it."""
    short, _ = seconds_of(parser, text_of(shape, length // 4))
    seconds, words = seconds_of(parser, text_of(shape, length))
    return {
        "shape": ascii(shape),
        "characters": length,
        "words": words,
        "seconds": round(seconds, 3),
        "words_per_second": round(words / seconds),
        "characters_per_second": round(length / seconds),
        "growth": round(math.log(seconds / short, 4), 2),
    }


def measure_words(tagger: Tagger, kind: str, *, words: int) -> dict[str, Any]:
    """Measure the tagger on sentences of a quarter of the words and of all of them."""
    seconds, characters = [], []
    for length in (words // 4, words):
        chance = random.Random(length)
        sentence = Sentence(words=tuple(WORDS[kind](chance, number) for number in range(length)))
        start = time.process_time()
        tagger.predict_documents([[sentence]])
        seconds.append(time.process_time() - start)
        characters.append(sum(map(len, sentence.words)))
    return {
        "words": kind,
        "characters": characters[1],
        "seconds": round(seconds[1], 3),
        "characters_per_second": round(characters[1] / seconds[1]),
        "growth": round(math.log(seconds[1] / seconds[0], characters[1] / characters[0]), 2),
    }


def measure_shapes(shapes: Sequence[str], *, length: int) -> dict[str, Any]:
    """Parse every shape, and prose to compare it with."""
    parser = StanzaParser(ParserConfig())
    seconds_of(parser, "Ada met Charles in London. " * 200)
    seconds, words = seconds_of(parser, f"{PROSE} " * (length // 58))
    found = []
    for shape in shapes:
        found.append(measure(parser, shape, length=length))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return {
        "prose": {"words_per_second": round(words / seconds), "characters_per_second": round(length / seconds)},
        "slowest": min(found, key=lambda shape: shape["characters_per_second"]),
        "most_growth": max(found, key=lambda shape: shape["growth"] if shape["seconds"] > 0.1 else 0.0),
        "shapes": found,
    }


def main() -> None:
    """Measure every shape and every kind of word, print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--length", type=int, default=60_000, help="characters that are parsed")
    arguments.add_argument("--words", type=int, default=1_000, help="words that are tagged")
    arguments.add_argument("--shapes", nargs="*", default=(*SHAPES, *AFTER_ADDRESS))
    arguments.add_argument("--before", type=Path)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = environment("bench_repeats.py")
    if given.shapes:
        result |= measure_shapes(given.shapes, length=given.length)
    tagger = load_tagger(find_tagger("entities_multi").folder)
    measure_words(tagger, "prose", words=40)
    result["tagged"] = [measure_words(tagger, kind, words=given.words) for kind in WORDS]
    if given.before is not None:
        before = json.loads(given.before.read_text(encoding="utf-8"))
        result["before"] = {"commit": before["commit"], "shapes": before["shapes"]}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
