"""Read a web archive, a mailbox, an e-book, and books in TEI and ALTO, in MB of their uncompressed content a second.

Command: python benchmarks/bench_archives.py > benchmarks/results/archives_cpu_202611.json

Pages of the web archive are compressed one by one. ``found`` is how fast its records, or the messages of the mailbox,
are found, as a plan does, without the extraction of their text; ``read`` includes it. Of files that are one document
the text is extracted in both, so that only ``read`` is told. The best of several rounds, in processor time of one core,
that of the process that extracts included; its start, which is once a worker, is told apart.
"""

import argparse
import gzip
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from concord_testing.documents import epub, warc_page
from environment import environment

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import Document
from concord.pipeline.plan import Piece
from concord.pipeline.readers.extraction import EXTRACTION
from concord.pipeline.readers.read_file import format_of, read_piece, scan_file

PARAGRAPH_WORDS = 80
PARAGRAPHS = 40
"""Of a page, message or chapter, which then has about 20 kB."""


def main() -> None:
    """Make the files, read them and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=20.0, help="of content, in each file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = min(_start() for _ in range(options.rounds))
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            _measure(Path(folder) / name, content, size, rounds=options.rounds, started=started)
            for name, (content, size) in _files(options.megabytes, random.Random(options.seed)).items()
        ]
    told = {"config": vars(options), "process_start_seconds": round(started, 3), "files": rows}
    print(json.dumps({**environment("bench_archives.py"), **told}, indent=1))


def _files(megabytes: float, chance: random.Random) -> dict[str, tuple[bytes, int]]:
    """Return files and the sizes of their content, by name."""
    words = ["".join(chance.choices("abcdefghijklmnoprstuvw", k=chance.randint(2, 9))) for _ in range(5000)]

    def texts(markup: Callable[[list[str]], str]) -> list[str]:
        """Return so many texts of several paragraphs that they have the size that is asked for."""
        found, size = [], 0
        while size < megabytes * 1e6:
            found.append(markup([" ".join(chance.choices(words, k=PARAGRAPH_WORDS)) for _ in range(PARAGRAPHS)]))
            size += len(found[-1])
        return found

    pages = texts(lambda paragraphs: _page(paragraphs))
    records = [warc_page(page.encode(), url=f"http://a.org/{number}") for number, page in enumerate(pages)]
    heads = "From ada@a.org Fri Jul  8 12:08:34 2011\nSubject: Bridge\nContent-Type: text/plain; charset=utf-8\n\n"
    mbox = "".join(texts(lambda paragraphs: heads + "\n".join(paragraphs) + "\n\n")).encode()
    tei = "".join(texts(lambda paragraphs: "<pb/>" + "".join(f"<p>{_lines(text)}</p>" for text in paragraphs)))
    alto = "".join(texts(lambda paragraphs: f"<Page>{''.join(map(_block, paragraphs))}</Page>"))
    chapters = sum(map(len, pages))
    return {
        "a.warc.gz": (b"".join(map(gzip.compress, records)), sum(map(len, records))),
        "a.warc": (b"".join(records), sum(map(len, records))),
        "a.mbox": (mbox, len(mbox)),
        "a.epub": (epub(*pages), chapters),
        "tei.xml": _whole(f"<TEI><text><body>{tei}</body></text></TEI>"),
        "alto.xml": _whole(f"<alto><Layout>{alto}</Layout></alto>"),
    }


def _whole(content: str) -> tuple[bytes, int]:
    return content.encode(), len(content)


def _page(paragraphs: Iterable[str]) -> str:
    links = "".join(f'<li class="item"><a href="/page/{number}">Page {number}</a></li>' for number in range(60))
    shown = "".join(f'<p class="text" id="p{number}">{text}</p>' for number, text in enumerate(paragraphs))
    return f"<!doctype html><html><head><title>Page</title></head><body><ul>{links}</ul>{shown}</body></html>"


def _lines(text: str) -> str:
    return text.replace(" w", "<lb/>w")


def _block(text: str) -> str:
    strings = (f'<String HPOS="1" VPOS="2" WIDTH="3" HEIGHT="4" WC="0.9" CONTENT="{word}"/>' for word in text.split())
    return f"<TextBlock><TextLine>{'<SP/>'.join(strings)}</TextLine></TextBlock>"


def _seconds() -> float:
    """Return the processor time of this process and of the one that extracts, which is ended."""
    EXTRACTION.close()
    times = os.times()
    return sum(times[:4])


def _start() -> float:
    """Return the seconds in which the process that extracts starts and ends."""
    start = _seconds()
    EXTRACTION.one(len, b"", config=ReaderConfig())
    return _seconds() - start


def _measure(path: Path, content: bytes, size: int, *, rounds: int, started: float) -> dict[str, object]:
    path.write_bytes(content)
    format, config = format_of(path.name) or "", ReaderConfig()
    found, read = [], []
    for _ in range(rounds):
        start = _seconds()
        records = list(scan_file(str(path), format=format, name=path.name, config=config))
        found.append(_seconds() - start)
        piece = Piece(uri=str(path), format=format, start=0, end=records[-1].end, records=len(records), name=path.name)
        start = _seconds()
        documents = list(read_piece(piece, config))
        read.append(_seconds() - start - started)
        assert all(isinstance(document, Document) for document in documents)
    is_one = len(records) == 1
    # Tiny files take less time than the start of a process varies by.
    found_seconds, read_seconds = (max(0.001, min(seconds)) for seconds in (found, read))
    return {
        "file": path.name,
        "megabytes": round(size / 1e6, 1),
        "documents": len(documents),
        "found_mb_per_second": None if is_one else round(size / 1e6 / found_seconds, 1),
        "read_mb_per_second": round(size / 1e6 / read_seconds, 1),
    }


if __name__ == "__main__":
    main()
