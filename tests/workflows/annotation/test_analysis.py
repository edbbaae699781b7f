"""The questions of docs/analysis.md: DuckDB and pandas agree, and the page prints their answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.pages import IS_PRINTED_HERE, blocks_of, run_steps, steps_of

PAGE = (CHECKOUT / "docs" / "analysis.md").read_text(encoding="utf-8")
QUESTIONS = 10
ROUNDING = 0.011
"""Figures are printed with two digits, and the last one may differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answers to one question of the page."""

    title: str
    by_sql: pd.DataFrame
    by_pandas: pd.DataFrame
    printed: str


def answers() -> Iterator[Answer]:
    """Run the code of the page from the top, in the current folder."""
    head, *questions, _ = PAGE.split("\n## ")[1:]
    (setting_up,) = code(head, "python")
    session: dict[str, Any] = {}
    exec(setting_up, session)
    for question in questions:
        (sql,), (python,), (printed,) = (code(question, language) for language in ("sql", "python", "text"))
        exec(python, session)
        yield Answer(
            title=question.partition("\n")[0],
            by_sql=duckdb.sql(sql).df(),
            by_pandas=session["answer"].reset_index(drop=True),
            printed=printed,
        )


def code(section: str, language: str) -> list[str]:
    return [block.text for block in blocks_of(section) if block.language == language]


def same(cells: Sequence[object], others: Sequence[object]) -> bool:
    return len(cells) == len(others) and all(map(same_cell, cells, others))


def same_cell(cell: object, other: object) -> bool:
    try:
        return abs(float(str(cell)) - float(str(other))) < ROUNDING
    except ValueError:
        return cell == other


def assert_printed(answer: pd.DataFrame, printed: str) -> None:
    if IS_PRINTED_HERE:
        assert same(answer.to_string(index=False).split(), printed.split()), f"{printed}\n{answer}"
    assert list(answer.columns) == printed.partition("\n")[0].split()


def test_the_page_asks_ten_questions_each_answered_twice() -> None:
    *questions, delta = PAGE.split("\n## ")[2:]
    assert [section.partition(".")[0] for section in questions] == [str(number) for number in range(1, QUESTIONS + 1)]
    assert delta.startswith("Versions in Delta Lake\n")
    languages = [block.language for block in blocks_of(PAGE)]
    assert languages == ["console", "python", *["sql", "python", "text"] * QUESTIONS, "python", "text"]


@pytest.mark.slow(reason="annotates the sample collection, as the page does")
def test_the_page_prints_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_steps(steps_of(PAGE), tmp_path)
    monkeypatch.chdir(tmp_path)
    for answer in answers():
        assert same(answer.by_sql.to_string().split(), answer.by_pandas.to_string().split()), answer.title
        assert_printed(answer.by_sql, answer.printed)
    (python,), (text,) = (code(PAGE.split("\n## ")[-1], language) for language in ("python", "text"))
    session: dict[str, Any] = {"duckdb": duckdb}
    exec(python, session)
    assert_printed(session["answer"], text)
