"""What people corrected as a gold corpus: which labels are known, which are left open; what a tagger learns of it."""

import json
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord, concord_json
from concord_testing.finished_runs import write_run

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.pipeline.corpora.gold_corpus import read_gold
from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log, log_path
from concord.pipeline.errors import InputError
from concord.workflows.corpora import find_overlap, read_provenance
from concord.workflows.corrections import read_corrected
from concord.workflows.registry import bundled_names, fetch, find_tagger, resolve

pytestmark = pytest.mark.slow

TEXT = "Anna Smith saw Geneva . Bob met Acme . Rain fell ."
DOCUMENTS = {
    "one": ["Anna|B-PER Smith|I-PER saw Geneva|B-PER .", "Bob|B-PER met Acme .", "Rain fell ."],
    "two": ["Anna|B-PER slept ."],
}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A finished collection of two documents."""
    return write_run(tmp_path / "out", DOCUMENTS, keep_text=True)


def mark(surface: str, label: str) -> Mark:
    start = TEXT.index(surface)
    return Mark(start=start, end=start + len(surface), type=label, text=surface)


def correct(output: Path, old: Mark | None, new: Mark | None, *, tagger: str = "tagger-x") -> Correction:
    """Append a correction of document ``one`` to the log."""
    made = Correction.of(old, new, text=TEXT, seen=Seen(doc_id="one", tagger=tagger, generation=0), who="ada")
    append_to_log(log_path(output), [made])
    return made


def shown(sentence: Sentence) -> str:
    """Return the labels of a sentence, with ``?`` where none is known."""
    known = sentence.known or (True,) * len(sentence.words)
    return " ".join(label if is_it else "?" for label, is_it in zip(sentence.labels or (), known, strict=True))


def test_sentences_that_nobody_looked_at_are_left_open(output: Path) -> None:
    correct(output, mark("Geneva", "PER"), mark("Geneva", "LOC"))
    corpus = read_corrected(output)
    assert [document.name for document in corpus.documents] == ["one"]
    document = corpus.documents[0].sentences
    assert list(map(shown, document)) == ["B-PER I-PER O B-LOC O", "? ? ? ?", "? ? ?"]
    assert (corpus.corrections, corpus.left_out, corpus.looked_at) == (1, 0, (1, 5))
    assert document[1].labels == ("O",) * 4
    whole = read_corrected(output, whole_documents=True).documents[0].sentences
    assert list(map(shown, whole)) == ["B-PER I-PER O B-LOC O", "B-PER O O O", "O O O"]


@pytest.mark.parametrize(
    ("old", "new", "labels"),
    [
        (mark("Bob", "PER"), mark("Bob", "PER"), "B-PER O O O"),
        (mark("Bob", "PER"), None, "O O O O"),
        (None, mark("Acme", "ORG"), "B-PER O B-ORG O"),
        (mark("Bob", "PER"), mark("Bob met Acme", "ORG"), "B-ORG I-ORG I-ORG O"),
        (mark("met", "O"), None, "B-PER O O O"),
    ],
    ids=["accept", "drop", "add", "relabel", "nothing"],
)
def test_any_correction_shows_that_its_sentence_was_looked_at(
    output: Path, old: Mark | None, new: Mark | None, labels: str
) -> None:
    correct(output, old, new)
    assert [shown(sentence) for sentence in read_corrected(output).documents[0].sentences] == [
        "? ? ? ? ?",
        labels,
        "? ? ?",
    ]


def test_a_sentence_without_entities_is_looked_at_and_stays_so_with_another_tagger(output: Path) -> None:
    correct(output, mark("Rain fell .", "O"), None, tagger="an earlier one")
    corpus = read_corrected(output)
    assert shown(corpus.documents[0].sentences[2]) == "O O O"
    assert corpus.looked_at == (1, 3)


def test_correction_beside_other_entities_says_nothing_about_the_rest(output: Path) -> None:
    """The tagger has changed since, so that nobody saw what the sentence has now."""
    correct(output, None, mark("Acme", "ORG"), tagger="an earlier one")
    assert shown(read_corrected(output).documents[0].sentences[1]) == "? ? B-ORG ?"
    assert shown(read_corrected(output, whole_documents=True).documents[0].sentences[0]) == "? ? ? ? ?"


def test_undone_corrections_do_not_count(output: Path) -> None:
    made = correct(output, mark("Bob", "PER"), None)
    append_to_log(log_path(output), [made.undone(who="ada")])
    with pytest.raises(InputError, match="found none; make some with 'concord view'"):
        read_corrected(output)


def test_what_the_tables_still_have_of_an_undone_correction_is_not_known(tmp_path: Path) -> None:
    output = write_run(tmp_path / "out", DOCUMENTS, keep_text=True, corrected={"one": "those of the last run"})
    made = correct(output, None, mark("Acme", "ORG"))
    append_to_log(log_path(output), [made.undone(who="ada")])
    correct(output, mark("Bob", "PER"), mark("Bob", "PER"))
    assert shown(read_corrected(output).documents[0].sentences[1]) == "B-PER ? ? ?"


def test_corrections_that_do_not_fit_are_counted(output: Path) -> None:
    correct(output, mark("Bob", "PER"), None)
    correct(output, None, Mark(start=1, end=3, type="PER", text="nn"))
    assert read_corrected(output).left_out == 1
    (output / "corrections.jsonl").unlink()
    correct(output, None, Mark(start=1, end=3, type="PER", text="nn"))
    with pytest.raises(InputError, match="a correction that fits"):
        read_corrected(output)


def test_the_corpus_is_written_with_its_open_labels(output: Path, tmp_path: Path) -> None:
    correct(output, mark("Geneva", "PER"), mark("Geneva", "LOC"))
    correct(output, None, mark("Acme", "ORG"), tagger="an earlier one")
    path = tmp_path / "corrected.conllu"
    values = concord_json("corrections", "export", output, "--output", path)
    assert read_gold(path) == [list(document.sentences) for document in read_corrected(output).documents]
    assert (values["corrections"], values["documents"], values["entities"]) == (
        2,
        ["one"],
        {"LOC": 1, "ORG": 1, "PER": 1},
    )
    assert (values["sentences_looked_at"], values["words_looked_at"]) == (2, 6)
    shown = concord("corrections", "export", output, "--output", path).stdout
    assert "2 corrections in 1 document: 2 sentences, 6 words looked at\nentities  LOC 1, ORG 1, PER 1\n" in shown


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Saturday", "Sunday")


@pytest.mark.slow(reason="trains a tagger and continues it")
def test_a_tagger_learns_a_new_type_by_the_commands_of_the_page(trained_store: Path) -> None:
    """The type is one that dev lacks; the former training's corpus does not say that it is not there."""
    verbs = ("slept", "fell silent", "left", "returned")
    texts = {f"{day} {verb}": f"Zorba Quux {verb} on {day} ." for day in DAYS for verb in verbs}
    output = write_run(trained_store / "dated", {name: [text] for name, text in texts.items()}, keep_text=True)
    for name, text in texts.items():
        day, seen = name.split()[0], Seen(doc_id=name, tagger="tagger-x", generation=0)
        found = Mark(start=text.index(day), end=text.index(day) + len(day), type="DATE", text=day)
        append_to_log(log_path(output), [Correction.of(None, found, text=text, seen=seen, who="ada")])
    assert "DATE 24\n" in concord("corrections", "export", output, "--output", "corrected.conllu").stdout
    rehearsed = f"{{path: {CHECKOUT}/examples/train/train.conllu, lacks: [DATE]}}"
    settings = (f"data.train=[corrected.conllu, {rehearsed}]", f"data.dev={CHECKOUT}/examples/train/dev.conllu")
    rates = ("fit.epochs=12", "fit.batch_sentences=4", "fit.optimizers.tagger.learning_rate=0.003")
    chosen = [part for setting in (*settings, *rates, "start=models:/tiny@live") for part in ("--set", setting)]
    job = CHECKOUT / "conf/train/corrected.yaml"
    result = concord("train", job, "--profile", "one_stage", "-o", "runs/dates", *chosen, "--json")
    assert result.exit_code == 0, result.output
    assert "new types: DATE; data.labels.DATE=null leaves one out" in result.stderr
    assert "DATE: no entity of this type in train/dev.conllu" in result.stderr
    values = json.loads(result.stdout)
    assert (values["registered"], values["tagger"], values["best"]["epoch"]) == ("models:/tiny/2", "bilstm_crf", 12)
    before, tagger = (load_tagger(fetch(resolve(f"models:/tiny/{version}"))) for version in (1, 2))
    assert tagger.entity_types == (*sorted({"DATE", *before.entity_types}),)
    sentence = Sentence(words=("Zorba", "Quux", "slept", "on", "Sunday", "."))
    ((prediction,),) = tagger.predict_documents([[sentence]])
    assert prediction.labels[2:] == ("O", "O", "B-DATE", "O")
    provenance = read_provenance(Path(values["bundle"]))
    assert provenance is not None
    assert [teacher.digest for teacher in provenance.teachers] == [resolve("models:/tiny/1").digest]
    assert find_overlap(provenance, read_gold(CHECKOUT / "examples/train/train.conllu")).seen["train"] > 0


@pytest.mark.usefixtures("fake_fit")
@pytest.mark.parametrize("name", bundled_names())
def test_the_corpus_continues_every_bundled_tagger(output: Path, store: Path, name: str) -> None:
    correct(output, None, mark("Acme", "PRODUCT"))
    assert concord("corrections", "export", output, "--output", store / "corrected.conllu").exit_code == 0
    profile = "small" if load_tagger(find_tagger(name).folder).threshold is not None else "one_stage"
    kinds = [f"data.labels.{kind}=null" for kind in ("PER", "LOC", "ORG")] if name == "entities_bio" else []
    chosen = [part for setting in (f"start={name}", *kinds) for part in ("--set", setting)]
    job = (CHECKOUT / "conf/train/corrected.yaml").read_text()
    Path("job.yaml").write_text(job.replace("examples/", f"{CHECKOUT}/examples/"))
    values = concord_json("train", "job.yaml", "--profile", profile, "-o", "run", *chosen, "--no-tracking")
    assert "PRODUCT" in load_tagger(Path(values["bundle"])).entity_types
