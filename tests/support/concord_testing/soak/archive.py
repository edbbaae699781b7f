"""A folder of input files whose content is known, to be edited between runs."""

import csv
import html
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from concord_testing.soak.schedule import Edit


class Archive:
    """JSON Lines, CSV, HTML and text files whose content is known."""

    def __init__(self, folder: Path, documents: Sequence[tuple[str, str]], *, files: int = 6) -> None:
        """Spread documents over files: every seventh is a text file, every eleventh a page, every fifth in a table.

        Every JSON Lines file has one broken line.
        """
        self.folder = folder
        self._files: dict[str, dict[str, str | None]] = {}
        for number, (doc_id, text) in enumerate(documents):
            if number % 7 == 0:
                self._files[f"{number:04d}.txt"] = {f"{number:04d}.txt": text}
            elif number % 11 == 0:
                self._files[f"{number:04d}.html"] = {f"{number:04d}.html": text}
            elif number % 5 == 0:
                self._files.setdefault("table.csv", {})[doc_id] = text
            else:
                self._files.setdefault(f"lines{number % files}.jsonl", {})[doc_id] = text
        for name, records in self._files.items():
            if name.endswith(".jsonl"):
                records[f"torn {name}"] = None

    @property
    def ids(self) -> list[str]:
        """The ids of all documents, in order."""
        return sorted(doc_id for _, doc_id, text in self._records() if text is not None)

    @property
    def broken_records(self) -> int:
        """How many records become dead letters."""
        return sum(text is None for _, _, text in self._records())

    def write(self) -> None:
        """Make the folder hold exactly these files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        contents = {name: _content(name, records) for name, records in self._files.items()}
        for path in self.folder.iterdir():
            if path.name not in contents:
                path.unlink()
        for name, content in contents.items():
            path = self.folder / name
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)

    def edit(self, edit: Edit) -> None:
        """Change one record."""
        records = list(self._records())
        name, doc_id, text = records[edit.number % len(records)]
        in_lines, holds_many = name.endswith(".jsonl"), name.endswith((".jsonl", ".csv"))
        match edit.kind:
            case "change" if text is not None:
                self._files[name][doc_id] = f"{text} Number {edit.number} was added."
            case "add":
                lines = [each for each in sorted(self._files) if each.endswith(".jsonl")]
                added = f"new {edit.number} {len(records)}"
                self._files[lines[edit.number % len(lines)]][added] = f"New is {edit.number}. {text}"
            case "remove" if holds_many:
                del self._files[name][doc_id]
            case "rename" if not holds_many:
                del self._files[name]
                self._files[f"{edit.number} {name}"] = {f"{edit.number} {name}": text}
            case "tear" if in_lines:
                self._files[name][doc_id] = None

    def _records(self) -> Iterator[tuple[str, str, str | None]]:
        for name in sorted(self._files):
            for doc_id, text in self._files[name].items():
                yield name, doc_id, text


def _content(name: str, records: Mapping[str, str | None]) -> bytes:
    if name.endswith(".txt"):
        return "".join(text or "" for text in records.values()).encode()
    if name.endswith(".html"):
        paragraphs = "".join(f"<p>{html.escape(text or '')}</p>" for text in records.values())
        return f"<!DOCTYPE html><html><body><main>{paragraphs}</main></body></html>".encode()
    if name.endswith(".csv"):
        table = io.StringIO(newline="")
        csv.writer(table).writerows([("id", "text"), *((doc_id, text or "") for doc_id, text in records.items())])
        return table.getvalue().encode()
    lines = [
        json.dumps({"id": doc_id, "text": text} if text is not None else {"id": doc_id})
        for doc_id, text in records.items()
    ]
    return "".join(f"{line}\n" for line in lines).encode()
