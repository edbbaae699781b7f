"""The training of the bundled parser: texts made of tokens, batches, and a package that Stanza loads."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from concord_testing.parses import plain_parser
from stanza.models.common.pretrain import Pretrain, PretrainedWordVocab

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document, ParsedDocument
from concord.pipeline.parsing.stanza_parser import StanzaParser
from research.parser_en import __main__ as commands
from research.parser_en import raw_text, student
from research.parser_en.conllu import ConlluSentence, read_sentences
from research.parser_en.pack import pack

pytestmark = pytest.mark.slow

TREE = """# newdoc id = a
# newpar
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
4\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

1\tStay\tstay\tVERB\tVB\t_\t0\troot\t_\t_

# newpar
1\tHere\there\tADV\tRB\t_\t0\troot\t_\t_

"""
SENTENCES = [
    ConlluSentence(
        ("Dogs", "bark", "."),
        ("NOUN", "VERB", "PUNCT"),
        ("NNS", "VBP", "."),
        ("_",) * 3,
        [2, 0, 2],
        _,
        ("dog", "bark", "."),
    )
    for _ in [("nsubj", "root", "punct")]
] * 6


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    """Return a file with two paragraphs."""
    path = tmp_path / "train.conllu"
    path.write_text(TREE, encoding="utf-8")
    return path


def test_paragraphs_have_labels_of_their_characters(treebank: Path) -> None:
    """A multi-word token ends with 3, a sentence with 2."""
    first, second = map(raw_text.labelled, raw_text.read_paragraphs(treebank))
    assert first == ("don't go. Stay ", "000030012000020")
    assert second == ("Here ", "00020")


def test_paragraphs_of_a_document_are_joined(treebank: Path) -> None:
    """Joined paragraphs are separated by a space."""
    [joined] = raw_text.merged(raw_text.read_documents(treebank), random.Random(1))
    assert raw_text.labelled(joined)[0] == "don't go. Stay Here "


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        (["He", "did", "n't", "."], ["He", " didn't", "."]),
        (['"', "Go", '"', ",", "he", "said", "."], ['"', "Go", '"', ",", " he", " said", "."]),
        (["a", "well-known", "man"], ["a", " well", "-", "known", " man"]),
        (["the", "co-author", "-LRB-", "I", "-RRB-"], ["the", " co-author", " (", "I", ")"]),
    ],
)
def test_tokens_become_text(tokens: Sequence[str], found: Sequence[str]) -> None:
    """Clitics join their word, marks stand as in print, compounds are split as in EWT."""
    [paragraph] = raw_text.joined([tokens], random.Random(3))
    text, marks = raw_text.labelled(paragraph)
    ends = [1 + place for place, mark in enumerate(marks) if mark != "0"]
    parts = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [part.replace("“", '"').replace("”", '"') for part in parts] == found


def test_sentences_have_the_syntactic_words(treebank: Path) -> None:
    """Multi-word tokens are left out."""
    found = list(read_sentences(treebank))
    assert [sentence.words for sentence in found] == [("do", "n't", "go", "."), ("Stay",), ("Here",)]
    assert found[0].heads == [3, 3, 0, 3]


def test_labelled_sentences_are_read_as_written(tmp_path: Path) -> None:
    """What is written is read again."""
    vocabulary = commands._vocabularies()["depparse"]
    labelled = [student.gold(sentence, vocabulary) for sentence in SENTENCES[:2]]
    student.write_labelled(tmp_path / "a.npz", labelled)
    found = student.read_labelled(tmp_path / "a.npz")
    assert [sentence.words for sentence in found] == [sentence.words for sentence in labelled]
    for one, other in zip(found, labelled, strict=True):
        assert all(map(np.array_equal, student._columns(one), student._columns(other)))


def test_soft_labels_of_certain_heads_are_gold_ones(trained: tuple[Any, Path]) -> None:
    """The student fits six times the same sentence."""
    network, _ = trained
    labelled = [student.gold(sentence, network.parser.vocab) for sentence in SENTENCES[:1]]
    assert network.accuracy(labelled) == {"upos": 100, "xpos": 100, "feats": 100, "uas": 100, "las": 100}


def test_concord_and_stanza_read_the_package_alike(trained: tuple[Any, Path]) -> None:
    """Form vectors are pretrained vectors of a package that Stanza loads, and both runs give the same words."""
    _, folder = trained
    pack(folder, commands.EARLIER, folder / "package")
    config = ParserConfig(package="compact", directory=str(folder / "package"))
    document = Document(doc_id="a", text="Dogs bark. Cats, too, bark.", source_uri="a.txt", source_position=0)
    fast, plain = (load(config).parse([document]) for load in (StanzaParser, plain_parser))
    assert isinstance(fast[0], ParsedDocument)
    assert fast == plain
    assert [word.head for word in fast[0].sentences[0].words] == [2, 0, 2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return a student of six times one sentence, with random form vectors, and its folder."""
    folder = tmp_path_factory.mktemp("work")
    torch.manual_seed(1)
    pretrain = Pretrain()
    pretrain._vocab = PretrainedWordVocab(["dogs", "bark", ".", "cats"])
    pretrain._emb = torch.cat([torch.zeros(4, 8), torch.randn(4, 8)])
    pretrain.save(str(folder / "pretrain.pt"))
    vocabularies = commands._vocabularies()
    small = {"hidden_dim": 16, "transformed_dim": 16, "dropout": 0.0, "word_dropout": 0.0}
    configs = {name: commands._config(name, small) for name in ("pos", "depparse")}
    trainers = student.build(vocabularies, configs, pretrain)
    labelled = [student.gold(sentence, vocabularies["depparse"]) for sentence in SENTENCES]
    settings = student.Settings(epochs=12, rate=0.02, unknown=0.0)
    return student.train(trainers, pretrain, (labelled, labelled, labelled[:1]), settings, folder), folder
