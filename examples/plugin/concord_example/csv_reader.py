"""A reader of another package: CSV files with a header line; the columns are the fields of the records."""

import csv
import io
import sys
from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.record_reader import Record, RecordReader
from concord.pipeline.readers.records import RecordError
from concord.pipeline.readers.streams import read_whole

csv.field_size_limit(sys.maxsize)  # a text may be longer than the 131,072 characters that the library allows


class CsvReader(RecordReader):
    """Reads one record per row."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".csv.gz")

    @override
    def records(self, path: str, config: ReaderConfig) -> Iterator[Record]:
        text = read_whole(path).decode("utf-8-sig", errors="strict")
        rows = csv.DictReader(io.StringIO(text, newline=""))
        for row in rows:
            if None in row or None in row.values():
                yield RecordError(
                    "wrong_columns", f"line {rows.line_num}: expected {len(rows.fieldnames or [])} columns"
                )
            else:
                yield row
