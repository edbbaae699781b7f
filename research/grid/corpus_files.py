"""The files of a corpus of the grid: as they are, with trees of the parser, or with the dev set in halves."""

import filecmp
import shutil
from pathlib import Path

from concord.pipeline.corpora.gold_corpus import read_corpus, write_gold
from concord.pipeline.storage.locks import exclusive
from concord.workflows import prepare
from concord.workflows.prepare import ParseConfig
from research.grid.config import GridConfig

SPLITS = ("dev", "test")


def corpus_folder(key: str, grid: GridConfig, data: Path, work: Path) -> Path:
    """Return the parent of the corpus' folder, after writing what the grid asks for into the working folder."""
    corpus = grid.corpora[key]
    source = data / corpus.folder
    if corpus.trees == "parser":
        parsed = work / "parsed"
        for split in ("train", *SPLITS):
            if (path := split_file(source, split)).exists():
                target = parsed / corpus.folder / f"{split}.conllu.zst"
                with exclusive(target.parent / f".{split}.lock"):
                    prepare.parse_command(ParseConfig(input=str(path), output=str(target)))
        return parsed
    if corpus.halves:
        halves = work / "halves"
        with exclusive(halves / f".{corpus.folder}.lock"):
            _write_halves(source, halves / corpus.folder)
        return halves
    return data


def split_file(folder: Path, split: str) -> Path:
    """Return the file of a split; a path that does not exist if there is none."""
    return next(iter(sorted(folder.glob(f"{split}.conll*"))), folder / f"{split}.conllu")


def _write_halves(source: Path, target: Path) -> None:
    """Write every second document of the dev set as dev, from the first, and the others as test; copy the train set."""
    train = split_file(source, "train")
    target.mkdir(parents=True, exist_ok=True)
    _copy(train, target / train.name)
    documents = read_corpus(split_file(source, "dev")).documents
    for first, split in enumerate(SPLITS):
        write_gold(target / f"{split}.conll", documents[first::2], form="conll")


def _copy(source: Path, target: Path) -> None:
    """Copy a file that other runs may be reading: what they have open keeps its content."""
    if target.exists() and filecmp.cmp(source, target, shallow=False):
        return
    staged = target.with_name(f".{target.name}.staged")
    shutil.copyfile(source, staged)
    staged.replace(target)
