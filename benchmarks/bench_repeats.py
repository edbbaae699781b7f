"""Parse documents that each repeat one character or short string, and find where the time grows faster than the text.

Command: python benchmarks/bench_repeats.py

Every shape is parsed at a quarter of the length and at the whole of it, in processor seconds of one thread. The growth
is the exponent of the time between the two: 1 is linear. Words a second say little here, since 20,000 letters in a row
are one word; characters a second are comparable between shapes. ``--before`` adds the shapes of an earlier result.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from environment import environment

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document, ParsedDocument
from concord.pipeline.parsing.stanza_parser import StanzaParser

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


def main() -> None:
    """Measure every shape, print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--length", type=int, default=60_000, help="characters")
    arguments.add_argument("--shapes", nargs="*", default=(*SHAPES, *AFTER_ADDRESS))
    arguments.add_argument("--before", type=Path)
    given = arguments.parse_args()
    parser = StanzaParser(ParserConfig())
    seconds_of(parser, "Ada met Charles in London. " * 200)
    seconds, words = seconds_of(
        parser, "Ada met Charles in London on a cold day in May, and left. " * (given.length // 58)
    )
    shapes = []
    for shape in given.shapes:
        shapes.append(measure(parser, shape, length=given.length))
        print(json.dumps(shapes[-1]), file=sys.stderr, flush=True)
    slowest = min(shapes, key=lambda shape: shape["characters_per_second"])
    result = {
        **environment("bench_repeats.py"),
        "prose": {"words_per_second": round(words / seconds), "characters_per_second": round(given.length / seconds)},
        "slowest": slowest,
        "most_growth": max(shapes, key=lambda shape: shape["growth"] if shape["seconds"] > 0.1 else 0.0),
        "shapes": shapes,
    }
    if given.before is not None:
        before = json.loads(given.before.read_text(encoding="utf-8"))
        result["before"] = {"commit": before["commit"], "shapes": before["shapes"]}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
