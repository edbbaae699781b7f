"""Text of several languages with known ends of tokens and sentences, and the words of multi-word tokens."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from research.parser_en import raw_text
from research.parser_en.raw_text import Paragraph, Token

_AFTER_DE = (
    "o a os as ele ela eles elas este esta estes estas esse essa esses essas aquele aquela isto isso aquilo um uma"
)
_CONTRACTIONS = {"de": _AFTER_DE, "em": _AFTER_DE, "a": "o a os as", "por": "o a os as"}
_STEMS = {"de": "d", "em": "n", "a": "a", "por": "pel"}
_RAREST = 0.2
_CLITIC = re.compile(r"(?:n['’]t|['’](?:s|ll|re|ve|d|m))$", re.IGNORECASE)
_CYRILLIC = dict(
    zip(
        "abvgdđežzijklmnoprstćufhcčšABVGDĐEŽZIJKLMNOPRSTĆUFHCČŠ",
        "абвгдђежзијклмнопрстћуфхцчшАБВГДЂЕЖЗИЈКЛМНОПРСТЋУФХЦЧШ",
        strict=True,
    )
) | {"lj": "љ", "nj": "њ", "dž": "џ", "Lj": "Љ", "Nj": "Њ", "Dž": "Џ", "LJ": "Љ", "NJ": "Њ", "DŽ": "Џ"}
_LATIN = re.compile("|".join(sorted(_CYRILLIC, key=len, reverse=True)))


def contraction(first: str, second: str) -> str | None:
    """Return what Portuguese writes for two words; None where they stay two."""
    if second not in _CONTRACTIONS.get(first.lower(), "").split():
        return None
    if first.lower() == "a":
        written = {"o": "ao", "os": "aos", "a": "à", "as": "às"}[second]
    else:
        written = _STEMS[first.lower()] + second
    return written.capitalize() if first[0].isupper() else written


def contracted(paragraph: Paragraph) -> Paragraph:
    """Return a Portuguese paragraph as people write it, where a corpus has "de o" for "do"."""
    found = []
    for sentence in paragraph:
        tokens: list[Token] = []
        for token in sentence:
            written = contraction(tokens[-1].text, token.text) if tokens and tokens[-1].space_after else None
            if written is None:
                tokens.append(token)
            elif written.lower() == f"{tokens[-1].text}{token.text}".lower():
                tokens[-1:] = [tokens[-1]._replace(space_after=False), token]
            else:
                tokens[-1] = Token(written, 2, token.space_after)
        found.append(tokens)
    return found


def cyrillic(text: str) -> str:
    """Return Serbian in Cyrillic; words with letters that Serbian does not have stay as they are."""
    return re.sub(
        r"[^\W\d_]+",
        lambda word: (
            word.group()
            if re.search("[^abvgdđežzijklmnoprstćufhcčš]", word.group().lower())
            else _LATIN.sub(lambda letters: _CYRILLIC[letters.group()], word.group())
        ),
        text,
    )


def in_cyrillic(paragraph: Paragraph) -> Paragraph:
    """Return a Serbian paragraph in Cyrillic."""
    return [[token._replace(text=cyrillic(token.text)) for token in sentence] for sentence in paragraph]


def document_in_cyrillic(document: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the words of a Serbian document in Cyrillic."""
    return [tuple(map(cyrillic, words)) for words in document]


def expansions(treebanks: Iterable[Path]) -> dict[str, str]:
    """Return the words of multi-word tokens that are not their parts, by form in small letters.

    Left out are forms that languages expand differently, and those that are one word four times of five or more in
    their own treebank, where a mark is chance.
    """
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path in treebanks:
        own: defaultdict[str, Counter[str]] = defaultdict(Counter)
        words: Counter[str] = Counter()
        token, last = "", 0
        parts: list[str] = []
        for line in pa.input_stream(str(path)).read().decode().splitlines():
            fields = line.split("\t")
            if len(fields) != 10 or "." in fields[0]:
                continue
            if "-" in fields[0]:
                token, last, parts = fields[1].lower(), int(fields[0].split("-")[1]), []
            elif token:
                parts.append(fields[1].lower())
                if int(fields[0]) == last:
                    # What is spelled as its words is cut there.
                    own[token][" ".join(parts)] += token != "".join(parts)
                    token = ""
            else:
                words[fields[1].lower()] += 1
        for form, ways in own.items():
            if ways.total() > _RAREST * (ways.total() + words[form]):
                found[form] += +ways
    return {form: next(iter(ways)) for form, ways in sorted(found.items()) if len(ways) == 1}


def all_cases(expanded: Mapping[str, str]) -> dict[str, str]:
    """Return forms and words in small letters, with a capital, and in capitals."""
    return {
        change(form): change(words)
        for change in (str.upper, lambda text: text[0].upper() + text[1:], str)
        for form, words in expanded.items()
    }


def marked(paragraph: Paragraph, expanded: Collection[str]) -> Paragraph:
    """Return a paragraph with English clitics apart, and as multi-word tokens those alone that can be expanded."""
    return [[part for token in sentence for part in _parts(token, expanded)] for sentence in paragraph]


def _parts(token: Token, expanded: Collection[str]) -> Iterator[Token]:
    if token.words > 1 and token.text.lower() not in expanded:
        clitic = _CLITIC.search(token.text)
        if clitic and clitic.start():
            yield Token(token.text[: clitic.start()], 1, space_after=False)
            token = token._replace(text=clitic.group())
        token = token._replace(words=1)
    yield token


def runs(path: Path, draw: random.Random) -> Iterator[Paragraph]:
    """Yield the sentences of a treebank in runs of one to nine, each ending with a space but the last."""
    sentences: list[Sequence[Token]] = []
    left = draw.randint(1, 9)
    for paragraph in raw_text.read_paragraphs(path, split=True):
        for number, sentence in enumerate(paragraph, start=1):
            sentences.append([*sentence[:-1], sentence[-1]._replace(space_after=True)])
            left -= 1
            if not left or (number == len(paragraph) and draw.random() < 0.5):
                yield sentences
                sentences, left = [], draw.randint(1, 9)
    if sentences:
        yield sentences
