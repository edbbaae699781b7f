"""Write the package ``parser_multi``: tokenizer, words of multi-word tokens, network and lemmas."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from stanza.models.mwt.vocab import Vocab

from concord.pipeline.parsing.biaffine import BiaffineConfig
from concord.pipeline.parsing.stanza_packages import LEMMAS_NAME, NETWORK_NAME, NETWORK_WEIGHTS_NAME
from research.parser_en.conllu import ConlluSentence
from research.parser_en.pack import pack_multilingual
from research.parser_multi.texts import all_cases, cyrillic

_SERBIAN = "sr"


def pack(work: Path, output: Path, sentences: Iterable[ConlluSentence], expanded: Mapping[str, str]) -> None:
    """Write the package: ``tokenize.pt`` and ``network.pt`` of a folder, and dictionaries of treebanks."""
    torch.save(_multi_words(expanded), work / "mwt.pt")
    pack_multilingual(work, output)
    weights = torch.load(work / "network.pt", weights_only=True)
    save_file({name: value.half() for name, value in sorted(weights.items())}, output / NETWORK_WEIGHTS_NAME)
    config = BiaffineConfig.model_validate_json((work / NETWORK_NAME).read_bytes())
    (output / NETWORK_NAME).write_text(json.dumps(config.model_dump(), ensure_ascii=False) + "\n", encoding="utf-8")
    text = json.dumps(lemmas(sentences), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    (output / LEMMAS_NAME).write_bytes(gzip.compress(text.encode(), mtime=0))


def lemmas(sentences: Iterable[ConlluSentence]) -> dict[str, dict[str, str]]:
    """Return the most frequent lemma of each form and part of speech, by language.

    Forms are in small letters, and as they are written where their lemma is another one than that of small letters.
    """
    counts: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for sentence in sentences:
        for language, form, upos, lemma in _with_cyrillic(sentence):
            for key in {form, form.lower()}:
                counts[language][f"{key}\t{upos}"][lemma] += 1
    found = {
        language: {key: own.most_common(1)[0][0] for key, own in by_key.items()} for language, by_key in counts.items()
    }
    return {
        language: {key: lemma for key, lemma in best.items() if _lower(key) == key or best[_lower(key)] != lemma}
        for language, best in found.items()
    }


def _lower(key: str) -> str:
    form, upos = key.split("\t")
    return f"{form.lower()}\t{upos}"


def _with_cyrillic(sentence: ConlluSentence) -> Iterator[tuple[str, str, str, str]]:
    rows = zip(sentence.languages, sentence.words, sentence.upos, sentence.lemmas, strict=True)
    for language, form, upos, lemma in rows:
        if lemma == "_" != form or not any(map(str.isalpha, form)):
            continue
        yield language, form, upos, lemma
        if language == _SERBIAN and cyrillic(form) != form:
            yield language, cyrillic(form), upos, cyrillic(lemma)


def _multi_words(expanded: Mapping[str, str]) -> dict[str, object]:
    """Return the processor of multi-word tokens as Stanza saves one that is a dictionary alone."""
    arguments = {"dict_only": True, "lang": "multilingual", "shorthand": "multilingual", "batch_size": 50}
    return {
        "model": None,
        "dict": all_cases(expanded),
        "vocab": Vocab("", "multilingual").state_dict(),
        "config": arguments,
    }
