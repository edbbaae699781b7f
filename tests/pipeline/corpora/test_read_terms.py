"""Files of terms, and where one is at fault."""

from pathlib import Path

import pytest

from concord.models.data.sentence import Sentence
from concord.models.labels import Span
from concord.pipeline.corpora.read_terms import read_terms
from concord.pipeline.errors import InputError


def test_a_list_has_one_term_a_line(tmp_path: Path) -> None:
    path = tmp_path / "terms.jsonl"
    dose = '{"label": "DOSE", "pattern": "mg", "phrase_matcher_attr": "LOWER"}'
    path.write_text(f'{{"label": "DRUG", "pattern": "aspirin"}}\n\n{dose}\n')
    terms = read_terms(path)
    assert terms.spans(Sentence(words=("aspirin", "MG"))) == (Span(0, 1, "DRUG"), Span(1, 2, "DOSE"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("aspirin", "terms.jsonl:2: expected a JSON object, got 'aspirin'"),
        ('["aspirin"]', r"terms.jsonl:2: input should be an object, got \['aspirin'\]"),
        ('{"label": "DRUG"}', "terms.jsonl:2: pattern: expected a value, got none"),
        (
            '{"label": "DRUG", "pattern": [{"LOWER": "mg"}]}',
            "pattern: input should be a valid string, got",
        ),
    ],
)
def test_a_fault_is_reported_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "terms.jsonl"
    path.write_text(f'{{"label": "DRUG", "pattern": "aspirin"}}\n{line}\n')
    with pytest.raises(InputError, match=message):
        read_terms(path)


def test_a_list_without_terms_or_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "terms.jsonl"
    with pytest.raises(InputError, match="found no such file"):
        read_terms(path)
    path.write_text("\n")
    with pytest.raises(InputError, match="expected one term or more"):
        read_terms(path)
