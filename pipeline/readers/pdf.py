"""PDF files by pypdfium2: the text layer, in the order in which the file has it, with pages as parts."""

from threading import Lock

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import PAGE
from concord.pipeline.readers.encodings import Decoded
from concord.pipeline.readers.extracting import ExtractingReader, extracted
from concord.pipeline.readers.records import RecordError, reason_of
from concord.pipeline.readers.streams import with_codecs


class PdfReader(ExtractingReader):
    """Reads the text layer of a file."""

    suffixes = with_codecs(".pdf")
    libraries = ("pypdfium2",)

    @override
    def parse(self, content: bytes, config: ReaderConfig) -> Decoded:
        # Importing it takes a while.
        import pypdfium2 as pdfium

        with _LOCK:
            document = pdfium.PdfDocument(content)
            pages, lost = [], {}
            for index in range(len(document)):
                try:
                    page = document[index].get_textpage().get_text_range()
                except pdfium.PdfiumError as error:
                    lost[index + 1] = RecordError("unreadable_page", reason_of(error))
                    continue
                pages.append((PAGE, document.get_page_label(index) or str(index + 1), page))
        return extracted(pages, lost=lost)


_LOCK = Lock()
"""PDFium may be called by one thread at a time."""
