"""A type that no tagger knows, on its whole way: named in a collection, learned, compared, promoted, and found."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import Result
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord
from concord_testing.encoders import write_encoder

from concord.models.bundles.checkpoint import load_tagger
from concord.workflows.registry.resolve_tagger import bundled_names, find_tagger
from concord.workflows.view.correcting.correction_log import Change, CorrectionLog
from concord.workflows.view.index.opened import OpenedCollection

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

DEV = CHECKOUT / "examples/train/dev.conllu"
PRODUCTS = ("Fizzbox", "Zapmill", "Glowpen", "Mopbot", "Tunejar", "Hushfan")
UNSEEN = ("Somebody bought a {} .", "The {} broke .", "A {} costs too much .", "Nobody likes the {} here .")
TEXTS = ("Somebody sold a {} .", "The {} works .", "A {} fell down .", "Nobody wants the {} now .")
FORCED = ("--force", "--reason", "a test of the way")
REPRESENTATION = {"word_dimension": 16, "characters": None, "dropout": 0.1}


def done(*arguments: object, exit_code: int = 0) -> Result:
    result = concord(*arguments)
    assert result.exit_code == exit_code, result.output
    return result


def answer(*arguments: object) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(done(*arguments, "--json").stdout)
    return values


@pytest.fixture
def documents(store: Path) -> Path:
    """Return texts about products, beside a new registry."""
    path = store / "documents.jsonl"
    texts = [{"id": f"{product}{number}", "text": text.format(product)}
             for product in PRODUCTS for number, text in enumerate(TEXTS)]  # fmt: skip
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return path


@pytest.fixture
def gold(store: Path) -> Path:
    """Return a corpus of other texts about products."""
    lines = []
    for product in PRODUCTS:
        for text in UNSEEN:
            words = text.format(product).split()
            lines += [*(f"{word}\t{'B-PRODUCT' if word == product else 'O'}" for word in words), ""]
    path = store / "gold.conll"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def gate(store: Path, gold: Path) -> Path:
    """Return a gate that asks for a gain beyond chance."""
    path = store / "gate.yaml"
    path.write_text(yaml.safe_dump({"data": [str(gold)], "min_f1": 0, "throughput_ratio": 0, "rounds": 200,
                                    "unknown_provenance": "allow"}))  # fmt: skip
    return path


def mark_products(output: Path) -> None:
    """Name every product as the page of a document does."""
    opened = OpenedCollection(output, cache=output.parent / "cache")
    opened.wait()
    found = pq.read_table(output / "documents", columns=["doc_id"])["doc_id"].to_pylist()
    texts = {row["id"]: row["text"] for row in map(json.loads, (output.parent / "documents.jsonl").open())}
    matches = ((doc_id, re.search("|".join(PRODUCTS), texts[doc_id])) for doc_id in found)
    changes = [Change(doc_id, *match.span(), "PRODUCT") for doc_id, match in matches if match is not None]
    CorrectionLog(opened, "ada").correct(changes, seen=0, generation=0)


def entities(output: Path) -> list[str]:
    """Return the types that the tagger, not a person, found in a collection."""
    table = pq.read_table(output / "entities", columns=["label", "source"])
    return [label for label, source in zip(*map(list, table.to_pydict().values()), strict=True) if source == "model"]


TAGGERS: dict[str, dict[str, Any]] = {
    "bilstm_crf": {"representation": REPRESENTATION, "lstm": {"hidden": 16, "layers": 1}},
    "doc_uanet": {
        "draft_representation": REPRESENTATION,
        "refine_representation": REPRESENTATION,
        "lstm": {"hidden": 16},
        "samples": 2,
        "label_dimension": 6,
        "two_stream": {"heads": 2, "head_dimension": 8, "layers": 1},
    },
}


def train_first(store: Path, name: str, model: dict[str, Any]) -> None:
    """Register a small tagger that knows no product."""
    fit: dict[str, Any] = {"epochs": 8, "batch_sentences": 4}
    groups = ("tagger",) if name == "bilstm_crf" else ("stage_one", "stage_two")
    fit["optimizers"] = {group: {"learning_rate": 1e-2} for group in groups}
    train = str(CHECKOUT / "examples/train/train.conllu")
    job = {"tagger": name, "data": {"train": [train], "dev": str(DEV)}, "register_as": "names",
           "profiles": {"small": {"model": model, "fit": fit}}}  # fmt: skip
    (store / "job.yaml").write_text(yaml.safe_dump(job))
    done("train", store / "job.yaml", "--force")


def go_all_the_way(documents: Path, gold: Path, gate: Path, *, forced: Sequence[str] = ()) -> dict[str, Any]:
    """Take a new type from the page to the next run; return what was learned."""
    output = documents.parent / "out"
    done("promote", "names", 1, "--gate", gate)
    done("annotate", documents, "-o", output, "-m", "models:/names@champion", "--set", "output.keep_text=true")
    mark_products(output)
    learned = answer("learn", output, "--model", "models:/names@champion", "--test", gold, "--set", "fit.epochs=12")
    assert learned["further_types"] == ["PRODUCT"]
    assert (learned["registered"], learned["comparison"]["left_out"]) == ("models:/names/2", [])
    overall = learned["comparison"]["lines"][0]
    assert overall["first"] == 0
    again = answer("compare", "models:/names/1", "models:/names/2", "--data", gold)
    assert again["lines"] == learned["comparison"]["lines"]
    assert answer("promote", "names", 2, "--gate", gate, *forced)["champion"] == 2
    done("annotate", documents, "-o", documents.parent / "next", "-m", "models:/names@champion")
    return learned | {"gain": overall["second"]}


def test_a_new_type_goes_all_the_way(documents: Path, gold: Path, gate: Path) -> None:
    train_first(documents.parent, "bilstm_crf", TAGGERS["bilstm_crf"])
    learned = go_all_the_way(documents, gold, gate)
    assert learned["gain"] > 50
    assert "PRODUCT" in entities(documents.parent / "next")
    # A corpus without the type cannot show whether it is found.
    shown = done("compare", "models:/names/1", "models:/names/2", "--data", DEV)
    assert "\nwithout PRODUCT, which only B knows: the corpora have no entity of it\n" in shown.stdout
    assert "PRODUCT" not in shown.stderr
    assert not re.search("^PRODUCT ", shown.stdout, re.MULTILINE)
    back = concord("compare", "models:/names/2", "models:/names/1", "--data", DEV)
    assert (back.exit_code, "expected the same types on both sides, or more of them in B" in back.stderr) == (2, True)


@pytest.mark.encoder
def test_a_tagger_with_form_vectors_learns_a_new_type(documents: Path, gold: Path, gate: Path) -> None:
    folder = documents.parent / "encoder"
    folder.mkdir()
    pieces = "abcdefghijklmnopqrstuvwxyz"
    encoder = write_encoder(folder, [*pieces, *(f"##{piece}" for piece in pieces), "."])
    read = {"source": str(encoder), "sha256": None, "last_layers": 2}
    vectors = {"encoder": read, "dimension": 4, "table_forms": 9}
    model = {**TAGGERS["bilstm_crf"], "representation": {**REPRESENTATION, "form_vectors": vectors}}
    train_first(documents.parent, "bilstm_crf", model)
    assert go_all_the_way(documents, gold, gate)["gain"] > 50
    old, new = (load_tagger(find_tagger(f"models:/names/{version}").folder).state_dict() for version in (1, 2))
    assert old["representation.form_vectors.table"].equal(new["representation.form_vectors.table"])


def test_a_tagger_of_two_stages_learns_a_new_type(documents: Path, gold: Path, gate: Path) -> None:
    train_first(documents.parent, "doc_uanet", TAGGERS["doc_uanet"])
    go_all_the_way(documents, gold, gate, forced=FORCED)
    assert "PRODUCT" in load_tagger(find_tagger("models:/names@champion").folder).entity_types


@pytest.mark.parametrize("name", bundled_names())
def test_bundled_taggers_learn_a_new_type(documents: Path, gold: Path, gate: Path, name: str) -> None:
    output = documents.parent / "out"
    done("annotate", documents, "-o", output, "-m", name, "--set", "output.keep_text=true")
    mark_products(output)
    # Few epochs at a low rate find no product yet.
    data = ("--no-rehearsal", "--dev", gold, "--test", gold, "--set", "fit.epochs=1", "--force")
    learned = answer("learn", output, "--model", name, *data)
    assert learned["registered"] == f"models:/{name}/1"
    assert "PRODUCT" in load_tagger(Path(learned["bundle"])).entity_types
    assert (learned["comparison"]["left_out"], learned["comparison"]["lines"][0]["first"]) == ([], 0)
    done("promote", name, 1, "--gate", gate, *FORCED)
    done("annotate", documents, "-o", documents.parent / "next", "-m", f"models:/{name}@champion")


def test_a_corpus_that_cannot_be_compared_on_is_found_before_the_training(documents: Path, store: Path) -> None:
    train_first(documents.parent, "bilstm_crf", TAGGERS["bilstm_crf"])
    output = store / "out"
    done("annotate", documents, "-o", output, "-m", "models:/names/1", "--set", "output.keep_text=true")
    mark_products(output)
    empty = store / "empty.conll"
    empty.write_text("Nobody\tO\nslept\tO\n\n")
    refused = concord("learn", output, "--model", "models:/names/1", "--test", empty, "-o", store / "learned")
    assert "expected a corpus with entities, got none" in refused.stderr
    assert not (store / "learned" / "bundle").exists()
