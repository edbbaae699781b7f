"""Evaluation on gold corpora: scores as plain values and as text."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from concord_testing.checkout import CHECKOUT

from concord.models.bundles.checkpoint import load_tagger
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.errors import InputError
from concord.workflows.cli.main import main
from concord.workflows.corpora.corpora import read_corpora
from concord.workflows.evaluation.evaluate import EvaluateJob, evaluate_command

GOLD = CHECKOUT / "examples/train/dev.conllu"


@pytest.fixture
def agreeing(tiny_bundle: Path, write_corpus: Callable[[str], Path]) -> Path:
    """Write a corpus whose gold labels are the predictions of the tiny tagger, except for one."""
    from concord.workflows.corpora.corpora import read_corpora, without_labels

    documents = read_corpora([str(GOLD)], labels={})
    predicted = load_tagger(tiny_bundle).predict_documents(without_labels(documents))
    blocks = []
    for document, predictions in zip(documents, predicted, strict=True):
        blocks.append("-DOCSTART-\tx\n")
        for sentence, prediction in zip(document, predictions, strict=True):
            rows = zip(sentence.words, prediction.labels, strict=True)
            blocks.append("".join(f"{word}\t{label}\n" for word, label in rows))
    return write_corpus("\n".join(blocks))


def test_evaluate_scores_a_tagger_on_its_own_predictions(tiny_bundle: Path, agreeing: Path) -> None:
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(agreeing)])).values
    assert (values["documents"], values["sentences"]) == (3, 15)
    assert values["scores"]["all"]["gold"] == values["scores"]["all"]["correct"] > 0
    assert values["scores"]["all"]["f1"] == values["draft_scores"]["all"]["f1"] == values["seqeval_f1"] == 100
    assert values["words_per_second"] > 0
    assert not [name for name in values if "consistency" in name]
    assert values["co_occurrence"]["words"] == values["co_occurrence"]["correct"] > 0


def test_f1_equals_that_of_seqeval(tiny_bundle: Path) -> None:
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(GOLD)])).values
    assert values["scores"]["all"]["f1"] == pytest.approx(values["seqeval_f1"])
    assert set(values["scores"]) == {"all", "LOC", "ORG", "PER"}


def test_breakdowns_sum_to_the_whole(tiny_bundle: Path) -> None:
    job = EvaluateJob(folder=tiny_bundle, data=[str(GOLD)], train=[str(GOLD.with_name("train.conllu"))])
    values = evaluate_command(job).values
    assert json.loads(json.dumps(values)) == values
    for part, left_out in (("by_mention_length", ""), ("by_sentence_length", ""), ("by_novelty", "seen")):
        for count in ("gold", "predicted", "correct"):
            total = sum(found[count] for name, found in values[part].items() if name != left_out)
            assert total == values["scores"]["all"][count]
    assert sum(found["gold"] for found in values["by_position"].values()) == values["words"]
    uncertainty = values["uncertainty"]
    assert uncertainty["right_words"] + uncertainty["wrong_words"] == values["words"]
    assert values["sentences_per_second"] / values["sentences"] == pytest.approx(
        values["words_per_second"] / values["words"]
    )


@pytest.mark.slow
def test_novelty_is_decided_by_the_training_corpora(tiny_bundle: Path, agreeing: Path) -> None:
    without = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(agreeing)])).values
    assert without["by_novelty"] is None
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(agreeing)], train=[str(agreeing)])).values
    assert values["by_novelty"]["seen"] == values["scores"]["all"]
    assert values["by_novelty"]["unseen"]["gold"] == 0
    assert values["recurring_names"]["correct"] == values["recurring_names"]["gold"]


def test_types_unknown_to_the_tagger_count_as_missed(
    tiny_bundle: Path, write_corpus: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = str(write_corpus("Monday\tB-DAY\nis\tO\n"))
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[corpus])).values
    assert values["scores"]["DAY"]["recall"] == 0
    assert "every DAY of the corpus counts as missed" in capsys.readouterr().err
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[corpus], labels={"DAY": None})).values
    assert values["scores"]["all"]["gold"] == 0


def test_evaluate_refuses_token_labels_for_a_tagger_of_entities(tiny_bundle: Path) -> None:
    with pytest.raises(ConfigError, match="xpos holds token labels"):
        evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(GOLD)], form=GoldFormat(label_column="xpos")))


def test_evaluate_raises_model_error_when_the_folder_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tagger\.json"):
        evaluate_command(EvaluateJob(folder=tmp_path, data=[str(GOLD)]))


def test_evaluate_raises_input_error_when_a_corpus_has_no_sentences(
    tiny_bundle: Path, write_corpus: Callable[[str], Path]
) -> None:
    for text in ("", "-DOCSTART-\tx\n\n"):
        with pytest.raises(InputError, match="expected a gold corpus with one sentence or more"):
            evaluate_command(EvaluateJob(folder=tiny_bundle, data=[str(write_corpus(text))]))


def test_evaluate_warns_of_a_corpus_without_entities(
    tiny_bundle: Path, write_corpus: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = str(write_corpus("It\tO\nrained\tO\n"))
    values = evaluate_command(EvaluateJob(folder=tiny_bundle, data=[corpus])).values
    assert values["scores"]["all"]["gold"] == 0
    assert "the corpus holds no entity" in capsys.readouterr().err


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
    assert values["by_sentence_length"]["51+"]["gold"] == values["recurring_names"]["gold"] == 2500


def test_command_prints_a_table_by_type(tiny_bundle: Path) -> None:
    result = CliRunner().invoke(main, ["evaluate", str(tiny_bundle), "--data", str(GOLD), "--labels", "ORG=,LOC=PLACE"])
    assert result.exit_code == 0, result.output
    for title in ("draft F1", "names by words", "words by place in the name", "uncertainty of drafts: "):
        assert title in result.stdout
    assert "names by training corpus" not in result.stdout
    assert "\nPLACE" in result.stdout
    assert "counts as" not in result.stderr
    wrong = CliRunner().invoke(main, ["evaluate", str(tiny_bundle), "--data", str(GOLD), "--labels", "ORG"])
    assert (wrong.exit_code, "GPE=LOC,MISC=" in wrong.stderr) == (2, True)


def test_breakdowns_of_token_labels_sum_to_the_words(token_bundle: Path) -> None:
    train = [str(GOLD.with_name("train.conllu"))]
    form = GoldFormat(label_column="upos")
    values = evaluate_command(EvaluateJob(folder=token_bundle, data=[str(GOLD)], form=form, train=train)).values
    for part, left_out in (("by_sentence_length", ""), ("by_novelty", "seen"), ("label_scores", "")):
        parts = [found for name, found in values[part].items() if name != left_out]
        assert sum(found["gold"] for found in parts) == sum(found["predicted"] for found in parts) == values["words"]
        right = sum(found["correct"] for found in parts)
        assert 100 * right / values["words"] == pytest.approx(values["accuracy"])
    assert 0 < values["by_novelty"]["unseen"]["gold"] < values["words"]


def test_command_prints_the_accuracy_of_token_labels(token_bundle: Path) -> None:
    arguments = ["evaluate", str(token_bundle), "--data", str(GOLD), "--label-column", "upos", "--train", str(GOLD)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    for text in ("accuracy ", "words by training corpus\n  seen ", "uncertainty of drafts: "):
        assert text in result.stdout
    assert "stage two" not in result.stdout
