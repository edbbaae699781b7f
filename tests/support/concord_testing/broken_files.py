"""Sample files of every format, and seeded damage to them: what every reader must survive."""

import csv
import gzip
import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from concord.pipeline.config import AnnotateConfig, ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.plan import Piece, Plan
from concord.pipeline.planning.planner import Planner
from concord.pipeline.readers import read_file
from concord.pipeline.readers.base import Reader
from concord.pipeline.readers.read_file import format_of, read_piece, read_records, scan_file
from concord_testing import documents, runs

RECORDS = 40
_MOST_RECORDS = 5000


@dataclass(frozen=True, slots=True)
class Sample:
    """A whole file of a format.

    Attributes:
        shows_truncation: whether the format says where a file ends.
        selects: whether it reads records of some kinds alone, and damage may make another kind of one.
        encoding: how it is read, as ``reader.encoding``.
    """

    name: str
    format: str
    content: bytes
    shows_truncation: bool = False
    selects: bool = False
    encoding: str = "utf-8"

    @property
    def config(self) -> ReaderConfig:
        """The configuration with which it is read."""
        return ReaderConfig(encoding=self.encoding)


def samples() -> Mapping[str, Sample]:
    """Return a sample of every bundled reader and compression, by file name."""
    chance = random.Random(0)
    rows = [
        {"id": f"d{number}", "text": f"Zoë met {chance.getrandbits(64):x} in Łódź.\nThen they left.", "page": number}
        for number in range(RECORDS)
    ]
    table = pa.Table.from_pylist(rows)
    plain = {
        "a.txt": ("text", "".join(str(row["text"]) for row in rows).encode()),
        "a.html": ("html", html(rows)),
        "a.csv": ("csv", delimited(rows, ",")),
        "a.tsv": ("tsv", delimited(rows, "\t")),
        "a.jsonl": ("jsonl", "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()),
    }
    found = [Sample(name, format, content) for name, (format, content) in plain.items()]
    for name in ("a.txt", "a.csv", "a.html"):
        format, content = plain[name]
        found.append(Sample(f"latin-{name}", format, _latin(content), encoding="auto"))
    for name, (format, content) in plain.items():
        found.append(Sample(f"{name}.gz", format, gzip.compress(content, mtime=0), shows_truncation=True))
        found.append(Sample(f"{name}.zst", format, zstd(content), shows_truncation=True))
    found += archives(rows)
    found.append(Sample("a.parquet", "parquet", parquet(table), shows_truncation=True))
    found.append(Sample("a.arrow", "arrow", arrow_stream(table), shows_truncation=True))
    return {sample.name: sample for sample in found}


def hostile_files(scale: int = 1) -> Mapping[str, bytes]:
    """Return files that end, stall or fill the process that reads them, are cut short, or have no word, by name.

    Args:
        scale: at 1 they break limits of 128 MiB and a second, at 10 those of the default settings.
    """
    many, text, huge = 10_000 * scale, "Anna went to Boston.", "A" * (80 << 20)
    page = f"<p>{text}</p>"
    record = documents.warc_page(page.encode())
    links = "".join(f'<item id="n{n}" href="c1.xhtml" media-type="application/xhtml+xml"/>' for n in range(many))
    spine = "".join(f'<itemref idref="n{n}"/>' for n in range(many))
    again = (
        f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{links}</manifest><spine>{spine}</spine></package>'
    )
    marks = "<w:footnoteReference w:id='1'/><w:endnoteReference w:id='1'/>"
    parts = b"".join(b"Content-Type: multipart/mixed; Boundary=b%d\n\n--b%d\n" % (n, n) for n in range(100))
    block = "<TextBlock><TextLine><String CONTENT='Anna'/></TextLine></TextBlock>"
    alto = f"<alto>{'<ElementRef/>' * many}<Layout>{'<Page/>' * many}<Page>{block}</Page></Layout></alto>"
    tei, paragraph = "{}<TEI><text><body>{}</body></text></TEI>", "<w:p><w:r><w:t>{}</w:t>{}</w:r></w:p>"
    ocr = "<PcGts><Page><TextRegion><TextEquiv><Unicode>Anna went.</Unicode></TextEquiv></TextRegion></Page></PcGts>"
    whole = [sample for sample in samples().values() if sample.encoding == "utf-8"]
    return {
        **{sample.name: sample.content for sample in whole},
        **{f"cut-{sample.name}": sample.content[:-30] for sample in whole if sample.shows_truncation},
        **{f"empty-{sample.name}": b"" for sample in whole},
        "abort.pdf": _nested_forms(text),
        "endless.html.gz": gzip.compress(b"<span>" * 100_000 + b"</x>" * 1_000_000, mtime=0),
        "large.html": b"<p>Anna" * 1_000_000 * scale,
        "bomb.docx": documents.docx(paragraph.format(huge, "")),
        "bomb.odt": documents.odt(huge),
        "bomb.epub": documents.epub(huge),
        "bomb.txt.gz": gzip.compress(huge.encode(), mtime=0),
        "bomb.warc": documents.warc_page(gzip.compress(huge.encode()), headers="Content-Encoding: gzip\r\n"),
        "again.epub": documents.epub(page + " " * 1_000_000, files={"in/a.opf": again}),
        "deep.html": b"<div>" * many + page.encode(),
        "deep.xml": tei.format("", "<div>" * many + page + "</div>" * many).encode(),
        "dtd.xml": tei.format(f"<!DOCTYPE TEI [<!ATTLIST q x CDATA '{huge[:many]}'>]>", page + "<q/>" * many).encode(),
        "page.xml": ocr.encode(),
        "alto.xml.gz": gzip.compress(alto.encode(), mtime=0),
        "fields.rtf": b"{\\rtf1 Anna went." + b"{\\FIELD{\\*\\FLDINST{ " * many + b"x}" + b"}" * 3 * many,
        "parts.eml.gz": gzip.compress(parts + b"From: a\n\n" + b"--x\n" * many * 10, mtime=0),
        "length.warc": record + record.replace(b"Content-Length: ", b"Content-Length: 1000000000000") + record,
        "notes.docx": documents.docx(paragraph.format(text, marks)),
        "latin.txt": "Zoë".encode("latin-1"),
        "blank.docx": documents.docx(""),
        "blank.pdf": documents.pdf(documents.PICTURE),
        "lost.pdf": documents.pdf(documents.lines(text), documents.BROKEN_PAGE, documents.lines(text)),
    }


def _nested_forms(text: str) -> bytes:
    """Return a PDF file whose page draws a form ten times, which draws another ten times, and so on for ten levels."""
    streams = ["/X Do ", *["/X Do " * 10] * 9, f"BT /F 12 Tf ({text}) Tj ET"]
    form = (
        "<</Type/XObject/Subtype/Form/BBox[0 0 600 800]/Resources<</Font<</F 3 0 R>>/XObject<</X {} 0 R>>>>/Length {}>>"
    )
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Count 1/Kids[4 0 R]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 5 0 R/Resources<</XObject<</X 6 0 R>>>>>>",
        *(f"{form.format(n, len(stream))}stream\n{stream}\nendstream" for n, stream in enumerate(streams, start=6)),
    ]
    body = "".join(f"{number} 0 obj\n{item}\nendobj\n" for number, item in enumerate(objects, start=1))
    # Without a table of its objects, which readers then find by themselves.
    return f"%PDF-1.7\n{body}trailer\n<</Root 1 0 R>>\n%%EOF\n".encode()


def archives(rows: Sequence[Mapping[str, object]]) -> list[Sample]:
    """Return files that hold a message, chapter, page or the like for each row."""
    texts = [str(row["text"]) for row in rows]
    latin = [text.replace("Łódź", "Málaga").replace("\n", " ") for text in texts]
    pages = [f"<title>{number}</title><p>{text}</p>" for number, text in enumerate(texts)]
    message = "Subject: {}\nContent-Type: text/plain; charset=utf-8\n\n{}\n"
    messages = [message.format(number, text) for number, text in enumerate(texts)]
    mbox = "".join(f"From ada@a.org Fri Jul  8 12:08:34 2011\n{mail}\n" for mail in messages).encode()
    tei = "".join(f'<pb n="{number}"/><p>{text}</p>' for number, text in enumerate(texts))
    records = [documents.warc_page(page.encode(), url=f"http://a.org/{n}") for n, page in enumerate(pages)]
    paragraphs = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in texts)
    spoken = "".join(f"<text:p>{text}</text:p>" for text in texts)
    written = "".join(f"{text}\\par\n" for text in texts).encode("ascii", "replace")
    return [
        Sample("a.pdf", "pdf", documents.pdf(*([(72, 700, text)] for text in latin)), shows_truncation=True),
        Sample("a.docx", "docx", documents.docx(paragraphs), shows_truncation=True),
        Sample("a.odt", "odt", documents.odt(spoken), shows_truncation=True),
        Sample("a.rtf", "rtf", b"{\\rtf1\\ansi " + written + b"}"),
        Sample("a.eml", "eml", messages[0].encode()),
        Sample("a.mbox", "mbox", mbox),
        Sample("a.mbox.gz", "mbox", gzip.compress(mbox, mtime=0), shows_truncation=True),
        Sample("a.epub", "epub", documents.epub(*pages), shows_truncation=True),
        Sample("a.xml", "tei", f"<TEI><text><body>{tei}</body></text></TEI>".encode(), shows_truncation=True),
        Sample("a.warc", "warc", b"".join(records), selects=True),
        Sample("a.warc.gz", "warc", b"".join(gzip.compress(record, mtime=0) for record in records)),
    ]


def _latin(content: bytes) -> bytes:
    return content.decode().replace("Łódź", "Málaga").encode("cp1252")


def delimited(rows: Sequence[Mapping[str, object]], delimiter: str) -> bytes:
    """Write a table with a header, and quotes where they are needed."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue().encode()


def html(rows: Sequence[Mapping[str, object]]) -> bytes:
    """Write a page with a list, a table and a paragraph for each row."""
    blocks = (f"<ul><li>{row['id']}<li>{row['page']}</ul><p class='x'>{row['text']}<br>&amp;&#233;</p>" for row in rows)
    return f"<!doctype html><html><title>T</title><table><tr><td>a<td>b</table>{''.join(blocks)}".encode()


def zstd(content: bytes) -> bytes:
    """Compress with Zstandard."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def parquet(table: pa.Table) -> bytes:
    """Write a Parquet file of several row groups."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=15)
    return bytes(sink.getvalue())


def arrow_stream(table: pa.Table) -> bytes:
    """Write an Arrow IPC stream of several batches, as the ``datasets`` library does."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=15)
    return bytes(sink.getvalue())


def flip(content: bytes, chance: random.Random) -> bytes:
    """Return the content with one to eight bits flipped."""
    damaged = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def truncate(content: bytes, chance: random.Random) -> bytes:
    """Return the content without its end."""
    return content[: chance.randrange(len(content))]


DAMAGES: Mapping[str, Callable[[bytes, random.Random], bytes]] = {"flip": flip, "truncate": truncate}


def read_all(
    path: Path, format: str, config: ReaderConfig, available: Mapping[str, Reader] | None = None
) -> list[Document | DeadLetter]:
    """Scan and read a file as a run does; an AssertionError where the two disagree, or the file seems endless."""
    limit = _MOST_RECORDS + 1
    available = read_file.readers() if available is None else available
    with patch.object(read_file, "readers", lambda: available):
        pairs = read_records(str(path), format=format, name=path.name, config=config, limit=limit)
        found = [record for _, record in pairs]
    assert len(found) <= _MOST_RECORDS, "the file seems endless"
    assert all(
        record.stage == "read" and str(path) in record.message for record in found if isinstance(record, DeadLetter)
    )
    return found


def outcomes(records: Sequence[Document | DeadLetter]) -> list[str]:
    """Return the text of each document, and the error of each dead letter."""
    return [record.error if isinstance(record, DeadLetter) else record.text for record in records]


def plan_for(where: Path, *, shard_bytes: int = 500_000, **reader: Any) -> Plan:
    """Plan an input, whose reader has these settings."""
    planning = {"shard_bytes": shard_bytes}
    config = AnnotateConfig.from_mapping(
        {
            "input": str(where),
            "output": {"path": "/nowhere/out"},
            "planning": planning,
            "reader": reader,
            "executor": {"threads": 1},
        }
    )
    return Planner(runs.resolved(config)).resolve()


def read_plan(plan: Plan) -> list[Document | DeadLetter]:
    """Read all pieces, each of which must have as many records as the planner counted."""
    records: list[Document | DeadLetter] = []
    for piece in (piece for shard in plan.shards for piece in shard.pieces):
        found = list(read_piece(piece, plan.config.reader))
        assert len(found) == piece.records, piece
        records += found
    assert len(records) == plan.read
    assert all(record.stage == "read" for record in records if isinstance(record, DeadLetter))
    return records


def check_pieces(path: Path, whole: Sequence[Document | DeadLetter], config: ReaderConfig, *, step: int = 1) -> None:
    """Check that records have equal outcomes when they are read in pieces of some records, the last piece first."""
    format = format_of(path.name) or ""
    scanned = list(scan_file(str(path), format=format, name=path.name, config=config))
    assert len(scanned) == len(whole)
    for first in reversed(range(0, len(whole), step)):
        records = scanned[first : first + step]
        start, end = records[0].position, records[-1].end
        piece = Piece(uri=str(path), format=format, start=start, end=end, records=len(records), name=path.name)
        assert list(read_piece(piece, config)) == whole[first : first + step]


def damage_and_read(
    sample: Sample, path: Path, *, rounds: int, seed: int, on_read: Callable[[], object] = lambda: None
) -> Counter[str]:
    """Damage a sample again and again, and read each result.

    Args:
        on_read: called after each.

    Returns:
        How many results had each outcome: ``same`` documents, ``changed`` documents, ``dead letters``, or ``cut`` where
        a file was truncated and its format does not show it.

    Raises:
        AssertionError: when documents are gone and nothing says so. Whatever else a reader raises.
    """
    path.write_bytes(sample.content)
    whole = _texts(read_all(path, sample.format, sample.config))
    assert whole
    outcomes: Counter[str] = Counter()
    for number, kind, damaged in _damaged(sample, rounds=rounds, seed=seed):
        path.write_bytes(damaged)
        found = read_all(path, sample.format, sample.config)
        on_read()
        for record in found:
            if isinstance(record, Document):
                assert all(0 <= part.start <= len(record.text) for part in record.parts or ())
        texts = _texts(found)
        if len(texts) < len(found):
            outcomes["dead letters"] += 1
        elif texts == whole:
            outcomes["same"] += 1
        elif texts - whole:
            outcomes["changed"] += 1
        else:
            assert kind == "truncate" or sample.selects, (sample.name, seed, number)
            assert not sample.shows_truncation, (sample.name, seed, number)
            outcomes["cut"] += 1
    return outcomes


def _damaged(sample: Sample, *, rounds: int, seed: int) -> Iterator[tuple[int, str, bytes]]:
    chance = random.Random(f"{seed} {sample.name}")
    for number in range(rounds):
        kind = chance.choices(list(DAMAGES), weights=(3, 1))[0]
        yield number, kind, DAMAGES[kind](sample.content, chance)


def _texts(records: list[Document | DeadLetter]) -> set[tuple[str, str]]:
    return {(record.doc_id, record.text) for record in records if isinstance(record, Document)}
