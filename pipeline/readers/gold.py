"""Gold corpora by file name: ``.conllu`` or ``.conll``, each also with ``.gz`` or ``.zst`` behind."""

from pathlib import Path

from models.data import Sentence
from pipeline.errors import InputError
from pipeline.readers import conll, conllu
from pipeline.readers.gold_lines import GoldFormat


def read_gold(path: Path, form: GoldFormat | None = None) -> list[list[Sentence]]:
    """Read the documents of a gold corpus, each a list of sentences with BIO2 labels or token labels.

    Raises:
        InputError: with file and line, when the file cannot be read.
    """
    form = form or GoldFormat()
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    if name.endswith(".conllu"):
        return conllu.read_gold(path, form)
    if name.endswith(".conll"):
        return conll.read_gold(path, form)
    raise InputError(
        f"{path}: expected a gold corpus named .conllu or .conll (.gz or .zst may follow), got {path.name!r}"
    )
