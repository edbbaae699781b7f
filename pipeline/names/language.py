"""Detect the language of a text by py3langid, whose bundled model knows about 140 languages."""

import io
import lzma
from array import array
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

ENGLISH = "en"
_SURE = 0.9
"""Below this confidence the language counts as unknown. Of 1,000 tweets 390 reach it, and all of these are right."""
_SAMPLE = 2_000
"""Code points that are read at the beginning, in the middle and at the end of a long text."""
_NOTHING_TO_READ = "zxx"


class Language(NamedTuple):
    """A language by its code in ISO 639 (two letters where it has two), and how sure that is, 0..1."""

    code: str
    confidence: float


def language_of(text: str) -> Language | None:
    """Return the language of most of a text, or None where that is uncertain."""
    if len(text) > 3 * _SAMPLE:
        middle = len(text) // 2
        text = " ".join((text[:_SAMPLE], text[middle : middle + _SAMPLE], text[-_SAMPLE:]))
    return _classify(text)


# Each document is classified when it is parsed, and again when its rows are made.
@lru_cache(maxsize=1_024)
def _classify(sample: str) -> Language | None:
    code, confidence = load_languages().classify(sample)
    return Language(code, confidence) if confidence >= _SURE and code != _NOTHING_TO_READ else None


@cache
def load_languages() -> "LanguageIdentifier":
    """Load the model, once: before the first text, or when it comes."""
    # Its model takes most of a second to unpack, and a single text in memory may not need it.
    import numpy as np
    from py3langid.langid import MODEL_DIR, MODEL_FILE, LanguageIdentifier

    # In memory: py3langid would unpack it to a temporary file, for which there may be no room.
    with lzma.open(MODEL_DIR / MODEL_FILE) as packed, np.load(io.BytesIO(packed.read()), allow_pickle=False) as model:
        moves, rows = (array(model[name].dtype.char, model[name].tobytes()) for name in ("nextmove", "nextmove_row"))
        ptc, pc, classes, features = (model[name] for name in ("ptc", "pc", "classes", "out_feat"))
    return LanguageIdentifier(ptc, pc, classes.tolist(), moves, features.tolist(), norm_probs=True, tk_row=rows)
