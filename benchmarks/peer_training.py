"""Train the models of ``peers.py`` that no package index has, in the environment that holds the packages.

Command line: NAME SETS FOLDER; the folder of sets has ``train.json`` and ``dev.json``, lists of sentences with words,
BIO labels and, for pipelines that parse, tags, heads and relations.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from peers import ENCODING

SPACY_BATCH_WORDS = 500
SENTENCES_A_DOCUMENT = 10
"""Consecutive sentences, so that the parser learns where sentences end; as many as spaCy's documentation groups."""


class Training(NamedTuple):
    """What a training needs.

    Attributes:
        home: the environment that holds the packages.
        sets: name of the sets it learns from.
        train: reads a folder of sets and writes a folder with the model.
    """

    home: str
    sets: str
    train: Callable[[Path, Path], None]


def train_spacy(sets: Path, folder: Path, *, pipeline: Sequence[str], epochs: int) -> None:
    """Train a blank English pipeline with `spacy train` and the configuration of `spacy init config`, for fewer epochs.

    Args:
        pipeline: the components to train, besides the vectors of words that they share.
    """
    import spacy
    from spacy.cli.init_config import init_config
    from spacy.cli.train import train
    from spacy.tokens import DocBin

    nlp = spacy.blank("en")
    for part in ("train", "dev"):
        sentences = _read_set(sets / f"{part}.json")
        groups = [
            sentences[start : start + SENTENCES_A_DOCUMENT] for start in range(0, len(sentences), SENTENCES_A_DOCUMENT)
        ]
        docs = [_spacy_gold(nlp, group, parsed="parser" in pipeline) for group in groups]
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
    config = init_config(lang="en", pipeline=list(pipeline), optimize="efficiency")
    config["training"].update({"max_epochs": epochs, "patience": 0})
    config["training"]["batcher"]["size"] = SPACY_BATCH_WORDS
    config.to_disk(folder / "config.cfg")
    paths = {f"paths.{part}": str(folder / f"{part}.spacy") for part in ("train", "dev")}
    train(folder / "config.cfg", folder, overrides=paths)


def train_flair(sets: Path, folder: Path, *, epochs: int) -> None:
    """Train a BiLSTM-CRF over trainable embeddings of words and characters, since no pretrained ones are used."""
    import flair
    import torch
    from flair.data import Dictionary
    from flair.datasets import ColumnCorpus
    from flair.embeddings import CharacterEmbeddings, OneHotEmbeddings, StackedEmbeddings
    from flair.models import SequenceTagger
    from flair.trainers import ModelTrainer

    torch.set_num_threads(1)
    flair.set_seed(1)
    for part in ("train", "dev"):
        with (folder / f"{part}.txt").open("w", encoding=ENCODING) as lines:
            for sentence in _read_set(sets / f"{part}.json"):
                rows = zip(sentence["words"], sentence["labels"], strict=True)
                # A word with a space inside would be read as two columns.
                lines.writelines(f"{word.replace(' ', '_')} {label}\n" for word, label in rows)
                lines.write("\n")
    corpus = ColumnCorpus(
        folder, {0: "text", 1: "ner"}, train_file="train.txt", dev_file="dev.txt", test_file="dev.txt"
    )
    # Flair's own list of characters is downloaded.
    characters = Dictionary()
    for sentence in _read_set(sets / "train.json"):
        for character in "".join(sentence["words"]):
            characters.add_item(character)
    characters.save(folder / "characters.pkl")
    letters = CharacterEmbeddings(path_to_char_dict=str(folder / "characters.pkl"))
    words = OneHotEmbeddings.from_corpus(corpus, embedding_length=100)
    tagger = SequenceTagger(
        hidden_size=256,
        embeddings=StackedEmbeddings([words, letters]),
        tag_dictionary=corpus.make_label_dictionary("ner", add_unk=False),
        tag_type="ner",
    )
    ModelTrainer(tagger, corpus).train(
        folder,
        optimizer=torch.optim.Adam,
        learning_rate=0.002,
        mini_batch_size=32,
        max_epochs=epochs,
        shuffle=True,
        embeddings_storage_mode="none",
        monitor_test=False,
    )


def _spacy_gold(nlp: Any, sentences: Sequence[dict[str, Any]], *, parsed: bool) -> Any:
    from spacy.tokens import Doc

    words: list[str] = []
    columns: dict[str, list[Any]] = {"tags": [], "heads": [], "deps": [], "ents": []}
    starts: list[bool] = []
    for sentence in sentences:
        first = len(words)
        words += sentence["words"]
        starts += [place == 0 for place in range(len(sentence["words"]))]
        columns["ents"] += sentence["labels"]
        if parsed:
            columns["tags"] += sentence["tags"]
            columns["deps"] += ["ROOT" if relation == "root" else relation for relation in sentence["relations"]]
            columns["heads"] += [first + (head - 1 if head else place) for place, head in enumerate(sentence["heads"])]
    chosen = {name: values for name, values in columns.items() if values}
    return Doc(nlp.vocab, words=words, sent_starts=None if parsed else starts, **chosen)


def _read_set(path: Path) -> list[dict[str, Any]]:
    sentences: list[dict[str, Any]] = json.loads(path.read_text(encoding=ENCODING))
    return sentences


TRAININGS = {
    "spacy_entities": Training("spacy", "ewt", partial(train_spacy, pipeline=["ner"], epochs=6)),
    "spacy_trees": Training("spacy", "ewt", partial(train_spacy, pipeline=["tagger", "parser"], epochs=3)),
    "spacy_entities_more": Training("spacy", "default_entities", partial(train_spacy, pipeline=["ner"], epochs=2)),
    "flair_entities": Training("flair", "ewt", partial(train_flair, epochs=2)),
}


if __name__ == "__main__":
    TRAININGS[sys.argv[1]].train(Path(sys.argv[2]), Path(sys.argv[3]))
