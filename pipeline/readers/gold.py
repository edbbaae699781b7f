"""Gold corpora by file name: ``.conllu`` or ``.conll``, each also with ``.gz`` or ``.zst`` behind."""

from pathlib import Path

from models.data import Sentence
from pipeline.errors import InputError
from pipeline.readers import conll, conllu


def read_gold(path: Path) -> list[list[Sentence]]:
    """Read the documents of a gold corpus, each a list of sentences with BIO2 labels.

    Raises:
        InputError: with file and line, when the file cannot be read.
    """
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    if name.endswith(".conllu"):
        return conllu.read_gold(path)
    if name.endswith(".conll"):
        return conll.read_gold(path)
    raise InputError(
        f"{path}: expected a gold corpus named .conllu or .conll (.gz or .zst may follow), got {path.name!r}"
    )
