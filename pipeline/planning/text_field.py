"""Looks for the text field in the first records of an input, so that a wrong name is found before the run."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, islice

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.planning.inputs import InputFile
from concord.pipeline.readers.fields import names_wrong_field
from concord.pipeline.readers.read_file import is_one_document, read_records

FIRST_RECORDS = 100
"""How many records of each format are looked at, spread over its files; the first one with a text suffices."""


def check_text_field(files: Sequence[InputFile], config: ReaderConfig) -> None:
    """Check for each format that one of its first records has a text.

    Raises:
        InputError: when none has, naming the fields of the first one.
    """
    by_format: defaultdict[str, list[InputFile]] = defaultdict(list)
    for file in files:
        if file.fault is None and not is_one_document(file.format):
            by_format[file.format].append(file)
    for format, group in by_format.items():
        most = max(1, FIRST_RECORDS // len(group))
        files_of_records = (
            read_records(file.path, format=format, name=file.name, config=config, limit=most) for file in group
        )
        faults: list[DeadLetter] = []
        for _, record in islice(chain.from_iterable(files_of_records), FIRST_RECORDS):
            if isinstance(record, Document):
                break
            if names_wrong_field(record):
                faults.append(record)
        else:
            if faults:
                raise InputError(
                    f"reader.text_field: none of the first records of the {format} files has a text in the field "
                    f"{config.text_field!r}; {faults[0].message}"
                )
