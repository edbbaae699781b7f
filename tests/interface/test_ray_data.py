"""Annotation as an operator of Ray Data."""

import pyarrow as pa
import pytest
from concord_testing.processes import policy_at_import_of_torch

import concord

TEXTS = ["Ada met Charles in London.", "", "He left Paris for Boston."]


@pytest.mark.slow
def test_an_actor_prepares_its_process_before_torch_is_loaded() -> None:
    code = "import concord.ray_data; concord.ray_data.Annotator('entities_en_small')"
    assert policy_at_import_of_torch(code) == "PASSIVE"


def test_an_unknown_table_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match="expected sentences, tokens or entities, got 'documents'"):
        concord.Annotator(tables=["documents"])  # type: ignore[list-item]


@pytest.mark.slow
def test_every_row_comes_out_with_its_annotations_or_a_reason() -> None:
    annotator = concord.Annotator("entities_en_small", text_column="body", tables=("entities", "tokens"))
    batch = pa.table({"body": [TEXTS[0], None, TEXTS[1], TEXTS[2]], "page": [1, 2, 3, 4]})
    rows = annotator(batch).to_pylist()
    assert [row["page"] for row in rows] == [1, 2, 3, 4]
    nlp = concord.load("entities_en_small")
    for row, text in zip(rows, batch["body"].to_pylist(), strict=True):
        expected = [] if text is None else [entity.text for entity in nlp(text).entities]
        assert [entity["text"] for entity in row["entities"]] == expected
        assert [token["text"] for token in row["tokens"]] == (
            [] if text is None else [token.text for token in nlp(text).tokens]
        )
    assert [row["annotation_error"] for row in rows] == [None, "text 1: expected a string, got NoneType", None, None]
    with pytest.raises(KeyError, match="expected a column 'body', got text"):
        annotator(pa.table({"text": TEXTS}))
    with pytest.raises(ValueError, match="expected no column 'tokens'"):
        annotator(pa.table({"body": TEXTS, "tokens": [1, 2, 3]}))
