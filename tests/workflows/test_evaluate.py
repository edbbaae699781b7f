"""Scores on gold corpora, as plain values and as a table."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from models.checkpoint import load_tagger
from pipeline.errors import ModelError
from workflows import evaluate
from workflows.cli import main
from workflows.evaluate import EvaluateJob

GOLD = Path(__file__).parents[2] / "examples/train/dev.conllu"


@pytest.fixture
def agreeing(tiny_bundle: Path, write_corpus: Callable[[str], Path]) -> Path:
    """Give a corpus whose gold labels are what the tiny tagger says, but for one."""
    from workflows.corpora import read_corpora, without_labels

    documents = read_corpora([str(GOLD)], labels={})
    predicted = load_tagger(tiny_bundle).predict_documents(without_labels(documents))
    blocks = []
    for document, predictions in zip(documents, predicted, strict=True):
        blocks.append("-DOCSTART-\tx\n")
        for sentence, prediction in zip(document, predictions, strict=True):
            rows = zip(sentence.words, prediction.labels, strict=True)
            blocks.append("".join(f"{word}\t{label}\n" for word, label in rows))
    return write_corpus("\n".join(blocks))


def test_a_tagger_agrees_with_itself(tiny_bundle: Path, agreeing: Path) -> None:
    values = evaluate.run(EvaluateJob(folder=tiny_bundle, data=[str(agreeing)])).values
    assert (values["documents"], values["sentences"]) == (3, 15)
    assert values["scores"]["all"]["gold"] == values["scores"]["all"]["correct"] > 0
    assert values["scores"]["all"]["f1"] == values["draft_scores"]["all"]["f1"] == values["seqeval_f1"] == 100
    assert values["words_per_second"] > 0
    assert set(values["consistency"]) == {"share", "names", "occurrences", "agreeing"}


def test_our_score_is_seqevals(tiny_bundle: Path) -> None:
    values = evaluate.run(EvaluateJob(folder=tiny_bundle, data=[str(GOLD)])).values
    assert values["scores"]["all"]["f1"] == pytest.approx(values["seqeval_f1"])
    assert set(values["scores"]) == {"all", "LOC", "ORG", "PER"}


def test_types_that_the_tagger_does_not_know_count_as_missed(
    tiny_bundle: Path, write_corpus: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = str(write_corpus("Monday\tB-DAY\nis\tO\n"))
    values = evaluate.run(EvaluateJob(folder=tiny_bundle, data=[corpus])).values
    assert values["scores"]["DAY"]["recall"] == 0
    assert "every DAY of the corpus counts as missed" in capsys.readouterr().err
    values = evaluate.run(EvaluateJob(folder=tiny_bundle, data=[corpus], labels={"DAY": None})).values
    assert values["scores"]["all"]["gold"] == 0


def test_a_folder_that_is_no_bundle_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tagger\.json"):
        evaluate.run(EvaluateJob(folder=tmp_path, data=[str(GOLD)]))


def test_the_command_prints_a_table_by_type(tiny_bundle: Path) -> None:
    result = CliRunner().invoke(main, ["evaluate", str(tiny_bundle), "--data", str(GOLD), "--labels", "ORG=,LOC=PLACE"])
    assert result.exit_code == 0, result.output
    assert "draft F1" in result.stdout
    assert "\nPLACE" in result.stdout
    assert "every PLACE of the corpus counts as missed" in result.stderr
    wrong = CliRunner().invoke(main, ["evaluate", str(tiny_bundle), "--data", str(GOLD), "--labels", "ORG"])
    assert (wrong.exit_code, "GPE=LOC,MISC=" in wrong.stderr) == (2, True)
