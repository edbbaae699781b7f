"""The corpora of a training: what a list of terms labels and leaves open, and a training that reads both."""

import json
from pathlib import Path

import pytest
from concord_testing.command_line import concord

from concord.models.bundles.checkpoint import load_tagger
from concord.models.errors import ConfigError
from concord.models.labels import BIO, TOKENS
from concord.pipeline.errors import InputError
from concord.workflows.training.job import DataConfig, read_train_job
from concord.workflows.training.train_corpora import open_outside, read_train_corpora, read_weak_corpora

TEXTS = "take X-PER\nvitamin O\nC O\n\nzinc B-LOC\nhelps O\n"
TERMS = (
    {"label": "DRUG", "pattern": "vitamin C"},
    {"label": "METAL", "pattern": "zinc", "phrase_matcher_attr": "LOWER"},
)


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    (tmp_path / "texts.conll").write_text(TEXTS.replace("X-PER", "O"))
    (tmp_path / "terms.jsonl").write_text("".join(f"{json.dumps(term)}\n" for term in TERMS))
    paths = {name: str(tmp_path / file) for name, file in (("terms", "terms.jsonl"), ("unlabelled", "texts.conll"))}
    return DataConfig.from_mapping({"train": [], "dev": "dev.conll", **paths})


def allowed(data: DataConfig, *, outside: float) -> list[list[set[str]]]:
    documents, types = read_weak_corpora(data, scheme=BIO, trees=False)
    assert types == {"DRUG", "METAL"}
    found = []
    for (sentence,) in open_outside(documents, outside=outside, types=types, scheme=BIO):
        assert sentence.soft is not None
        names: list[set[str]] = [set() for _ in sentence.words]
        for word, label in zip(sentence.soft.words, sentence.soft.labels, strict=True):
            names[word].add(sentence.soft.names[label])
        found.append(names)
    return found


def test_matches_have_their_label_and_other_words_any(data: DataConfig) -> None:
    everything = {"O", "B-DRUG", "I-DRUG", "B-METAL", "I-METAL"}
    assert allowed(data, outside=0.0) == [[everything, {"B-DRUG"}, {"I-DRUG"}], [{"B-METAL"}, everything]]
    assert allowed(data, outside=1.0) == [[{"O"}, {"B-DRUG"}, {"I-DRUG"}], [{"B-METAL"}, {"O"}]]


def test_a_share_of_the_other_words_is_outside(tmp_path: Path, data: DataConfig) -> None:
    (tmp_path / "texts.conll").write_text("word O\n" * 1000)
    (found,) = allowed(data, outside=0.3)
    assert 250 < sum(labels == {"O"} for labels in found) < 350
    assert allowed(data, outside=0.3) == [found]


def test_terms_and_unlabelled_corpora_need_each_other_and_entities(tmp_path: Path, data: DataConfig) -> None:
    for missing in ("terms", "unlabelled"):
        with pytest.raises(ConfigError, match="data: expected both terms, a list of terms, and unlabelled"):
            read_weak_corpora(data.model_copy(update={missing: None}), scheme=BIO, trees=False)
    with pytest.raises(ConfigError, match="expected another scheme than TOKENS"):
        read_weak_corpora(data, scheme=TOKENS, trees=False)
    (tmp_path / "texts.conll").write_text("\n")
    with pytest.raises(InputError, match="expected a gold corpus with one sentence or more"):
        read_weak_corpora(data, scheme=BIO, trees=False)


def test_weak_labels_decide_the_digest(train_file: Path) -> None:
    job = read_train_job(train_file, overrides=["data.terms=terms.jsonl", "data.unlabelled=a.conll"])
    assert (job.data.terms, job.data.unlabelled) == (str(Path.cwd() / "terms.jsonl"), [str(Path.cwd() / "a.conll")])
    assert job.digest != read_train_job(train_file).digest


def test_words_that_nobody_labelled_are_open_to_all_that_the_tagger_knows(
    tmp_path: Path, train_file: Path, tiny_bundle: Path
) -> None:
    (tmp_path / "gold.conll").write_text("Ada B-PER\nmet O\nAcme ?\n")
    start = load_tagger(tiny_bundle)
    job = read_train_job(train_file, overrides=[f"data.train=[{tmp_path / 'gold.conll'}]", f"start={tiny_bundle}"])
    assert job.start == str(tiny_bundle)
    corpora = read_train_corpora(job, start.vocabulary.scheme, start)
    soft = corpora.parts["train"][0][0].soft
    assert soft is not None
    names = [soft.names[label] for word, label in zip(soft.words, soft.labels, strict=True) if word == 2]
    assert {"O", "S-LOC", "S-ORG", "S-PER"} <= set(names)


def test_a_training_that_continues_another_has_its_kind_of_tagger_and_its_labels_of_words(
    tmp_path: Path, train_file: Path, token_bundle: Path, tiny_bundle: Path
) -> None:
    with pytest.raises(ConfigError, match=r"start: expected a bilstm_softmax, which the job trains, got a bilstm_crf"):
        read_train_job(train_file, overrides=["tagger=bilstm_softmax", f"start={tiny_bundle}"])
    (tmp_path / "gold.conll").write_text("aspirin DRUG\n")
    start = load_tagger(token_bundle)
    gold = tmp_path / "gold.conll"
    chosen = ["tagger=null", f"start={token_bundle}", f"data.train=[{gold}]", f"data.dev={gold}", "data.test=null"]
    job = read_train_job(train_file, overrides=chosen)
    assert (job.tagger, job.register_as) == ("bilstm_softmax", "tiny")
    with pytest.raises(ConfigError, match=r"expected labels that the tagger knows \(ADJ, .*\), got DRUG"):
        read_train_corpora(job, start.vocabulary.scheme, start)


def test_corpora_to_score_on_must_be_labelled(tmp_path: Path, train_file: Path) -> None:
    (tmp_path / "dev.conll").write_text("Ada B-PER\nmet ?\n")
    job = read_train_job(train_file, overrides=[f"data.dev={tmp_path / 'dev.conll'}"])
    with pytest.raises(InputError, match="expected the labels of all words"):
        read_train_corpora(job, BIO, None)


@pytest.mark.slow
@pytest.mark.parametrize("gold", [True, False])
def test_a_training_learns_from_a_list(tmp_path: Path, train_file: Path, gold: bool) -> None:
    sentences = [f"take {drug} {number} times a day ." for number in range(40) for drug in ("aspirin", "ibuprofen")]
    rows = "\n\n".join("\n".join(f"{word} O" for word in sentence.split()) for sentence in sentences)
    (tmp_path / "texts.conll").write_text(f"{rows}\n")
    (tmp_path / "dev.conll").write_text("take O\nibuprofen B-DRUG\nnow O\n\naspirin B-DRUG\nhelps O\n")
    (tmp_path / "gold.conll").write_text("take O\naspirin B-DRUG\nwith O\ntea O\n")
    (tmp_path / "terms.jsonl").write_text('{"label": "DRUG", "pattern": "ibuprofen"}\n')
    settings = {
        "data.train": f"[{tmp_path / 'gold.conll'}]" if gold else "[]",
        "data.dev": tmp_path / "dev.conll",
        "data.test": "null",
        "data.terms": tmp_path / "terms.jsonl",
        "data.unlabelled": tmp_path / "texts.conll",
        "data.outside": 0.8,
        "fit.epochs": 10,
        "fit.batch_sentences": 4,
    }
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = ["train", str(train_file), "-o", str(tmp_path / "run"), "--no-tracking", "--json", *options]
    result = concord(*command)
    assert result.exit_code == 0, result.output
    assert "40 matches of the list of terms in 560 words" in result.stderr
    assert json.loads(result.stdout)["best"]["dev_recall"] >= 50
    bundle = tmp_path / "run" / "bundle"
    assert load_tagger(bundle).entity_types == ("DRUG",)
    seen = json.loads((bundle / "provenance.json").read_bytes())["parts"][0]["files"]
    assert f"{tmp_path.name}/texts.conll" in {file["name"] for file in seen}
