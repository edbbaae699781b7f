"""Checking gold corpora: counts, faults, and when nothing is written."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord, concord_json

from concord.pipeline.corpora.gold_corpus import read_gold

EXAMPLES = CHECKOUT / "examples/train"

TRAIN = """\
-DOCSTART- -X- O

Ada NNP I-PER
King NNP I-PER
met VBD O
Bo NNP I-PER
Tarn NNP I-PER

ADA NNP I-PER
King NNP I-PER
slept VBD O

-DOCSTART- -X- O

Oslo NNP I-LOC
"""
DEV = """\
Yes UH O

Oslo NNP I-LOC

Rome NNP I-LOC
Turin NNP B-LOC
"""

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a file and returns its path."""

    def make(name: str, text: str) -> Path:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return make


def test_splits_are_counted_and_written_in_bio2(write: Write, tmp_path: Path) -> None:
    # The training corpus is recognised by its name, in any position.
    inputs = (write("eng.dev", DEV), write("eng.train", TRAIN))
    values = concord_json("prepare", *inputs, "--format", "conll", "-o", tmp_path / "out")
    train, dev = values["splits"]
    assert train == {
        "name": "eng.train",
        "files": [str(inputs[1])],
        "label_scheme": "IOB1",
        "documents": 2,
        "sentences": 3,
        "words": 9,
        "labels": {"PER": 3, "LOC": 1},
    }
    assert (dev["documents"], dev["labels"]) == (None, {"LOC": 3})
    assert values["written"] == [str(tmp_path / "out" / name) for name in ("eng.train.conll", "eng.dev.conll")]
    assert read_gold(tmp_path / "out/eng.train.conll")[0][0].labels == ("B-PER", "I-PER", "O", "B-PER", "I-PER")
    assert [document[0].labels for document in read_gold(tmp_path / "out/eng.dev.conll")][2] == ("B-LOC", "B-LOC")


def test_text_shows_the_numbers(write: Write) -> None:
    result = concord("prepare", write("train.conll", TRAIN), write("dev.conll", DEV))
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line}
    assert rows["train"] == ["IOB1", "2", "3", "9", "4"]
    assert rows["dev"] == ["IOB1", "-", "3", "4", "3"]
    assert rows["LOC"] == ["1", "3"]
    assert "no fault" in result.stdout
    assert "written" not in result.stdout


def test_nothing_is_written_when_a_fault_is_left(write: Write, tmp_path: Path) -> None:
    train, dev = write("train.conll", "Ada\tB-PER\n"), write("dev.conll", "a\tO\nAda\tI-PER\nKing\tB-PER\n\nno\n")
    result = concord("prepare", train, dev, "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert f"{dev}:2: 'I-PER' cannot follow O" in result.stdout
    assert f"{dev}:5: expected a word in column 1 and a label" in result.stdout
    assert "--fix repairs 1 of them, as the arrow says; nothing was written" in result.stdout
    values = concord_json("prepare", train, dev, "--output", tmp_path / "out", "--fix", exit_code=1)
    assert [(fault["line"], fault["repaired"]) for fault in values["faults"]] == [(2, "B-PER"), (5, None)]
    assert (values["faults_left"], values["written"]) == (1, [])
    assert not (tmp_path / "out").exists()


def test_fix_repairs_unambiguous_faults(write: Write, tmp_path: Path) -> None:
    tree = "1\tAda\t_\tX\t_\t_\t{}\tdep\t_\tNER=B-PER\n2\tKing\t_\tX\t_\t_\t{}\tdep\t_\tNER=I-LOC\n\n"
    path = write("a.conllu", "# newdoc id = x\n" + tree.format(2, 1) + tree.format(0, 1).replace("I-LOC", "I-PER"))
    result = concord("prepare", path, "--output", tmp_path / "out", "--fix")
    assert result.exit_code == 0, result.output
    assert "2 faults repaired, 0 left" in result.stdout
    ((without, sound),) = read_gold(tmp_path / "out/a.conllu")
    assert (without.labels, without.heads) == (("B-PER", "B-LOC"), None)
    assert (sound.labels, sound.heads) == (("B-PER", "I-PER"), (0, 1))


def test_folder_of_corpus_files_is_one_corpus(write: Write, tmp_path: Path) -> None:
    row = "wb/x\t0\t{}\t{}\tNNP\t*\t-\t-\t-\t-\t{}\t-\n"
    for name, word in (("b/y.v4_gold_conll", "Oslo"), ("a/x.v4_gold_conll", "Rome")):
        write(name, f"#begin document (wb/{name}); part 000\n{row.format(0, word, '(GPE)')}\n#end document\n")
    write("a/x.parse", "(TOP (NP (NNP Rome)))\n")
    (split,) = concord_json("prepare", tmp_path / "in", "-o", tmp_path / "out")["splits"]
    assert (split["name"], split["documents"], split["labels"]) == ("in", 2, {"GPE": 2})
    assert [document[0].words for document in read_gold(tmp_path / "out/in.conllu")] == [("Rome",), ("Oslo",)]


def test_token_labels_are_counted_and_kept(tmp_path: Path) -> None:
    inputs = [EXAMPLES / "train.conllu", EXAMPLES / "dev.conllu"]
    train, dev = concord_json("prepare", *inputs, "--label-column", "upos", "-o", tmp_path)["splits"]
    assert train["labels"]["PROPN"] > 10
    assert sum(dev["labels"].values()) == dev["words"] > 0
    assert "PROPN" in concord("prepare", *inputs, "--label-column", "upos").stdout
    again = concord("prepare", tmp_path / "train.conllu", "--label-column", "upos", "--json")
    assert json.loads(again.stdout)["splits"][0]["labels"] == train["labels"]


def test_parser_of_trees_stays_recorded(write: Write, tmp_path: Path) -> None:
    path = write("a.conllu", "# concord.parser = p@1\n# concord.source = ab\n1\tHi\t_\tX\t_\t_\t0\troot\t_\t_\n")
    assert concord("prepare", path, "-o", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out/a.conllu").read_text().startswith("# concord.parser = p@1\n# concord.source = ab\n")


@pytest.mark.parametrize(
    ("names", "options", "code", "message"),
    [
        (["a.conll"], ["-o", "in"], 2, "is one of the inputs; choose another folder"),
        (["x/a.conll", "y/x/a.conll"], ["-o", "out"], 2, "two corpora would be written to"),
        (["a.txt"], [], 2, "for another name set the format (train: --set data.format, prepare: --format)"),
        (["a.conll"], ["--label-column", "upos"], 2, "expected the number of a column"),
        (["empty.conll"], [], 2, "expected a gold corpus with one sentence or more, got none"),
        (["folder"], [], 2, "expected files named .conllu, .conll, gold_conll in the folder, got none"),
    ],
)
def test_prepare_names_invalid_inputs_and_outputs(
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    options: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in/folder").mkdir(parents=True)
    for name in names:
        if name != "folder":
            write(name, "" if name == "empty.conll" else "Ada\tB-PER\n")
    result = concord("prepare", *(tmp_path / "in" / name for name in names), *options)
    assert (result.exit_code, message in result.stderr) == (code, True), result.output


def test_splits_with_the_same_file_name_are_named_by_their_folders(write: Write) -> None:
    result = concord("prepare", write("news/a.conll", "Ada\tB-PER\n"), write("web/a.conll", "Bo\tB-PER\n"), "--json")
    assert [split["name"] for split in json.loads(result.stdout)["splits"]] == ["news-a", "web-a"]


def test_output_dash_only_checks(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = concord("prepare", write("a.conll", "Ada\tB-PER\n"), "--output", "-", "--json")
    assert (result.exit_code, json.loads(result.stdout)["written"]) == (0, [])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_labels_that_would_be_lost_are_a_fault_with_its_remedy(write: Write, tmp_path: Path) -> None:
    row = "{}\tAda\t_\tX\t_\t_\t_\t_\t_\t{}\n"
    other = write("other.conllu", row.format(1, "ner=S-PER") + row.format(2, "name=B-PER"))
    result = concord("prepare", other, "-o", tmp_path / "out", "--json")
    assert (result.exit_code, json.loads(result.stdout)["written"]) == (1, [])
    [fault] = json.loads(result.stdout)["faults"]
    assert (fault["line"], fault["repaired"]) == (1, None)
    assert "ner= and name= look like labels: --label-column ner" in fault["message"]
    assert concord("prepare", other, "--label-column", "ner").exit_code == 0
    spread = write("range.conllu", row.format("1-2", "NER=B-LOC") + row.format(1, "_") + row.format(2, "_"))
    result = concord("prepare", spread)
    assert result.exit_code == 1
    assert f"{spread}:1: the range 1-2 has the label B-LOC, which would be lost" in result.stdout
