"""Evaluation on gold corpora: scores as plain values and as text."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord

from concord.models.bundles.checkpoint import load_tagger
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.errors import InputError
from concord.workflows.corpora import read_corpora, without_labels
from concord.workflows.evaluation import EvaluateJob, evaluate_command

GOLD = CHECKOUT / "examples/train/dev.conllu"


@pytest.fixture
def agreeing(tiny_bundle: Path, write_corpus: Callable[[str], Path]) -> Path:
    """Write a corpus whose gold labels are the predictions of the tiny tagger, except for one."""
    documents = read_corpora([str(GOLD)], labels={})
    predicted = load_tagger(tiny_bundle).predict_documents(without_labels(documents))
    blocks = []
    for document, predictions in zip(documents, predicted, strict=True):
        blocks.append("-DOCSTART-\tx\n")
        for sentence, prediction in zip(document, predictions, strict=True):
            rows = zip(sentence.words, prediction.labels, strict=True)
            blocks.append("".join(f"{word}\t{label}\n" for word, label in rows))
    return write_corpus("\n".join(blocks))


def test_scores_are_overall_by_type_seen_and_unseen(tiny_bundle: Path, agreeing: Path) -> None:
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(agreeing)])).values
    assert json.loads(json.dumps(values)) == values
    assert (values["documents"], values["sentences"]) == (3, 15)
    whole = values["scores"]["all"]
    assert whole["gold"] == whole["correct"] > 0
    assert whole["f1"] == values["draft_score"] == 100
    assert (values["accuracy"], values["by_novelty"], values["by_language"]) == (None, {}, {})
    assert values["words_per_second"] > 0

    job = EvaluateJob(folder=tiny_bundle, data=[str(GOLD)], train=[str(GOLD.with_name("train.conllu"))])
    values = evaluate_command(job).values
    whole = values["scores"].pop("all")
    assert (set(values["scores"]), set(values["by_novelty"])) == ({"LOC", "ORG", "PER"}, {"seen", "unseen"})
    for parts in (values["scores"], values["by_novelty"]):
        for count in ("gold", "predicted", "correct"):
            assert sum(found[count] for found in parts.values()) == whole[count]


def test_documents_in_several_languages_have_a_line_for_each(
    tiny_bundle: Path, write_corpus: Callable[[str], Path]
) -> None:
    texts = (
        "the council of the city met on Monday to discuss the water",
        "o conselho da cidade discutiu a falta de água",
    )
    documents = [f"-DOCSTART-\tO\n\nAda\tB-PER\n{''.join(f'{word}{chr(9)}O{chr(10)}' for word in text.split())}"
                 for text in texts]  # fmt: skip
    job = EvaluateJob(folder=tiny_bundle, data=[str(write_corpus("\n".join(documents)))])
    answer = evaluate_command(job)
    found = {name: part["gold"] for name, part in answer.values["by_language"].items()}
    assert found == {"language en": 1, "language pt": 1}
    assert "\nlanguage pt " in answer.text


def test_types_unknown_to_the_tagger_count_as_missed_and_a_corpus_without_entities_is_told(
    tiny_bundle: Path, write_corpus: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = str(write_corpus("Monday\tB-DAY\nis\tO\n"))
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[corpus])).values
    assert values["scores"]["DAY"]["recall"] == 0
    assert "every DAY of the corpus counts as missed" in capsys.readouterr().err
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[corpus], labels={"DAY": None})).values
    assert values["scores"]["all"]["gold"] == 0
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(write_corpus("It\tO\nrained\tO\n"))])).values
    assert values["scores"]["all"]["gold"] == 0
    assert "the corpus holds no entity" in capsys.readouterr().err


def test_what_cannot_be_scored_is_refused(
    tiny_bundle: Path, tmp_path: Path, write_corpus: Callable[[str], Path]
) -> None:
    with pytest.raises(ConfigError, match="xpos holds token labels"):
        evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(GOLD)], form=GoldFormat(label_column="xpos")))
    with pytest.raises(ModelError, match=r"tagger\.json"):
        evaluate_command(EvaluateJob(folder=tmp_path, data=[str(GOLD)]))
    for text in ("", "-DOCSTART-\tx\n\n"):
        with pytest.raises(InputError, match="expected a gold corpus with one sentence or more"):
            evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(write_corpus(text))]))


def test_types_that_a_corpus_lacks_count_as_wrong_unless_they_are_left_out(
    tiny_bundle: Path, write_corpus: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with_all = read_corpora([str(GOLD)], labels={})
    lacking = "\n\n".join(
        "\n".join(f"{word}\t{label if label.endswith('PER') else 'O'}" for word, label in zip(*pair, strict=True))
        for document in with_all
        for pair in ((one.words, one.labels or ()) for one in document)
    )
    job = EvaluateJob(folder=tiny_bundle, data=[str(write_corpus(f"{lacking}\n"))])
    every = evaluate_command(job).values["scores"]
    assert "the corpus has no LOC, ORG; what the tagger finds of them counts as wrong" in capsys.readouterr().err
    one = evaluate_command(replace(job, labels={"LOC": None, "ORG": None})).values["scores"]
    assert "counts as wrong" not in capsys.readouterr().err
    assert one["all"] == one["PER"] == every["PER"]
    assert every["all"]["predicted"] > one["all"]["predicted"]


@pytest.mark.slow
def test_sentence_of_5000_words_is_scored_completely(tiny_bundle: Path, write_corpus: Callable[[str], Path]) -> None:
    corpus = str(write_corpus("Ada\tB-PER\nslept\tO\n" * 2500))
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[corpus])).values
    assert (values["documents"], values["sentences"], values["words"]) == (1, 1, 5000)
    assert values["scores"]["all"]["gold"] == 2500


def test_command_prints_a_table_by_type(tiny_bundle: Path) -> None:
    arguments = ["evaluate", str(tiny_bundle), "--data", str(GOLD), "--train", str(GOLD)]
    result = concord(*arguments, "--labels", "ORG=,LOC=PLACE")
    assert result.exit_code == 0, result.output
    for title in ("precision", "\nall ", "\nPLACE", "\nseen "):
        assert title in result.stdout
    assert "stage two" not in result.stdout
    assert "counts as" not in result.stderr
    wrong = concord("evaluate", str(tiny_bundle), "--data", str(GOLD), "--labels", "ORG")
    assert (wrong.exit_code, "GPE=LOC,MISC=" in wrong.stderr) == (2, True)


def test_token_labels_are_scored_by_accuracy(token_bundle: Path) -> None:
    train = [str(GOLD.with_name("train.conllu"))]
    form = GoldFormat(label_column="upos")
    answer = evaluate_command(EvaluateJob(folder=token_bundle, data=[str(GOLD)], form=form, train=train))
    values = answer.values
    whole = values["scores"].pop("all")
    assert values["accuracy"] == whole["f1"] == pytest.approx(100 * whole["correct"] / values["words"])
    for parts in (values["by_novelty"], values["scores"]):
        assert sum(found["gold"] for found in parts.values()) == values["words"]
    assert 0 < values["by_novelty"]["unseen"]["gold"] < values["words"]
    assert f"accuracy {values['accuracy']:.2f} %" in answer.text
