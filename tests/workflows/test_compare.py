"""``concord compare``: lines, verdict and evidence."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord

from concord.models.bundles.checkpoint import save_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.bundles.registry import build_tagger
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.evaluation.significance import Difference
from concord.models.labels import Span, encode_spans
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.corpora.gold_corpus import GoldDocument
from concord.pipeline.errors import InputError
from concord.workflows.console import plain
from concord.workflows.evaluation import (
    CompareJob,
    Group,
    Line,
    compare,
    compare_command,
    compare_labels,
    describe_line,
    evidence,
    group_finder,
)
from concord.workflows.registry import find_tagger

GOLD = CHECKOUT / "examples/train/dev.conllu"
WORDS = ("Ada", "King", "met", "Tom", "in", "Bern")
NAMES = (Span(0, 2, "PER"), Span(3, 4, "PER"), Span(5, 6, "LOC"))


def labels(*names: Span) -> tuple[str, ...]:
    return encode_spans(names, len(WORDS), "BIO")


def gold(documents: int) -> list[GoldDocument]:
    """Return documents of one sentence with three entities."""
    sentence = Sentence(words=WORDS, labels=labels(*NAMES))
    return [GoldDocument(name=f"d{number}", sentences=(sentence,), lines=(1,)) for number in range(documents)]


def predictions(*sentences: tuple[str, ...]) -> list[list[tuple[str, ...]]]:
    return [[sentence] for sentence in sentences]


@pytest.fixture(scope="session")
def other_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tagger with one type less than the tiny one; tests must not modify it."""
    return make_bundle(tmp_path_factory.mktemp("taggers") / "other", kinds=("LOC", "PER"))


def make_bundle(folder: Path, *, kinds: Sequence[str]) -> Path:
    torch.manual_seed(2)
    sentences = [Sentence(words=("Ada", "saw"), labels=(f"B-{kind}", "O")) for kind in kinds]
    config = {"representation": {"word_dimension": 8, "characters": None}, "lstm": {"hidden": 8, "layers": 1}}
    save_tagger(build_tagger("bilstm_crf", config, Vocabulary.from_sentences(sentences)).eval(), folder)
    return folder


def job(first: Path, second: Path, **options: Any) -> CompareJob:
    plain = CompareJob(
        first=find_tagger(str(first)),
        second=find_tagger(str(second)),
        data=[str(GOLD)],
    )
    return replace(plain, **options)


def test_lines_are_overall_by_type_by_novelty_and_by_language() -> None:
    documents = gold(20)
    first, second = predictions(*[labels(NAMES[0], NAMES[2])] * 20), predictions(*[labels(NAMES[0], NAMES[1])] * 20)
    find_groups = group_finder([document.sentences for document in documents], frozenset({("ada", "king")}))

    def with_language(number: int, position: int, span: Span) -> Iterable[Group]:
        yield from find_groups(number, position, span)
        if number % 2 == 0 and span.label == "PER":
            yield "language", "language en"

    lines = compare_labels(documents, first, second, alpha=0.05, find_groups=with_language)
    found = {line.name: line for line in lines}
    assert list(found) == ["all", "LOC", "PER", "seen", "unseen", "language en"]
    assert (found["all"].first, found["all"].second, found["all"].p) == (80, 80, 1)
    assert (found["LOC"].first, found["LOC"].second, found["LOC"].verdict) == (100, 0, "worse")
    assert (found["PER"].verdict, found["PER"].differing) == ("better", 20)
    assert (found["seen"].first, found["seen"].second, found["seen"].differing) == (100, 100, 0)
    assert found["language en"].p == pytest.approx(2 / 2**10)
    assert found["language en"].differing == 10
    assert all(line.p <= line.corrected <= 6 * line.p for line in lines)


def test_describe_line_is_one_sentence(line: Line) -> None:
    assert describe_line(line, unit="F1") == "B is better by 1.2 F1 (0.4 to 2.0), p = 0.003; this data can detect 0.9."
    worse = replace(line, difference=Difference(mean=-1.2, low=-2.0, high=0.1), corrected=0.012, verdict="worse")
    assert describe_line(worse, unit="F1").startswith("B is worse by 1.2 F1 (-0.1 to 2.0), p = 0.003 (0.012 by Holm); ")
    undecided = replace(line, verdict="undecided")
    assert describe_line(undecided, unit="F1").startswith(
        "A and B cannot be told apart: B - A is +1.2 F1 (+0.4 to +2.0)"
    )
    assert "the same in every document" in describe_line(replace(line, detectable=None, differing=0), unit="F1")


@pytest.mark.slow
def test_evidence_names_taggers_data_and_level(tiny_bundle: Path, tmp_path: Path) -> None:
    other = make_bundle(tmp_path / "b", kinds=("LOC", "ORG", "PER"))
    question = job(tiny_bundle, other, train=[str(GOLD)])
    values = plain(evidence(question, compare(question)))
    assert json.loads(json.dumps(values)) == values == plain(evidence(question, compare(question)))
    assert values["first"]["digest"] == tagger_digest(tiny_bundle)
    assert values["second"]["digest"] == tagger_digest(other)
    assert len(values["data"][0]["sha256"]) == 64
    assert (values["alpha"], values["units"]) == (0.05, 3)
    assert {"torch", "numpy", "python", "concord"} <= set(values["versions"])
    assert [line["name"] for line in values["lines"]] == ["all", "LOC", "ORG", "PER", "seen"]


@pytest.mark.slow
def test_different_types_are_rejected_unless_mapped(tiny_bundle: Path, other_bundle: Path) -> None:
    with pytest.raises(ConfigError, match="A knows LOC, ORG, PER, B knows LOC, PER: expected the same types"):
        compare(job(tiny_bundle, other_bundle))
    comparison = compare(job(tiny_bundle, other_bundle, labels={"ORG": None, "PER": "HUMAN"}))
    assert {line.name for line in comparison.lines if line.kind == "type"} == {"HUMAN", "LOC"}
    predicted = {label for document in comparison.first for sentence in document for label in sentence}
    assert not {label for label in predicted if label.endswith(("ORG", "PER"))}


@pytest.mark.slow
def test_token_labels_are_compared_by_accuracy(token_bundle: Path) -> None:
    form = GoldFormat(label_column="upos")
    comparison = compare(job(token_bundle, token_bundle, form=form))
    assert [line.name for line in comparison.lines] == ["all"]
    assert comparison.measure == "accuracy"
    assert 0 <= comparison.lines[0].first <= 100


def test_sentence_is_the_unit_when_the_corpus_has_no_documents(
    tiny_bundle: Path, write_corpus: Callable[[str], Path]
) -> None:
    corpus = str(write_corpus("Ada\tB-PER\nslept\tO\n\nTom\tB-PER\nwoke\tO\n"))
    answer = compare_command(job(tiny_bundle, tiny_bundle, data=[corpus]))
    assert (answer.values["unit"], answer.values["units"]) == ("sentence", 2)
    assert "mark no documents, so each sentence is one" in answer.text


def test_what_cannot_be_compared_is_rejected(
    tiny_bundle: Path, token_bundle: Path, write_corpus: Callable[[str], Path]
) -> None:
    with pytest.raises(ConfigError, match="got one of each"):
        compare(job(tiny_bundle, token_bundle))
    with pytest.raises(InputError, match="expected a corpus with entities"):
        compare(job(tiny_bundle, tiny_bundle, data=[str(write_corpus("It\tO\nrained\tO\n"))]))


@pytest.mark.slow
def test_compare_command_prints_a_table(tiny_bundle: Path) -> None:
    arguments = ["compare", str(tiny_bundle), str(tiny_bundle), "--data", str(GOLD)]
    result = concord(*arguments, "--train", str(GOLD))
    assert result.exit_code == 0, result.output
    for text in ("cannot be told apart", "detectable", "\nseen", "Holm"):
        assert text in result.stdout
