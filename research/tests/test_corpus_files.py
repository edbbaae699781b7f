"""The files of a corpus: parsed, in halves, or as they are."""

from pathlib import Path

import pytest

from concord.pipeline.corpora.gold_corpus import read_corpus
from concord.workflows import prepare
from research.grid.config import CorpusConfig, GridConfig, RowConfig, Run
from research.grid.corpus_files import corpus_folder, split_file
from research.grid.train_run import job_of
from research.tests.grids import small_grid


def grid_with(**values: object) -> GridConfig:
    corpora = {**small_grid().corpora, "tiny": CorpusConfig.from_mapping({"folder": "tiny", **values})}
    return small_grid().model_copy(update={"corpora": corpora})


def job_files(grid: GridConfig, place: Path) -> list[str]:
    job = job_of(Run(corpus="tiny", profile="small", row=RowConfig(tagger="bilstm_crf"), seed=1), grid, place)
    return [*job.data.paths("train"), *job.data.paths("dev")]


def test_corpus_with_trees_of_the_parser_is_found_beside_its_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    (data / "tiny").mkdir(parents=True)
    for split in ("train", "dev"):
        (data / "tiny" / f"{split}.conllu").touch()
    monkeypatch.setattr(prepare, "parse_command", lambda job: Path(job.output).touch())
    grid = grid_with(trees="parser")
    place = corpus_folder("tiny", grid, data, tmp_path / "work")
    folder = place / "tiny"
    assert job_files(grid, place) == [str(folder / "train.conllu.zst"), str(folder / "dev.conllu.zst")]


def test_dev_set_in_halves_has_every_document_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "tiny").mkdir(parents=True)
    texts = [f"-DOCSTART-\td{number}\n\nAda\tB-PER\nsat\tO\n\nin\tO\nRome{number}\tB-LOC\n\n" for number in range(5)]
    (data / "tiny/dev.conll").write_text("".join(texts))
    (data / "tiny/train.conll").write_text(texts[0])
    grid = grid_with(halves=True)
    place = corpus_folder("tiny", grid, data, tmp_path / "work")
    folder = place / "tiny"
    halves = [read_corpus(split_file(folder, split)).documents for split in ("dev", "test")]
    assert [[document.name for document in half] for half in halves] == [["d0", "d2", "d4"], ["d1", "d3"]]
    whole = read_corpus(data / "tiny/dev.conll").documents
    assert [(one.name, one.sentences) for half in halves for one in half] == [
        (one.name, one.sentences) for one in (*whole[::2], *whole[1::2])
    ]
    assert (folder / "train.conll").read_text() == texts[0]
    assert job_files(grid, place) == [str(folder / "train.conll"), str(folder / "dev.conll")]
    assert corpus_folder("tiny", grid, data, tmp_path / "work") == place

    # A run that reads the training set meanwhile goes on reading what it opened.
    with (folder / "train.conll").open() as opened:
        (data / "tiny/train.conll").write_text(texts[1])
        corpus_folder("tiny", grid, data, tmp_path / "work")
        assert opened.read() == texts[0]
    assert (folder / "train.conll").read_text() == texts[1]
    assert sorted(path.name for path in folder.iterdir()) == ["dev.conll", "test.conll", "train.conll"]
    written = (folder / "train.conll").stat().st_ino
    corpus_folder("tiny", grid, data, tmp_path / "work")
    assert (folder / "train.conll").stat().st_ino == written


def test_corpus_that_asks_for_nothing_is_read_where_it_is(tmp_path: Path) -> None:
    assert corpus_folder("tiny", grid_with(), tmp_path, tmp_path / "work") == tmp_path
