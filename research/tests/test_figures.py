"""Figures of a tagger: which are drawn, whether their numbers are right, what is left out; trainings side by side."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from click.testing import CliRunner
from concord_testing.checkout import CHECKOUT
from concord_testing.tiny_taggers import TWO_STAGE

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.registry import build_tagger
from concord.models.data.outputs import PredictOptions, known_numbers
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.evaluation.metrics import gold_sequences
from concord.models.labels import decode_spans
from concord.models.taggers.token_table import TokenTable
from concord.models.training.fit_calibration import REFINE_ALL
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.corpora.gold_corpus import read_gold
from concord.pipeline.errors import InputError
from concord.workflows.evaluation import EvaluateJob, evaluate_command
from concord.workflows.training.job import read_train_job
from concord.workflows.training.train import TrainOptions, train
from research import epochs, figures, plots
from research.figures import FiguresJob, Part, main, zero

pytestmark = pytest.mark.slow

EXAMPLES = CHECKOUT / "examples/train"
GOLD = EXAMPLES / "dev.conllu"
PICTURES = {"png": b"\x89PNG\r\n", "svg": b"<?xml "}


@pytest.fixture(scope="module")
def doc_uanet_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small Doc-UANet with random weights and a threshold within the grid."""
    sentences = [sentence for document in read_gold(EXAMPLES / "train.conllu") for sentence in document]
    torch.manual_seed(3)
    tagger: Any = build_tagger("doc_uanet", TWO_STAGE, Vocabulary.from_sentences(sentences)).eval()
    documents = read_gold(GOLD)
    uncertainty = tagger.tabulate(documents, PredictOptions(threshold=REFINE_ALL)).uncertainty
    tagger.set_threshold(round(float(uncertainty.median()) / 0.05) * 0.05)
    folder = tmp_path_factory.mktemp("taggers") / "doc_uanet"
    save_tagger(tagger, folder)
    return folder


@pytest.fixture(scope="module")
def drawn(doc_uanet_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Draw the figures of the Doc-UANet and read back the file of numbers."""
    output = tmp_path_factory.mktemp("figures") / "deep" / "folder"
    answer = figures.draw_figures(FiguresJob(folder=doc_uanet_bundle, data=[str(GOLD)], output=output))
    numbers = json.loads((output / "figures.json").read_text())
    assert numbers == answer.values
    return dict(numbers)


def pictures(numbers: dict[str, Any]) -> list[Path]:
    folder, found = Path(numbers["folder"]), dict(numbers["figures"])
    attention = [entry for sentence in found.pop("attention", []) for entry in sentence["maps"].values()]
    return [folder / entry["file"] for entry in (*found.values(), *attention)]


@pytest.mark.slow(reason="draws every figure of a tagger of two stages")
def test_document_tagger_gets_every_figure(drawn: dict[str, Any]) -> None:
    names = {"samples", "length", "threshold", "memory", "uncertainty", "attention"}
    assert (set(drawn["figures"]), set(drawn["left_out"])) == (names, {"parts", "attended"})
    assert all(path.read_bytes().startswith(PICTURES["png"]) for path in pictures(drawn))


def test_numbers_equal_those_of_evaluate(drawn: dict[str, Any], doc_uanet_bundle: Path) -> None:
    scores = evaluate_command(EvaluateJob(folder=doc_uanet_bundle, data=[str(GOLD)])).values
    f1, found = scores["scores"]["all"]["f1"], drawn["figures"]
    assert [point["f1"] for point in found["samples"]["points"] if point["samples"] == 4] == [pytest.approx(f1)]
    memory = {point["slots"]: point for point in found["memory"]["points"]}
    assert memory[found["memory"]["own"]]["f1"] == pytest.approx(f1)
    points, own = found["threshold"]["points"], found["threshold"]["own"]
    assert [point["f1"] for point in points if point["threshold"] == pytest.approx(own)] == [pytest.approx(f1)]
    assert found["threshold"]["draft_f1"] == pytest.approx(scores["draft_score"])
    assert (points[0]["refined_share"], points[-1]["refined_share"], points[-1]["f1_change"]) == (1.0, 0.0, 0.0)
    assert sum(entry["sentences"] for entry in found["length"]["bins"]) == scores["sentences"]
    assert sum(entry["gold"] for entry in found["length"]["bins"]) == scores["scores"]["all"]["gold"]
    # Nothing has changed the tagger.
    assert (drawn["digest"], found["memory"]["own"]) == (scores["digest"], 10)
    uncertainty = found["uncertainty"]
    assert sum(uncertainty["right"]) + sum(uncertainty["wrong"]) == scores["words"]
    assert uncertainty["ratio"] == pytest.approx(uncertainty["mean_wrong"] / uncertainty["mean_right"])


def test_refined_words_are_counted_by_what_becomes_of_their_labels(drawn: dict[str, Any]) -> None:
    sentence = Sentence(words=("Ada", "met", "Ford", "in", "Kent"))
    empty = TokenTable.empty([[sentence]], calibration=None, labels=None)
    gold, uncertainty = torch.tensor([1, 0, 2, 0, 3]), torch.tensor([0.9, 0.6, 0.6, 0.1, 0.1])
    table = replace(
        empty, draft=torch.tensor([2, 0, 1, 0, 1]), label=torch.tensor([1, 4, 3, 4, 3]), uncertainty=uncertainty
    )
    changed = [figures.count_changes(table, gold, threshold=threshold) for threshold in (REFINE_ALL, 0.5, 0.7, 1.0)]
    assert [tuple(counts.values()) for counts in changed] == [(2, 2), (1, 1), (1, 0), (0, 0)]
    found = drawn["figures"]["threshold"]
    assert 0 < found["wrong_drafts"] <= found["words"] == sum(map(len, gold_sequences(read_gold(GOLD))))


def test_figures_of_two_stages_are_left_out_for_a_tagger_of_one(tiny_bundle: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_bundle), "--data", str(GOLD), "--output", str(tmp_path), "--picture", "svg"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {"figures.json", "length.svg", "uncertainty.svg"}
    for reason in ("memory left out: bilstm_crf has no document memory", "threshold left out", "attention left out"):
        assert reason in result.stdout
    assert (tmp_path / "length.svg").read_bytes().startswith(PICTURES["svg"])
    with pytest.raises(InputError, match="expected a number from 1 to 15, got 16"):
        figures.draw_figures(FiguresJob(folder=tiny_bundle, data=[str(GOLD)], output=tmp_path, sentences=[16]))


def test_attention_of_a_requested_sentence_and_the_worth_of_parts_are_drawn(tmp_path: Path) -> None:
    numbers = _draw_with_attention(GOLD, tmp_path, sentences=[3], only=["attention", "parts"])
    (found,) = numbers["figures"]["attention"]
    words = list(read_gold(GOLD)[0][2].words)
    assert (found["sentence"], found["words"]) == (3, words)
    (name,) = found["maps"]
    assert found["maps"][name]["columns"] == words
    assert [len(row) for row in found["maps"][name]["weights"]] == [len(words)] * len(words)
    zeroed = numbers["figures"]["parts"]["zeroed"]
    assert list(zeroed["nothing"]) == ["O", "S", "B", "I", "E"]
    assert len({tuple(recalls.values()) for recalls in zeroed.values()}) == len(("nothing", "hidden", "contexts"))
    for picture in (found["maps"][name]["file"], "parts.png"):
        assert (tmp_path / picture).read_bytes().startswith(PICTURES["png"])


@pytest.mark.parametrize("part", get_args(Part))
def test_the_output_layer_reads_zeros_for_a_zeroed_part(part: Part) -> None:
    sentence = Sentence(words=("Ada", "met", "Ford"))
    vocabulary = Vocabulary.from_sentences([sentence], entity_types=["PER"])
    tagger: Any = build_tagger("att_bilstm_cnn", {}, vocabulary).eval()
    states = tagger.read(tagger.encode([sentence]))
    complete, width = tagger.output(states), tagger.lstm.output_dimension
    without = states.clone()
    without[..., slice(width) if part == "hidden" else slice(width, None)] = 0.0
    expected = tagger.output(without)
    zero(tagger, part)
    assert torch.allclose(tagger.output(states), expected, atol=1e-6)
    assert not torch.allclose(complete, expected)


def test_the_command_takes_names_of_figures_and_the_column_of_labels(
    tiny_bundle: Path, tmp_path: Path, write_corpus: Callable[[str], Path]
) -> None:
    corpus = write_corpus("Ada\tB-PER\tx\nslept\tO\tx\n")
    arguments = ["--data", str(corpus), "--output", str(tmp_path / "out"), "--label-column", "2", "--figure", "length"]
    result = CliRunner().invoke(main, [str(tiny_bundle), *arguments])
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"figures.json", "length.png"}


def test_most_attended_words_of_the_dependency_aware_tagger_are_drawn(tmp_path: Path) -> None:
    numbers = _draw_with_attention(GOLD, tmp_path, name="dependency_aware", only=["attended"])
    found = numbers["figures"]["attended"]
    names = [span for labels in gold_sequences(read_gold(GOLD)) for span in decode_spans(labels, "BIO")]
    assert 0 < found["words"] <= sum(span.end - span.start for span in names)
    assert set(found["outside_names"]) <= {span.label for span in names}
    assert (tmp_path / "attended.png").read_bytes().startswith(PICTURES["png"])


def test_attention_leaves_out_columns_without_weight(drawn: dict[str, Any]) -> None:
    for found in drawn["figures"]["attention"]:
        memory = found["maps"]["memory"]
        assert all(any(row[column] for row in memory["weights"]) for column in range(len(memory["columns"])))
        own = [word.lower() for word in found["words"]]
        assert all(word.lower() in own for word in memory["columns"])


def test_attention_is_drawn_for_the_most_uncertain_sentences(tmp_path: Path) -> None:
    numbers = _draw_with_attention(GOLD, tmp_path, only=["attention"])
    drawn_sentences = [found["sentence"] for found in numbers["figures"]["attention"]]
    tagger = load_tagger(tmp_path / "tagger")
    predicted = [sentence for document in tagger.predict_documents(read_gold(GOLD)) for sentence in document]
    highest = [max(known_numbers(prediction.uncertainty)) for prediction in predicted]
    assert drawn_sentences == sorted(range(1, 16), key=lambda number: -highest[number - 1])[:2]


def test_attention_of_an_over_long_sentence_is_left_out(tmp_path: Path, write_corpus: Callable[[str], Path]) -> None:
    corpus = write_corpus("Ada\tB-PER\nslept\tO\n" * 40 + "\nAda\tB-PER\n")
    numbers = _draw_with_attention(corpus, tmp_path, sentences=[1, 2], only=["attention"])
    assert [found["sentence"] for found in numbers["figures"]["attention"]] == [2]
    assert "it has 80 words" in numbers["left_out"]["attention in sentence 1"]


def test_dollar_signs_in_words_are_drawn_as_text(tmp_path: Path) -> None:
    rows = ["$x_{", "\\frac$", "5$"]
    plots.draw_attention(
        [[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]], tmp_path / "map.svg", rows=rows, columns=["$", "$$"], heads=1, title="t"
    )
    assert (tmp_path / "map.svg").stat().st_size > 1000


def test_pictures_are_reproducible_byte_for_byte(tmp_path: Path) -> None:
    values = {"score": "F1", "own": 10, "points": [{"slots": 0, "f1": 1.0, "recurring": 2.0}]}
    for form in PICTURES:
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir(exist_ok=True)
            plots.draw_memory(values, tmp_path / folder / f"memory.{form}", title="t")
        assert (tmp_path / f"a/memory.{form}").read_bytes() == (tmp_path / f"b/memory.{form}").read_bytes()


def _draw_with_attention(
    data: Path, tmp_path: Path, *, only: Sequence[str], name: str = "att_bilstm_cnn", sentences: Sequence[int] = ()
) -> dict[str, Any]:
    """Draw some figures of a tagger with attention of words to words."""
    train = [sentence for document in read_gold(EXAMPLES / "train.conllu") for sentence in document]
    torch.manual_seed(1)
    tagger = build_tagger(name, {}, Vocabulary.from_sentences(train)).eval()
    save_tagger(tagger, tmp_path / "tagger")
    job = FiguresJob(folder=tmp_path / "tagger", data=[str(data)], output=tmp_path, sentences=sentences, only=only)
    return dict(figures.draw_figures(job).values)


def test_figures_of_token_labels_show_accuracy(token_bundle: Path, tmp_path: Path) -> None:
    form = GoldFormat(label_column="upos")
    job = FiguresJob(folder=token_bundle, data=[str(GOLD)], output=tmp_path, form=form)
    found = figures.draw_figures(job).values["figures"]
    scores = evaluate_command(EvaluateJob(folder=token_bundle, data=[str(GOLD)], form=form)).values
    bins = found["length"]["bins"]
    assert found["length"]["score"] == "accuracy"
    right = sum(entry["gold"] * entry["f1"] for entry in bins)
    assert right / scores["words"] == pytest.approx(scores["accuracy"])
    assert sum(found["uncertainty"]["right"]) == scores["scores"]["all"]["correct"]


def trained(folder: Path, *overrides: str) -> Path:
    data = [f"data.train=[{EXAMPLES / 'train.conllu'}]", f"data.dev={EXAMPLES / 'dev.conllu'}"]
    job = read_train_job(
        CHECKOUT / "conf/train/bilstm_softmax.yaml", profile="small", overrides=[*data, "fit.epochs=2", *overrides]
    )
    train(job, TrainOptions(folder=folder, tracked=False))
    return folder


def test_scores_of_every_epoch_are_put_side_by_side(tmp_path: Path) -> None:
    folders = [trained(tmp_path / name, f"fit.seed={seed}") for seed, name in enumerate(("one", "two"), 1)]
    result = CliRunner().invoke(epochs.main, [*map(str, folders), "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    values = json.loads((tmp_path / "out/epochs.json").read_text())
    assert values["measure"] == "F1"
    for folder in folders:
        scores = values["trainings"][folder.name]
        best = json.loads((folder / "result.json").read_text())["best"]
        assert [entry["epoch"] for entry in scores] == [1, 2]
        assert max(entry["dev"] for entry in scores) == best["dev_f1"]
        assert f"{scores[1]['dev']:.2f}" in result.stdout
    assert (tmp_path / "out/epochs.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_scores_of_other_measures_and_missing_trainings_are_refused(tmp_path: Path) -> None:
    names = trained(tmp_path / "names", "fit.epochs=1")
    tags = trained(tmp_path / "tags", "fit.epochs=1", "data.label_column=upos", "model.scheme=TOKENS")
    for folder, message in ((tags, "one measure of dev scores"), (tmp_path, "found no such file")):
        result = CliRunner().invoke(epochs.main, [str(names), str(folder), "--output", str(tmp_path / "out")])
        assert result.exit_code == 2, result.output
        assert message in result.stderr
