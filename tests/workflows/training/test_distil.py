"""Distillation: labels of teachers on disk, a student that learns from them, and what is recorded and refused."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import spacy
from click.testing import CliRunner, Result
from concord_testing.checkout import CHECKOUT

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.data.sentence import Sentence
from concord.pipeline.corpora.read_corpus import read_gold
from concord.pipeline.corpora.soft_corpus import read_soft_corpus
from concord.workflows.cli.main import main
from concord.workflows.corpora.corpora import without_labels
from concord.workflows.corpora.provenance import find_overlap, read_provenance
from concord.workflows.training import distil

pytestmark = pytest.mark.slow

PEOPLE = ("Maria", "Bob", "Ada", "Carl", "Nadia", "Omar", "Grace", "Linus", "Ines", "Tariq")
PLACES = ("Lisbon", "Leeds", "Aqaba", "Kent", "Oslo", "Cairo", "Quito", "Delhi", "Turin", "Perth")
STUDENT = """\
tagger: bilstm_softmax
data:
  train: [{train}]
  dev: {dev}
profiles:
  small:
    model:
      representation: {{word_dimension: 16, characters: null, dropout: 0.1}}
      lstm: {{hidden: 16, layers: 1}}
    fit:
      epochs: {epochs}
      optimizers: {{tagger: {{learning_rate: 2e-2}}}}
register_as: tiny
"""


def concord(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def write_conll(path: Path, names: int, sentences: int) -> Path:
    """Write sentences with so many first names and places, five to a document."""
    drawn = random.Random(names)
    lines = []
    for number in range(sentences):
        person, place = drawn.choice(PEOPLE[:names]), drawn.choice(PLACES[:names])
        words = drawn.choice([f"{person}/B-PER lives in {place}/B-LOC .", f"In {place}/B-LOC we met {person}/B-PER ."])
        head = ["-DOCSTART- O", ""] if number % 5 == 0 else []
        lines += [*head, *(word.replace("/", " ") if "/" in word else f"{word} O" for word in words.split()), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the corpora and a teacher that knows all names, while the student's corpus has few."""
    folder = tmp_path_factory.mktemp("distil")
    few, many = write_conll(folder / "few.conll", 2, 20), write_conll(folder / "many.conll", 10, 200)
    dev = write_conll(folder / "dev.conll", 9, 40)
    (folder / "teacher.yaml").write_text(STUDENT.format(train=many, dev=dev, epochs=6))
    (folder / "student.yaml").write_text(STUDENT.format(train=few, dev=dev, epochs=6))
    trained = concord("train", folder / "teacher.yaml", "--output", folder / "teacher", "--no-tracking")
    assert trained.exit_code == 0, trained.output
    return folder


def agreement(folder: Path, student: Path) -> float:
    """Return the share of the words of the dev corpus to which a student and the teacher assign the same label."""
    documents = without_labels(read_gold(folder / "dev.conll"))
    found = [
        [
            label
            for document in load_tagger(bundle).predict_documents(documents)
            for one in document
            for label in one.labels
        ]
        for bundle in (folder / "teacher/bundle", student)
    ]
    return float(sum(left == right for left, right in zip(*found, strict=True)) / len(found[0]))


def test_student_agrees_more_with_its_teacher_than_one_without_soft_labels(folder: Path, store: Path) -> None:
    (store / "texts").mkdir()
    texts = [" ".join(sentence.words) for document in read_gold(folder / "many.conll") for sentence in document]
    records = [{"id": str(number), "text": " ".join(texts[number::10])} for number in range(10)]
    (store / "texts/some.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    teacher = folder / "teacher/bundle"
    done = concord(
        *("distil", folder / "student.yaml", "--teacher", teacher, "--text", store / "texts"),
        *("-o", store / "run", "--json"),
    )
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert values["registered"] == "models:/tiny/1"
    assert values["labelled"]["documents"] == 10
    alone = concord("train", folder / "student.yaml", "--output", store / "alone", "--no-tracking")
    assert alone.exit_code == 0, alone.output
    distilled = agreement(folder, store / "run/bundle")
    assert distilled > 0.9
    assert distilled > agreement(folder, store / "alone/bundle") + 0.05

    # Another student of the same labels, by an ordinary training.
    corpora = f"[{folder}/few.conll, {{path: {store}/run/labels, weight: 0.5}}]"
    other = concord(
        *("train", folder / "student.yaml", "--set", f"data.train={corpora}", "--set", "model.scheme=BIOES"),
        *("--set", "fit.epochs=1", "--output", store / "other", "--no-tracking"),
    )
    assert other.exit_code == 0, other.output
    found = read_provenance(store / "other/bundle")
    assert found is not None
    assert [one.digest for one in found.teachers] == [tagger_digest(teacher)]


def test_a_student_that_finds_nothing_is_registered_only_if_forced(folder: Path, store: Path) -> None:
    weak = ("--set", "fit.epochs=1", "--set", "fit.optimizers.tagger.learning_rate=1e-6")
    command = (
        *("distil", folder / "student.yaml", "--teacher", folder / "teacher/bundle"),
        *("--text", folder / "few.conll", *weak),
    )
    refused = concord(*command, "-o", store / "run")
    assert refused.exit_code == 4, refused.output
    assert "registered  no, since F1 on dev is 0.00" in refused.stdout
    assert (store / "run/bundle").is_dir()
    forced = concord(*command, "-o", store / "run", "--force")
    assert (forced.exit_code, "registered  models:/tiny/1" in forced.stdout) == (0, True)


def test_provenance_holds_texts_and_what_the_teachers_have_seen(folder: Path, tmp_path: Path) -> None:
    text = write_conll(tmp_path / "text.conll", 5, 50)
    teacher = folder / "teacher/bundle"
    done = concord(
        *("distil", folder / "student.yaml", "--teacher", teacher, "--teacher", teacher, "--text", text),
        *("-o", tmp_path / "run", "--no-tracking", "--set", "fit.epochs=1"),
    )
    assert done.exit_code == 0, done.output
    found = read_provenance(tmp_path / "run/bundle")
    assert found is not None
    assert [(one.digest, one.recorded) for one in found.teachers] == [(tagger_digest(teacher), True)]
    for name in ("few", "many", "text"):
        documents = read_gold((tmp_path if name == "text" else folder) / f"{name}.conll")
        overlap = find_overlap(found, documents)
        assert overlap.seen["train"] == overlap.compared > 0
    files = {file.name.rpartition("/")[2] for part in found.parts for file in part.files}
    assert files == {"few.conll", "many.conll", "dev.conll", "text.conll"}
    refused = concord("calibrate", tmp_path / "run/bundle", "--data", folder / "many.conll", "-o", tmp_path / "copy")
    assert (refused.exit_code, "expected documents that the tagger has not seen" in refused.stderr) == (2, True)

    (teacher_copy := tmp_path / "unknown").mkdir()
    shutil.copytree(teacher, teacher_copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("provenance.json"))
    done = concord(
        *("distil", folder / "student.yaml", "--teacher", teacher_copy, "--text", text),
        *("-o", tmp_path / "other", "--no-tracking", "--set", "fit.epochs=1"),
    )
    assert "what the student has seen through it is unknown" in done.stderr
    found = read_provenance(tmp_path / "other/bundle")
    assert found is not None
    assert not found.is_complete


def test_killed_labelling_continues_with_the_shards_that_are_missing(folder: Path, tmp_path: Path) -> None:
    text = write_conll(tmp_path / "text.conll", 10, 300)
    teacher = ("--teacher", folder / "teacher/bundle")
    arguments = ["distil", folder / "student.yaml", *teacher, "--text", text, "--no-tracking"]
    program = (
        "from concord.workflows.training import distil; distil._SHARD_CHARACTERS = 2000\n"
        "from concord.workflows.cli.main import main; main()"
    )

    def run(output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *map(str, arguments), "-o", str(output)]
        return subprocess.run(
            command, env=os.environ | environment, cwd=CHECKOUT, capture_output=True, text=True, check=False
        )

    # The first file that is written is the description.
    killed = run(tmp_path / "run", CONCORD_CRASH_AT="fsync:3")
    assert killed.returncode == -signal.SIGKILL
    labels = tmp_path / "run/labels"
    assert sorted(path.name for path in labels.glob("*.parquet")) == ["00000.parquet"]
    first = (labels / "00000.parquet").stat().st_mtime_ns
    resumed = run(tmp_path / "run")
    assert resumed.returncode == 0, resumed.stderr
    assert "1 of 4 shards are labelled already" in resumed.stderr
    assert (labels / "00000.parquet").stat().st_mtime_ns == first
    assert run(tmp_path / "whole").returncode == 0
    assert tagger_digest(tmp_path / "run/bundle") == tagger_digest(tmp_path / "whole/bundle")
    words = [sentence.words for document in read_soft_corpus(labels) for sentence in document]
    assert words == [sentence.words for document in read_gold(text) for sentence in document]


def message(folder: Path, *arguments: object, teachers: Sequence[object] = ()) -> str:
    """Return the message with which a distillation is refused."""
    chosen = [part for one in teachers or (folder / "teacher/bundle",) for part in ("--teacher", one)]
    result = concord("distil", *chosen, folder / "student.yaml", "--no-tracking", *arguments)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_refuses_what_does_not_fit(
    folder: Path, tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_conll(tmp_path / "text.conll", 5, 50)
    run = ("--text", text, "-o", tmp_path / "run")
    assert "model.scheme: expected BIOES, in which the teacher bilstm_softmax is labelled, got BIO" in message(
        folder, *run, "--set", "model.scheme=BIO"
    )
    assert "expected the labels of the first teacher" in message(
        folder, *run, teachers=(folder / "teacher/bundle", tiny_bundle)
    )
    assert "expected entity types that it knows (LOC, PER), got DATE" in message(
        folder, *run, teachers=(f"{folder}/teacher/bundle=DATE",)
    )
    assert "expected types that no teacher before it teaches, got PER" in message(
        folder, *run, teachers=(folder / "teacher/bundle", f"{folder}/teacher/bundle=PER")
    )
    assert "parser: pakage: unknown key" in message(folder, *run, "--set", "parser.pakage=default")
    mapped = ("--set", "data.labels.PER=HUMAN")
    assert "expected teachers that know HUMAN of the gold corpora, got labels of LOC, PER" in message(
        folder, *run, *mapped
    )
    assert "expected a student that needs no dependency trees" in message(
        folder, *run, "--set", "tagger=dependency_aware"
    )
    assert "unknown key; did you mean 'epochs'?" in message(folder, *run, "--set", "fit.epoch=2")
    assert not (tmp_path / "run").exists()

    done = concord(
        *("distil", folder / "student.yaml", "--teacher", folder / "teacher/bundle", *run, "--no-tracking"),
        *("--set", "fit.epochs=1"),
    )
    assert done.exit_code == 0, done.output
    other = write_conll(tmp_path / "other.conll", 6, 50)
    assert "contains another labelling, which differs in texts" in message(
        folder, "--text", other, "-o", tmp_path / "run", "--set", "fit.epochs=1"
    )
    assert "contains another training" in message(folder, *run, "--set", "fit.epochs=2")
    monkeypatch.setattr(distil, "_SHARD_CHARACTERS", 10)
    assert "differs in settings" in message(folder, *run, "--set", "fit.epochs=1")


def test_teachers_of_different_types_teach_those_that_they_are_named_for(folder: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    patterns = [{"label": "TOWN", "pattern": place} for place in PLACES]
    patterns += [{"label": "TOWN", "pattern": f"met {person}"} for person in PEOPLE]
    ruler.add_patterns([*patterns, {"label": "VERB", "pattern": "lives"}])
    nlp.to_disk(tmp_path / "ruler")
    text = write_conll(tmp_path / "text.conll", 10, 20)
    both = [f"{folder}/teacher/bundle=PER", f"spacy:{tmp_path}/ruler=TOWN"]
    few = f"[{{path: {folder}/few.conll, lacks: [TOWN]}}]"
    options = ("--text", text, "--no-tracking", "--set", "fit.epochs=1", "--set", "data.labels.LOC=null", "--force")

    def taught(run: Path, *teachers: str, labels: str = few) -> list[Sentence]:
        chosen = [part for teacher in teachers for part in ("--teacher", teacher)]
        done = concord("distil", folder / "student.yaml", *chosen, *options, "-o", run, "--set", f"data.train={labels}")
        assert done.exit_code == 0, done.output
        return [sentence for document in read_soft_corpus(run / "labels") for sentence in document]

    alone = taught(tmp_path / "alone", both[0], labels=f"[{folder}/few.conll]")
    mixed = taught(tmp_path / "mixed", *both)
    assert load_tagger(tmp_path / "mixed/bundle").entity_types == ("PER", "TOWN")
    places = met = 0
    for one, other in zip(alone, mixed, strict=True):
        for word, before, after in zip(one.words, probabilities(one), probabilities(other), strict=True):
            if word in PLACES:
                places += 1
                assert after["S-TOWN"] == pytest.approx(before["O"], abs=2e-3)
            else:
                met += word == "met"
                assert after == pytest.approx(before, abs=1e-6)
    assert (places, met > 3) == (20, True)


def probabilities(sentence: Sentence) -> list[dict[str, float]]:
    """Return the probability of each label that a word may have, by word."""
    soft = sentence.soft
    assert soft is not None
    assert soft.probabilities is not None
    words: list[dict[str, float]] = [{} for _ in sentence.words]
    for word, label, probability in zip(soft.words, soft.labels, soft.probabilities, strict=True):
        words[word][soft.names[label]] = float(probability)
    return words


def test_the_texts_are_split_by_the_parser_that_is_named(folder: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.to_disk(tmp_path / "splitter")
    (tmp_path / "text.txt").write_text("Maria lives in Lisbon! Bob too?", encoding="utf-8")
    done = concord(
        *("distil", folder / "student.yaml", "--teacher", folder / "teacher/bundle", "--text", tmp_path / "text.txt"),
        *("-o", tmp_path / "run", "--no-tracking", "--force", "--set", "fit.epochs=1"),
        *("--set", f"parser.package=spacy:{tmp_path}/splitter"),
    )
    assert done.exit_code == 0, done.output
    [document] = read_soft_corpus(tmp_path / "run/labels")
    assert [len(sentence.words) for sentence in document] == [5, 3]
    assert "spacy" in json.loads((tmp_path / "run/labels/labelling.json").read_text())["tokenizer"]


def test_corpus_that_lacks_a_type_does_not_teach_that_it_is_outside(folder: Path, tmp_path: Path) -> None:
    many = (folder / "many.conll").read_text()
    lacking = tmp_path / "lacking.conll"
    lacking.write_text(many.replace("B-LOC", "O"))
    scores = {}
    for name, entry in {"read as outside": f"{lacking}", "lacking": f"{{path: {lacking}, lacks: [LOC]}}"}.items():
        corpora = f"[{{path: {folder}/few.conll, weight: 2}}, {entry}]"
        done = concord(
            *("train", folder / "student.yaml", "--set", f"data.train={corpora}", "--no-tracking", "--json"),
            *("--output", tmp_path / name),
        )
        assert done.exit_code == 0, done.output
        scores[name] = json.loads(done.stdout)["dev"]["scores"]
    assert scores["lacking"]["LOC"]["recall"] > scores["read as outside"]["LOC"]["recall"] + 10
    assert scores["lacking"]["PER"]["f1"] > 90
    refused = concord(
        *("train", folder / "student.yaml", "--no-tracking", "--output", tmp_path / "refused"),
        *("--set", f"data.train=[{{path: {lacking}, lacks: [ORG]}}]"),
    )
    assert "lacks: expected entity types of the other corpora (PER), got ORG" in refused.stderr
