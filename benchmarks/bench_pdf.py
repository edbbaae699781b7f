"""Read PDF files in one process, and count pages a second of its processor.

Command: python benchmarks/bench_pdf.py --pages 1000

Without --files, the pages are made from the abstracts of examples/abstracts: 46 lines of Helvetica each, with a running
header and a page number. A round reads all files, as a run does, with ``reader.join_lines`` and without, and by PDFium
alone (``get_text_range`` of each page), in turns. Seconds are those of the processor, which other work disturbs least.
"""

import argparse
import json
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pypdfium2
from concord_testing.documents import Line, lines, pdf
from corpora import read_texts
from environment import environment, quartiles

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.pdf import PdfReader
from concord.pipeline.readers.read_file import libraries_of

ABSTRACTS = Path(__file__).resolve().parents[1] / "examples" / "abstracts" / "abstracts.jsonl"
LINES, COLUMNS, PAGES_OF_A_FILE = 46, 92, 50


def main() -> None:
    """Read in turns and print the speeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, help="a folder of PDF files, in place of made ones")
    parser.add_argument("--pages", type=int, default=1000, help="that are made")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    contents = [path.read_bytes() for path in sorted(arguments.files.glob("*.pdf"))] if arguments.files else []
    contents = contents or make_files(arguments.pages)
    found = [PdfReader().extract(content, ReaderConfig()) for content in contents]
    pages = sum(len(one.parts or ()) for one in found)
    ways: dict[str, Callable[[bytes], object]] = {
        "joined": lambda content: PdfReader().extract(content, ReaderConfig()),
        "lines": lambda content: PdfReader().extract(content, ReaderConfig(join_lines=False)),
        "pdfium alone": read_plainly,
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, read in ways.items():
            start = time.process_time()
            for content in contents:
                read(content)
            speeds[name].append(pages / (time.process_time() - start))
    words = sum(len(one.text.split()) for one in found)
    report = {
        **environment("bench_pdf.py"),
        "libraries": libraries_of(["pdf"]),
        "config": {"files": str(arguments.files), "pages": arguments.pages, "rounds": arguments.rounds},
        "read": {
            "files": len(contents),
            "pages": pages,
            "bytes": sum(map(len, contents)),
            "words_a_page": round(words / pages, 1),
        },
        "pages_a_second": {name: quartiles(values, digits=1) for name, values in speeds.items()},
    }
    print(json.dumps(report, indent=1))


def make_files(pages: int) -> list[bytes]:
    """Make files of 50 pages from the abstracts, over and over."""
    text = " ".join(text for _, text in read_texts(ABSTRACTS)).encode("cp1252", "ignore").decode("cp1252")
    rows = textwrap.wrap(" ".join(text.split()), COLUMNS)
    made = [
        make_page(number, [rows[(number * LINES + row) % len(rows)] for row in range(LINES)]) for number in range(pages)
    ]
    return [pdf(*made[start : start + PAGES_OF_A_FILE]) for start in range(0, pages, PAGES_OF_A_FILE)]


def make_page(number: int, rows: Sequence[str]) -> list[Line]:
    """Make a page."""
    number %= PAGES_OF_A_FILE
    return [(250, 770, "Reports of the Year"), *lines(*rows, top=740, step=14), (300, 30, str(number + 1))]


def read_plainly(content: bytes) -> list[str]:
    """Read the text of each page as PDFium returns it."""
    document = pypdfium2.PdfDocument(content)
    try:
        return [page.get_textpage().get_text_range() for page in document]
    finally:
        document.close()


if __name__ == "__main__":
    main()
