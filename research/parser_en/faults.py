"""Count the faults of a parser's sentence ends by what stands around them."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import ParsedDocument
from concord.pipeline.parsing.stanza_parser import StanzaParser
from research.parser_en.score import documents_of

_ABBREVIATION = re.compile(
    r"[(\[\"“]*(?:(?:[A-Za-z]\.){2,}|(?:Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Lt|Sen|Rep|Jr|Sr|Inc|Ltd|Co|Corp|vs|etc|al|Fig|No"
    r"|Vol|pp|cf|Ph|ca|approx|eds?|p)\.)"
)
_INITIAL = re.compile(r"[(\[\"“]*[A-Z]\.")
_CLOSING = "\"”’')]"


def count_faults(config: ParserConfig, treebank: Path) -> dict[str, int]:
    """Return how often each kind of fault occurs, the commonest first."""
    parser = StanzaParser(config.model_copy(update={"trees": False, "tags": False}))
    documents, gold = documents_of(treebank)
    found: Counter[str] = Counter()
    for document, ends, parsed in zip(documents, gold, parser.parse(documents), strict=True):
        if not isinstance(parsed, ParsedDocument):
            raise TypeError(parsed.message)
        others = {sentence.words[-1].end_char for sentence in parsed.sentences}
        found.update(_kinds(document.text, ends, others))
    return dict(found.most_common())


def _kinds(text: str, gold: set[int], found: set[int]) -> Iterator[str]:
    for end in gold ^ found:
        before, after = text[:end].split()[-1], text[end : end + 40].lstrip()
        yield f"missed, {_missed(before, after)}" if end in gold else f"wrong, {_wrong(before, after)}"


def _missed(before: str, after: str) -> str:
    if before.rstrip(_CLOSING).endswith((".", "!", "?")):
        return f"after a full stop {_next(after)}"
    if before[-1] in ";:,—–-":
        return f"after {before[-1]}"
    return "after a closing mark" if before[-1] in _CLOSING else "after a word without a mark, such as a heading"


def _wrong(before: str, after: str) -> str:
    if after[:1] in set("\"”’'"):
        return "before a closing quotation mark"
    for pattern, kind in ((_INITIAL, "initial"), (_ABBREVIATION, "abbreviation")):
        if pattern.fullmatch(before):
            return f"after an {kind}"
    if before.rstrip(_CLOSING).endswith((".", "!", "?")):
        return f"after a full stop {_next(after)}"
    return f"after {before[-1]}" if not before[-1].isalnum() else "after a word"


def _next(after: str) -> str:
    return (
        "before a capital"
        if after[:1].isupper()
        else "before a small letter"
        if after[:1].islower()
        else "before a mark"
    )
