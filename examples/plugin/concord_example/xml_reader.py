"""A reader of another package: XML files whose ``<item>`` elements are records; their child elements are the fields."""

from collections.abc import Iterator
from xml.etree import ElementTree

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.base import Fields, RecordReader
from concord.pipeline.readers.files import read_whole
from concord.pipeline.readers.records import RecordError


class XmlReader(RecordReader):
    """Reads one record per item."""

    suffixes = (".xml", ".xml.gz")

    @override
    def records(self, path: str, config: ReaderConfig) -> Iterator[Fields | RecordError]:
        # Malformed XML raises an error here, and the file becomes one dead letter.
        for item in ElementTree.fromstring(read_whole(path, config=config)).iter("item"):
            if any(len(field) for field in item):
                yield RecordError("nested_field", "expected fields of text alone, got elements within a field")
            else:
                yield {field.tag: field.text or "" for field in item}
