"""A collection of malformed and unusual input, through the real parser and a real tagger."""

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from concord_testing.command_line import concord, concord_json

pytestmark = pytest.mark.slow(reason="annotates a folder of broken files by a bundled tagger")

SENTENCE = "Maria Keller met the board of Tarn Logistics in Lisbon on Monday. "
GOOD = {
    "bom": "\ufeffMaria Keller lives in Lisbon.",
    "joiners": "Maria\u200d Kel\u200bler \u2060lives in\u200c Lisbon.\u00ad",
    "emoji": "Maria \U0001f469\u200d\U0001f467 \U0001f1f5\U0001f1f9 went \U0001f600 to Lisbon \u2764\ufe0f.",
    "nfd": "Jose\u0301 Mun\u0303oz ate a cre\u0300me bru\u0302le\u0301e in Malmo\u0308.",
    "crlf": "Maria Keller.\r\nLisbon.\r\n\r\nTarn Logistics\r.",
    "controls": "Maria\x00 Keller\x07 went\x1b to Lisbon\x7f.\u2028Next\x85line\x0b.",
    "empty": "",
    "blank": " \n\t\u00a0\u3000\r\n ",
    "one_word": "Lisbon",
    "endless_word": "x" * 20_000,
    "endless_sentence": "and ".join(f"word{number % 97} " for number in range(500)) + "Lisbon",
}
LARGE = ("Lisbon" + " \t" * 20) * 200 + "\n\nMaria " + "x" * 4_000 + ".\n\n"
"""A document of many paragraphs has it 25 times."""


def poison_lines() -> list[bytes]:
    lines = [json.dumps({"id": name, "text": text}).encode() for name, text in GOOD.items()]
    lines += [
        b'{"id": "bad_utf8", "text": "caf\xe9"}',
        b'{"id": "surrogate", "text": "\\ud800 alone"}',
        b'{"id": "one_word", "text": "the same id again"}',
        b'{"id": "malformed", "text": ',
        b'["no", "object"]',
        b'{"id": "no_text"}',
        b'{"id": "number", "text": 7}',
        b'{"id": "cut", "text": "the end of the file co',
    ]
    return lines


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    """Annotate the collection; return the answer of the command and the output folder."""
    folder = tmp_path_factory.mktemp("poison")
    source, output = folder / "in", folder / "out"
    source.mkdir()
    (source / "poison.jsonl").write_bytes(b"\n".join(poison_lines()))
    (source / "latin.txt").write_bytes("Caf\u00e9 Lisboa".encode("latin-1"))
    (source / "void.txt").write_bytes(b"")
    (source / "large.txt").write_text(LARGE * 25, encoding="utf-8", newline="")
    # Cuts in a stream that does not compress well leave some whole records before the cut.
    rows = "".join(json.dumps({"id": f"z{n}", "text": SENTENCE + str(n**9)}) + "\n" for n in range(200))
    packed = gzip.compress(rows.encode(), mtime=0)
    (source / "cut.jsonl.gz").write_bytes(packed[: len(packed) * 2 // 3])
    arguments = ("annotate", source, "-o", output, "--model", "entities_en_small", "--set", "max_dead_letters=0.5")
    # What follows the cut of a file is lost.
    return concord_json(*arguments, exit_code=3), output


def test_the_equation_holds_over_poison(outcome: tuple[dict[str, object], Path]) -> None:
    values, output = outcome
    documents = pq.read_table(output / "documents", columns=["doc_id"]).num_rows
    dead_letters = pq.read_table(output / "errors").num_rows
    assert values["annotated"] == documents
    assert values["dead_letters"] == dead_letters
    assert values["read"] == documents + dead_letters
    assert concord("verify", output).exit_code == 0


def test_every_dead_letter_names_place_and_reason(outcome: tuple[dict[str, object], Path]) -> None:
    dead_letters = pq.read_table(outcome[1] / "errors").to_pylist()
    lines = poison_lines()
    starts = {sum(len(line) + 1 for line in lines[:number]): number for number in range(len(lines))}
    reasons = {
        starts[dead_letter["position"]]: dead_letter["error"]
        for dead_letter in dead_letters
        if dead_letter["source_uri"].endswith("poison.jsonl")
    }
    assert [reasons[number] for number in range(len(GOOD), len(lines))] == [
        "invalid_utf8",
        "lone_surrogate",
        "duplicate_id",
        "invalid_json",
        "not_an_object",
        "missing_text",
        "text_not_string",
        "invalid_json",
    ]
    others = {Path(dead_letter["source_uri"]).name: dead_letter["error"] for dead_letter in dead_letters}
    assert others["latin.txt"] == "invalid_utf8"
    assert others["cut.jsonl.gz"] == "truncated_stream"
    assert all(dead_letter["message"] and dead_letter["stage"] == "read" for dead_letter in dead_letters)


def test_unusual_texts_are_annotated_completely(outcome: tuple[dict[str, object], Path]) -> None:
    tokens = pq.read_table(outcome[1] / "tokens").to_pylist()
    for name, text in GOOD.items():
        rows = [row for row in tokens if row["doc_id"] == name]
        covered = {place for row in rows for place in range(row["start_char"], row["end_char"])}
        assert covered >= {place for place, character in enumerate(text) if not character.isspace()}, name
        assert all(text[row["start_char"] : row["end_char"]] == row["text"] for row in rows), name
    [large] = [id_ for id_ in {row["doc_id"] for row in tokens} if id_.endswith("large.txt")]
    covered_characters = sum(row["end_char"] - row["start_char"] for row in tokens if row["doc_id"] == large)
    assert covered_characters == 25 * sum(not character.isspace() for character in LARGE)
    sentences = pq.read_table(outcome[1] / "sentences").to_pylist()
    endless = [row for row in sentences if row["doc_id"] == "endless_sentence"]
    assert sum(row["n_tokens"] for row in endless) >= 1_000
    assert max(row["n_tokens"] for row in endless) <= 200
    assert any(row["continues"] for row in endless)
