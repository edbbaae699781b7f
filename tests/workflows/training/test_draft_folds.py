"""Stage two learns from drafts of documents that their stage one has not read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concord.models.data.sentence import Sentence
from concord.models.data.soft_labels import allowed_labels
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.registry import build_tagger
from concord.models.saved_tagger import tagger_digest
from concord.models.schemes import BIOES
from concord.models.tagger import Tagger
from concord.models.training.fit import EpochProgress, FitConfig, fit
from concord.workflows.corpora.corpora import Documents
from concord.workflows.training import folds, train
from concord.workflows.training.folds import cut_folds, draft_by_folds
from concord.workflows.training.job import read_train_job
from concord.workflows.training.train import TrainOptions

MODEL = {"representation": {"word_dimension": 12, "characters": None}, "lstm": {"hidden": 12}, "samples": 2}
FIT = FitConfig.from_mapping(
    {
        "epochs": 30,
        "batch_sentences": 4,
        "draft_folds": 3,
        "optimizers": {"stage_one": {"learning_rate": 0.02}, "stage_two": {}},
    }
)
# Nothing but the word itself tells which of these are names.
DOCUMENTS = [
    [Sentence(words=("the", word), labels=("O", label))]
    for words, label in (("abcdef", "B-PER"), ("uvwxyz", "O"))
    for word in words
]


def build(documents: Documents) -> Tagger:
    sentences = (sentence for document in documents for sentence in document)
    return build_tagger("variational_lstm", MODEL, Vocabulary.from_sentences(sentences, entity_types=["PER"]))


def test_drafts_come_from_a_stage_one_that_has_not_read_the_document(tmp_path: Path) -> None:
    drafted = draft_by_folds(build, DOCUMENTS, FIT, tmp_path)
    assert drafted == DOCUMENTS
    by_word = {sentence.words[1]: sentence.drafts for (sentence,) in drafted}
    for _, held_out in cut_folds(DOCUMENTS, 3, seed=FIT.seed):
        first, *others = (by_word[sentence.words[1]] for (sentence,) in held_out)
        assert first is not None
        assert first.dtype == np.float16
        # A stage one that had read them would tell names from others, as that of all documents does.
        assert all(np.allclose(first, other, atol=1e-3) for other in others if other is not None)
    tagger = build(DOCUMENTS)
    alone = FIT.model_copy(update={"draft_folds": 0, "optimizers": {"tagger": FIT.optimizers["stage_one"]}})
    fit(tagger, DOCUMENTS, [], alone, tmp_path / "all")
    found = [prediction.draft_labels[1] for (prediction,) in tagger.eval().predict_documents(DOCUMENTS)]
    assert found == ["B-PER"] * 6 + ["O"] * 6


def test_copies_of_a_document_have_equal_drafts_and_incomplete_ones_have_none(tmp_path: Path) -> None:
    document = [*DOCUMENTS[0], Sentence(words=("a", "longer", "one"), labels=("O",) * 3)]
    labels = ("O", "O")
    soft = allowed_labels(labels, BIOES.label_set({"PER"}), lacks=["PER"], scheme=BIOES)
    weak = [Sentence(words=("the", "q"), labels=labels, soft=soft)]
    config = FIT.model_copy(update={"epochs": 1, "draft_folds": 2})
    first, _, weak_one, copy = draft_by_folds(build, [document, DOCUMENTS[7], weak, document], config, tmp_path)
    shapes = [sentence.drafts.shape[0] for sentence in first if sentence.drafts is not None]
    assert shapes == [2, 3]
    for one, other in zip(first, copy, strict=True):
        assert one.drafts is other.drafts
    assert weak_one[0].drafts is None


def test_too_many_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fit\.draft_folds: expected 13 or more different .* documents .*, got 12"):
        draft_by_folds(build, DOCUMENTS, FIT.model_copy(update={"draft_folds": 13}), tmp_path)


def test_one_part_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"draft_folds: .*expected 2 or more, or 0 for none"):
        FitConfig.from_mapping({"draft_folds": 1})


JOB = """
tagger: {tagger}
data: {{train: {corpus}, dev: {corpus}}}
profiles:
  small:
    model: {model}
    fit:
      epochs: 2
      batch_sentences: 4
      draft_folds: 3
      optimizers: {{stage_one: {{learning_rate: 0.02}}, stage_two: {{learning_rate: 0.02}}}}
"""


@pytest.fixture
def job_file(tmp_path: Path, two_stage_config: dict[str, Any]) -> Path:
    """Return the job of a Doc-UANet; its corpus has no documents, so that every sentence is one."""
    corpus = tmp_path / "corpus.conll"
    corpus.write_text("".join(f"called\tO\nzor{letter}\tB-PER\n\n" for letter in "abcdef"))
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(tagger="doc_uanet", corpus=corpus, model=json.dumps(two_stage_config)))
    return path


def digest_of(job_file: Path, folder: Path, *overrides: str) -> str:
    job = read_train_job(job_file, overrides=overrides)
    return train.train(job, TrainOptions(tracked=False, folder=folder, resume=True)).digest


def test_a_training_killed_between_or_within_its_parts_ends_with_the_same_weights(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = digest_of(job_file, tmp_path / "whole")
    assert digest_of(job_file, tmp_path / "without", "fit.draft_folds=0") != expected
    assert not (tmp_path / "without" / "drafts").exists()

    def killed(*arguments: object, **named: object) -> object:
        def stop(progress: EpochProgress) -> None:
            if progress.epoch == 2:
                raise KeyboardInterrupt

        folder = arguments[4]
        if isinstance(folder, Path) and folder.name == "2":
            named["on_batch"] = stop
        return fit(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(folds, "fit", killed)
    with pytest.raises(KeyboardInterrupt):
        digest_of(job_file, tmp_path / "killed")
    monkeypatch.setattr(folds, "fit", fit)
    states = sorted((tmp_path / "killed").rglob("state.safetensors"))
    assert [path.parent.name for path in states] == ["1", "2"]
    times = [path.stat().st_mtime_ns for path in states]
    with pytest.raises(ConfigError, match="contains another training"):
        digest_of(job_file, tmp_path / "killed", "fit.seed=2")
    assert digest_of(job_file, tmp_path / "killed") == expected == tagger_digest(tmp_path / "whole" / "bundle")
    assert states[0].stat().st_mtime_ns == times[0]
    assert states[1].stat().st_mtime_ns != times[1]


@pytest.mark.slow
def test_every_training_of_a_cross_validation_has_drafts_of_its_own(job_file: Path, tmp_path: Path) -> None:
    digest_of(job_file, tmp_path / "run", "data.dev=null", "data.folds=2")
    folders = {path.parent.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").rglob("bundle")}
    parts = [f"drafts/{number}" for number in (1, 2, 3)]
    assert folders == {"."} | {f"{one}{part}" for one in ("", "folds/1/", "folds/2/") for part in parts} | {
        "folds/1",
        "folds/2",
    }


def test_a_tagger_of_one_stage_has_no_drafts_to_learn_from(job_file: Path, tmp_path: Path) -> None:
    job_file.write_text(JOB.format(tagger="bilstm_crf", corpus=tmp_path / "corpus.conll", model="{}"))
    job = read_train_job(job_file)
    for begin in (train.check, train.prepare):
        with pytest.raises(ConfigError, match=r"fit\.draft_folds: expected a tagger of two stages, got bilstm_crf"):
            begin(job, TrainOptions(tracked=False, folder=tmp_path / "run"))


def test_wrong_optimizers_are_found_before_a_part_is_trained(job_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fit\.optimizers: expected the groups \['stage_one', 'stage_two'\]"):
        digest_of(job_file, tmp_path / "run", "fit.optimizers={stage_one: {}}")
    assert not (tmp_path / "run" / "drafts").exists()
