"""Finds entity labels of a gold corpus that stand where no labels are read, and would be lost."""

import re
from collections.abc import Iterable

from concord.models.labels import OUTSIDE
from concord.pipeline.corpora.corpus_format import EMPTY, TAG_COLUMNS, FaultReporter, GoldFormat

NO_ENTITY = {"", OUTSIDE, EMPTY}
_LABEL = re.compile(r"(\S*:)?[BIESLUMW]-(?!(ADJP|ADVP|CONJP|INTJ|LST|NP|PP|PRT|SBAR|UCP|VP)$)\S+")  # no syntactic chunk
_NAME = re.compile(r"ner([-_]?tags?)?|ne|ent|(named[-_]?)?entit(y|ies)|names?", re.IGNORECASE)


def looks_like_label(name: str, value: str) -> bool:
    """Return whether the value of a column, or of a key of MISC, says that a word is in an entity."""
    return value not in NO_ENTITY and (_LABEL.fullmatch(value) or _NAME.fullmatch(name)) is not None


class LabelPlaces:
    """The columns and keys of a file in which all values look like labels."""

    def __init__(self, column: str, form: GoldFormat) -> None:
        """Take the name of the column or key where labels are read."""
        self._column = column
        self._form = form
        self._has_labels = False
        self._lines: dict[str, int] = {}
        self._others: set[str] = set()

    def add(self, line: int, label: str, values: Iterable[tuple[str, str]]) -> None:
        """Add the label of a word, and its other values with the names of their columns or keys."""
        is_entity = label not in NO_ENTITY
        self._has_labels = self._has_labels or is_entity
        for name, value in values:
            if value not in NO_ENTITY and name not in self._others:
                self._lines.setdefault(name, line)
                # A word with two labels has two layers of them, of which one is meant.
                if is_entity or not looks_like_label(name, value):
                    self._others.add(name)

    def report(self, report: FaultReporter) -> None:
        """Report labels that would be lost, unless a person has chosen the column and it has some."""
        strays = [
            name for name in self._lines if name not in self._others and (not self._has_labels or _NAME.fullmatch(name))
        ]
        is_chosen = self._has_labels and self._form.label_column is not None
        if not strays or is_chosen or not self._form.read_scheme.has_entities:
            return
        found = f"{' and '.join(map(_shown, strays))} {'looks' if len(strays) == 1 else 'look'} like labels"
        if self._has_labels:
            message = f"{found}, as does {_shown(self._column)}: write all in one place, or choose by --label-column"
        else:
            name = strays[0]
            option = f"--label-column {name} (train: --set data.label_column={name})"
            remedy = "write them there" if name in ("", *TAG_COLUMNS) else option
            message = f"no word has an entity in {_shown(self._column)}; {found}: {remedy}"
        report(self._lines[strays[0]], message)


def _shown(name: str) -> str:
    if name.isdigit():
        return f"column {name}"
    return name if name in TAG_COLUMNS or " " in name else f"{name}=" if name else "MISC without a key"
