"""The bundled taggers: what they find in the sample collection, and the files in their folders."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord_json

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import CALIBRATION_NAME
from concord.models.confidence import Calibration
from concord.models.labels import decode_spans
from concord.workflows.corpora import read_documents, read_provenance
from concord.workflows.registry import BUNDLED_FOLDER, bundled_names

EXAMPLES = CHECKOUT / "examples"
NEWS = EXAMPLES / "news" / "news.jsonl"


def texts_by_id() -> dict[str, str]:
    texts = {}
    for line in NEWS.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        texts[record["id"]] = record["text"]
    return texts


@pytest.mark.slow
def test_entities_multi_annotates_the_sample_collection(annotated_news: Path) -> None:
    output, values = annotated_news, json.loads((annotated_news.parent / "answer.json").read_bytes())
    assert values["tagger"]["name"] == "entities_multi"
    assert (values["read"], values["annotated"], values["dead_letters"]) == (14, 13, 1)
    concord_json("verify", output)
    entities = pq.read_table(output / "entities").to_pylist()
    texts = texts_by_id()
    assert all(texts[row["doc_id"]][row["start_char"] : row["end_char"]] == row["text"] for row in entities)
    found = {(row["text"], row["label"]) for row in entities}
    assert {("Paris", "LOC"), ("Washington", "LOC"), ("Baxter", "PER")} <= found
    tokens = pq.read_table(output / "tokens").to_pylist()
    threshold = load_tagger(BUNDLED_FOLDER / "entities_multi").threshold
    assert threshold is not None
    assert any(row["refined"] for row in tokens)
    assert any(row["ner"] != row["draft_ner"] for row in tokens)
    # Words next to an uncertain one change only if the repair of a malformed span removes or adds a label.
    assert all(row["refined"] == (row["uncertainty"] > threshold) for row in tokens)


@pytest.mark.slow(reason="annotates the sample collection by the default tagger")
def test_labels_of_both_stages_depend_on_no_shard(annotated_news: Path, tmp_path: Path) -> None:
    concord_json("annotate", NEWS, "-o", tmp_path, "-m", "entities_multi", "--set", "planning.shard_bytes=1024")
    assert len(list(tmp_path.rglob("*.parquet"))) > len(list(annotated_news.rglob("*.parquet")))
    keys = [(name, "ascending") for name in ("doc_id", "sent_id", "token_id")]
    whole, cut = (pq.read_table(folder / "tokens").sort_by(keys) for folder in (annotated_news, tmp_path))
    exact = ["doc_id", "text", "head", "deprel", "draft_ner", "ner", "refined"]
    assert whole.select(exact) == cut.select(exact)
    assert cut["uncertainty"].to_pylist() == pytest.approx(whole["uncertainty"].to_pylist(), rel=0, abs=2e-6)


@pytest.mark.slow
def test_entities_en_small_annotates_the_sample_collection_in_one_stage(tmp_path: Path) -> None:
    values = concord_json("annotate", NEWS, "-o", tmp_path / "out", "-m", "entities_en_small")
    assert (values["read"], values["annotated"], values["dead_letters"]) == (14, 13, 1)
    tokens = pq.read_table(tmp_path / "out" / "tokens", columns=["ner", "draft_ner", "refined"]).to_pylist()
    assert not any(row["refined"] or row["ner"] != row["draft_ner"] for row in tokens)


@pytest.mark.slow
def test_entities_bio_annotates_the_sample_abstracts(tmp_path: Path) -> None:
    concord_json("annotate", EXAMPLES / "abstracts", "-o", tmp_path / "out", "-m", "entities_bio")
    found = {(row["text"], row["label"]) for row in pq.read_table(tmp_path / "out" / "entities").to_pylist()}
    assert {("warfarin", "Chemical"), ("cisplatin", "Chemical"), ("nephrotoxicity", "Disease")} <= found


@pytest.mark.slow
def test_entities_multi_annotates_twelve_languages_with_its_own_parser(tmp_path: Path) -> None:
    source = EXAMPLES / "languages" / "languages.jsonl"
    assert concord_json("annotate", source, "-o", tmp_path / "out", "-m", "entities_multi")["annotated"] == 12
    concord_json("verify", tmp_path / "out")
    documents = pq.read_table(tmp_path / "out" / "documents").to_pylist()
    assert all(row["parser"].startswith("stanza/parser_multi@") for row in documents)
    assert [row["n_sentences"] for row in documents].count(10) >= 9
    tokens = pq.read_table(tmp_path / "out" / "tokens").to_pylist()
    assert all(row["head"] is not None and row["deprel"] and row["upos"] for row in tokens)
    texts = {row["id"]: row["text"] for row in map(json.loads, source.open())}
    found = pq.read_table(tmp_path / "out" / "entities").to_pylist()
    assert all(texts[row["doc_id"]][row["start_char"] : row["end_char"]] == row["text"] for row in found)
    gold = read_documents([str(EXAMPLES / "languages" / "gold.conllu")], labels={})
    for document in gold:
        names = {
            " ".join(one.words[span.start : span.end])
            for one in document.sentences
            for span in decode_spans(one.labels or (), "BIO")
        }
        told = {row["name"] for row in found if row["doc_id"] == document.name}
        assert len(names & told) >= len(names) / 2, (document.name, names - told)


@pytest.mark.parametrize("name", bundled_names())
def test_bundled_taggers_are_calibrated_on_documents_they_were_not_trained_on(name: str) -> None:
    calibration = Calibration.from_mapping(json.loads((BUNDLED_FOLDER / name / CALIBRATION_NAME).read_bytes()))
    provenance = read_provenance(BUNDLED_FOLDER / name)
    assert provenance is not None
    parts = {part.role: set(part.documents) for part in provenance.parts}
    assert {"train", "calibration"} <= set(parts)
    # One tweet stands in two parts of the Broad Twitter Corpus.
    assert len(parts["calibration"] & parts["train"]) <= 1
    errors = calibration.fitted["cross_validated"]["tokens"]
    assert errors["after"]["ece"] < errors["before"]["ece"]


def test_bundled_taggers_have_card_and_licence_and_stay_small() -> None:
    assert set(bundled_names()) == {"entities_bio", "entities_en_small", "entities_multi"}
    for name in bundled_names():
        licence = "Attribution 4.0" if name == "entities_bio" else "Attribution-ShareAlike 4.0"
        assert "Licence" in (BUNDLED_FOLDER / name / "README.md").read_text(encoding="utf-8")
        assert licence in (BUNDLED_FOLDER / name / "LICENSE.txt").read_text(encoding="utf-8")
    total = sum(path.stat().st_size for path in BUNDLED_FOLDER.rglob("*") if path.is_file())
    assert total < 144 * 1024**2
