"""E-mail: the body is the raw text, headers become meta, and one bad message of a mailbox costs no other."""

import base64
import gzip
import json
import random
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from concord_testing.broken_files import check_pieces, outcomes, read_all

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.readers import read_file
from concord.pipeline.readers.read_file import format_of

pytestmark = pytest.mark.slow

HEADERS = b"From: ada@a.org\nSubject: Bridge\n"
FROM = b"From ada@a.org Fri Jul  8 12:08:34 2011\n"


def read(path: Path, content: bytes, **config: Any) -> list[Document | DeadLetter]:
    path.write_bytes(content)
    return read_all(path, format_of(path.name) or "", ReaderConfig(**config))


def read_one(folder: Path, content: bytes, **config: Any) -> Document | DeadLetter:
    (found,) = read(folder / "a.eml", content, **config)
    return found


def document(folder: Path, content: bytes, **config: Any) -> Document:
    found = read_one(folder, content, **config)
    assert isinstance(found, Document), found
    return found


def meta(found: Document | DeadLetter) -> dict[str, Any]:
    assert isinstance(found, Document), found
    values: dict[str, Any] = json.loads(found.meta or "{}")
    return values


def message(text: str | None = "Anna went.\n> Bob saw it.\n", html: str | None = None, **headers: str) -> EmailMessage:
    made = EmailMessage()
    for name, value in headers.items():
        made[name] = value
    if text is not None:
        made.set_content(text)
    if html is not None:
        (made.add_alternative if text is not None else made.set_content)(html, subtype="html")
    return made


@pytest.mark.parametrize("name", ["a.eml", "a.EML.gz"])
def test_body_is_the_text_and_headers_are_meta(tmp_path: Path, name: str) -> None:
    mail = message(
        Subject="Grüße aus Köln",
        From="Zoë <zoe@a.org>",
        To="bob@a.org, eve@a.org",
        Date="Sat, 8 May 2021 10:00:00 +0200",
    )
    mail["Message-ID"] = "<1@a.org>"
    content = mail.as_bytes().replace(b"\n", b"\r\n")

    (found,) = read(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)

    assert isinstance(found, Document)
    assert (found.doc_id, found.text, found.parts) == (name, "Anna went.\n> Bob saw it.\n", ())
    assert meta(found) == {
        "subject": "Grüße aus Köln",
        "from": "Zoë <zoe@a.org>",
        "to": "bob@a.org, eve@a.org",
        "date": "2021-05-08T10:00:00+02:00",
        "message_id": "<1@a.org>",
    }


@pytest.mark.parametrize(("plain", "text"), [("Anna.\n", "Anna.\n"), (" \n", "Anna went."), (None, "Anna went.")])
def test_plain_text_is_preferred_unless_it_is_blank(tmp_path: Path, plain: str | None, text: str) -> None:
    assert document(tmp_path, message(plain, "<p>Anna <b>went</b>.</p>").as_bytes()).text == text


def test_shown_parts_follow_one_another_and_attachments_are_named_alone(tmp_path: Path) -> None:
    mail = message("Anna.\n", "<p>Not shown.</p>")
    mail.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="Übersicht.pdf")
    mail.add_attachment(message("Forwarded.\n", Subject="Old"), disposition="inline")
    mail.add_attachment("Attached.\n", filename="a.txt")
    mail.add_attachment("Bob.\n", disposition="inline")
    bundle = message("Inner.\n", "<p>Inner.</p>")
    bundle["Content-Disposition"] = "attachment; filename=bundle"
    mail.attach(bundle)

    found = document(tmp_path, mail.as_bytes())

    assert found.text == "Anna.\n\nForwarded.\n\nBob.\n"
    assert meta(found)["attachments"] == ["Übersicht.pdf", "a.txt", "bundle"]


@pytest.mark.parametrize(
    ("charset", "written", "setting", "expected"),
    [
        ("iso-8859-1", "cp1252", "utf-8", "cp1252"),
        ("koi8-r", "koi8-r", "utf-8", "koi8-r"),
        ("us-ascii", "utf-8", "utf-8", "utf-8"),
        ("utf-7", "utf-7", "utf-8", "utf-7"),
        ("utf-16le", "utf-16le", "auto", "utf-16-le"),
        ("iso-8859-1", "utf-8", "utf-8", "utf-8"),
        ("x-unknown", "cp1252", "cp1252", "cp1252"),
        ("", "cp1252", "auto", "cp1252"),
    ],
)
def test_charset_is_the_one_that_the_part_states(
    tmp_path: Path, charset: str, written: str, setting: str, expected: str
) -> None:
    text = "Вчера Анна" if written == "koi8-r" else "Zoë, Chloë, Noël and Citroën"
    stated = f"Content-Type: text/plain; charset={charset}\n".encode() if charset else b""

    body = b"Content-Transfer-Encoding: base64\n\n" + base64.encodebytes(text.encode(written))

    found = document(tmp_path, HEADERS + stated + body, encoding=setting)

    assert (found.text, found.encoding) == (text, expected)


def test_wrong_bytes_are_counted(tmp_path: Path) -> None:
    found = document(tmp_path, HEADERS + b"\nZo\xeb met Anna.", errors="replace")
    assert (found.text, found.replaced) == ("Zo\ufffd met Anna.", 1)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("=?utf-8?B?WsOp?=", "Zé"),
        ("=?utf-8?q?Zo=C3=AB_and?= Bob", "Zoë and Bob"),
        ("=?utf-8?q?Zo=C3?=\n =?utf-8?q?=AB?=", "Zoë"),
        ("=?iso-8859-1?q?Zo=EB?= =?koi8-r?b?8sHTyA==?=", "ZoëРасх"),
        ("(=?utf-8?q?a?=)", "(a)"),
        ("=?utf-8?b?A?=", "=?utf-8?b?A?="),
        ("=?nothing?q?a=EB?=", "a\ufffd"),
        ("Zoë\n  and Bob", "Zoë and Bob"),
        ("yesterday", "yesterday"),
        ("=?a?q?b" * 20_000, "=?a?q?b" * 20_000),
    ],
)
def test_headers_are_decoded_where_they_can_be(tmp_path: Path, header: str, expected: str) -> None:
    found = meta(document(tmp_path, f"Subject: {header}\nDate: {header}\n\nAnna.".encode()))
    assert found == {"subject": expected, "date": expected}


ZOE = "Zoë met Anna."


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("base64;", base64.encodebytes(ZOE.encode())),
        ("BASE64 (of utf-8)", base64.encodebytes(ZOE.encode())),
        ("base64", b"Wm/Dqw==\nIG1ldCBBbm5hLg==\n"),
        ('"quoted-printable"', b"Zo=C3=AB me=\nt Anna."),
        ("Quoted-Printable; x", b"Zo=C3=AB met Anna."),
        ("x-uuencode", b"begin 644 a\n.6F_#JR!M970@06YN82X \n \nend\n"),
        ("8-bit of some kind", ZOE.encode()),
    ],
)
def test_encoding_counts_whatever_is_written_behind_it(tmp_path: Path, encoding: str, body: bytes) -> None:
    head = HEADERS + f"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: {encoding}\n\n".encode()

    assert document(tmp_path, head + body).text == ZOE


@pytest.mark.parametrize("kind", ["message/rfc822", "message/global"])
@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("base64", base64.encodebytes(b"Subject: b\r\n\r\nAnna = Eve.")),
        ("quoted-printable", b"Subject: b\n\nAnna =3D Eve."),
        ("quoted-printable", b"Subject: b\n\nAnna = Eve."),
        ("base64", b"Subject: b\n\nAnna = Eve."),
        ("7bit", b"From b@a.org Mon Jan  1 10:00:00 2024\nSubject: b\n\nAnna = Eve."),
    ],
)
def test_forwarded_message_is_read_however_it_is_encoded(tmp_path: Path, kind: str, encoding: str, body: bytes) -> None:
    head = b"Content-Type: multipart/mixed; Boundary=b\n\n--b\n\nSee:\n--b\n"
    part = f"Content-Type: {kind}\nContent-Transfer-Encoding: {encoding}\n\n".encode() + body

    assert document(tmp_path, HEADERS + head + part + b"\n--b--\n").text == "See:\n\nAnna = Eve."


@pytest.mark.parametrize(
    ("kind", "written", "text"),
    [
        ("text/markdown", "**Anna** went.", "**Anna** went."),
        ("text/x-anything", "Anna went.", "Anna went."),
        ("text/html charset=utf-8", "<p>Anna went.", "Anna went."),
        ("text/x-amp-html", "<p>Anna went.", "Anna went."),
        ("text", "Anna went.", "Anna went."),
        ("text/enriched", "<bold>Anna</bold> <<- <color><param>red</param>went</color>.", "Anna <- went."),
        (
            "text/plain; format=flowed",
            "Anna \nwent.\n> Bob \n> saw \n>> it.\n-- \nEve",
            "Anna went.\n> Bob saw \n>> it.\n-- \nEve",
        ),
        ("text/plain; format=Flowed; DelSp=yes", " From An \nna.", "From Anna."),
        ("text/plain; charset=utf-8//IGNORE", "Zoë.", "Zoë."),
        ('multipart/mixed; boundary="a\r\n b"', "--a b\n\nAnna.\r\n--a b-\n--a b--\n", "Anna.\n--a b-"),
        ("text/calendar", "BEGIN:VCALENDAR", ""),
        ("text/vcard", "BEGIN:VCARD", ""),
        ("application/ms-tnef; name=winmail.dat", "x", ""),
    ],
)
def test_texts_of_other_kinds_are_shown(tmp_path: Path, kind: str, written: str, text: str) -> None:
    found = document(tmp_path, HEADERS + f"Content-Type: {kind}\n\n{written}".encode())

    assert found.text == text
    name = "winmail.dat" if "tnef" in kind else kind
    assert meta(found).get("attachments") == (None if text else [name])


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ('filename="a b.txt"', "a b.txt"),
        ("filename=a b.txt; size=1", "a b.txt"),
        ('filename*0=a; filename*1*=%20b; filename*2=".txt"', "a b.txt"),
        ("filename*=iso-8859-1'en'Zo%EB.txt", "Zoë.txt"),
        ("filename==?utf-8?q?Zo=C3=AB?=", "Zoë"),
    ],
)
def test_names_of_attachments(tmp_path: Path, written: str, name: str) -> None:
    head = HEADERS + b"Content-Type: a/b; name=c\nContent-Disposition: ATTACHMENT; "

    assert meta(document(tmp_path, head + written.encode() + b"\n\nx"))["attachments"] == [name]


def nested(levels: int) -> bytes:
    opened = "".join(f"Content-Type: multipart/mixed; boundary=b{number}\n\n--b{number}\n" for number in range(levels))
    return HEADERS + opened.encode() + b"\nAnna.\n"


LONG = b"Content-Type: text/plain; a=" + b'";' * 200_000


@pytest.mark.parametrize("header", [LONG, LONG.replace(b";", b";\n "), b"Content-Type: a/b;" + b" a" * 200_000])
def test_long_headers_are_read_in_linear_time(tmp_path: Path, header: bytes) -> None:
    found = read_one(tmp_path, HEADERS + header + b"\n\nAnna.\n", extraction_seconds=10)
    assert meta(found)["subject"] == "Bridge"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"Anna went.\nBob saw it.\n", "invalid_message"),
        (bytes(range(256)) * 10, "invalid_message"),
        (HEADERS + b"Content-Type: multipart/mixed; boundary=x\n\n--y\nAnna.", "invalid_message"),
        (HEADERS + b"Content-Transfer-Encoding: base64\n\nA", "invalid_base64"),
        (HEADERS + b"Content-Transfer-Encoding: base64\n\nQm9iLgo=\n\n____\nThe list.\n", "invalid_base64"),
        (HEADERS + b"Content-Transfer-Encoding: x-uuencode\n\nAnna.", "invalid_base64"),
        (HEADERS + b"Content-Type: application/pkcs7-mime\n\nAAAA", "encrypted"),
        (HEADERS + b"\n-----BEGIN PGP MESSAGE-----\n\nAAAA", "encrypted"),
        (nested(1500), "message_too_complex"),
        (b"Content-Type: message/rfc822\n\n" * 300, "message_too_complex"),
    ],
)
def test_what_is_no_message_is_a_dead_letter(tmp_path: Path, content: bytes, error: str) -> None:
    found = read_one(tmp_path, content)

    assert isinstance(found, DeadLetter)
    assert (found.error, found.doc_id) == (error, "a.eml")


BOX = [
    FROM + HEADERS + b"\nAnna went.\n>From Paris she came.\n\nFrom London, Bob.\nFrom afar.\n\n",
    b"From - Sat May  8 10:00:00 2021\n" + HEADERS + b"Content-Type: text/plain; charset=utf-8\n\nZo\xeb.\n\n",
    FROM + HEADERS + b"\nno blank line before it\n",
]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mailbox_has_a_record_for_each_message(tmp_path: Path, suffix: str) -> None:
    path, content = tmp_path / f"a.mbox{suffix}", b"".join(BOX)

    found = read(path, gzip.compress(content) if suffix else content)

    starts = [sum(map(len, BOX[:number])) for number in range(3)]
    bad = found[1]
    assert isinstance(bad, DeadLetter)
    assert bad.position == starts[1]
    assert f"byte {starts[1]}: " in bad.message
    assert [record.doc_id for record in found] == [f"a.mbox{suffix}:{start}" for start in starts]
    assert outcomes(found) == [
        "Anna went.\nFrom Paris she came.\n\nFrom London, Bob.\nFrom afar.\n\n",
        "invalid_utf8",
        "no blank line before it\n",
    ]
    assert meta(found[0]) == {"from": "ada@a.org", "subject": "Bridge"}
    check_pieces(path, found, ReaderConfig())


PATCH = b"From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001\n" + HEADERS + b"\nA patch.\n\n"


@pytest.mark.parametrize(
    "content",
    [
        BOX[0] + PATCH + BOX[2],
        PATCH + PATCH,
        b"   \n\t\n" + BOX[0] + BOX[2],
        BOX[0] + b"From here\nNote: Anna.\n\n" + BOX[2],
        BOX[0] + b"From Anna (12:30)\nNote: Anna.\n\n" + BOX[2],
        BOX[0] + b"From eve@a.org Fri, 8 Jul 2011 12:08:34 +0200\n>From x\n" + HEADERS + b"\nEve.\n",
        BOX[0] + b"From eve at a.org  Fri Jul  8 12:08:34 2011\n" + HEADERS + b"\nEve.\n",
        (BOX[0] + BOX[2]).replace(b"\n", b"\r"),
        BOX[0] + BOX[2].replace(b"\n", b"\r\n"),
    ],
)
def test_message_begins_at_an_envelope(tmp_path: Path, content: bytes) -> None:
    found = read(tmp_path / "a.mbox", content)

    assert [isinstance(record, Document) for record in found] == [True, True]
    check_pieces(tmp_path / "a.mbox", found, ReaderConfig())


def test_large_message_costs_itself_and_a_cut_one_the_rest(tmp_path: Path) -> None:
    large = FROM + HEADERS + b"\n" + b"Anna went.\n" * 500 + b"\n"
    found = read(tmp_path / "a.mbox", BOX[0] + large + BOX[2], max_record_bytes=1000)
    assert outcomes(found)[1:] == ["record_too_large", "no blank line before it\n"]

    noise = base64.encodebytes(random.Random(0).randbytes(30_000))
    cut = gzip.compress(BOX[0] + FROM + HEADERS + b"\n" + noise)[:-2000]
    first, end = read(tmp_path / "a.mbox.gz", cut)
    assert isinstance(first, Document)
    assert isinstance(end, DeadLetter)
    assert (end.error, end.position) == ("truncated_stream", len(BOX[0]))


def test_what_comes_before_the_first_message_is_a_dead_letter(tmp_path: Path) -> None:
    found = read(tmp_path / "a.mbox", b"Anna went.\n\n" + BOX[2])
    assert outcomes(found) == ["invalid_mbox", "no blank line before it\n"]
    assert read(tmp_path / "b.mbox", b"\n\n") == []


def attaching() -> EmailMessage:
    """Return a message that attaches a text, a picture, an unknown file, a damaged one, and a message that attaches."""
    inner = message("Inner.\n", Subject="Old")
    inner.add_attachment("Zoë left.\n", filename="a.txt", charset="latin-1")
    made = message("Anna.\n", Subject="New", **{"Message-ID": "<1@a.org>"})
    made.add_attachment("Bob.\n", filename="a.txt")
    made.add_attachment(b"PNG", maintype="image", subtype="png", filename="a.png")
    made.add_attachment(b"x", maintype="application", subtype="octet-stream", filename="a.bin")
    made.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="a.pdf")
    made.add_attachment(inner)
    made.add_attachment(b"<p>Eve.</p>", maintype="application", subtype="octet-stream", filename="../a.HTML")
    return made


TEXTS = ["Anna.\n", "Bob.\n", "unknown_format", "unreadable", "Inner.\n", "Zoë left.\n", "Eve."]


def test_attachments_are_documents_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.eml"

    found = read(path, attaching().as_bytes(), attachments=True)

    assert outcomes(found) == TEXTS
    assert [record.doc_id for record in found] == ["a.eml", *(f"a.eml#{number}" for number in range(1, 7))]
    assert meta(found[5]) == {"file": "a.txt", "message": {"subject": "Old"}}
    assert meta(found[6]) == {"file": "../a.HTML", "message": {"subject": "New", "message_id": "<1@a.org>"}}
    lost = found[2]
    assert isinstance(lost, DeadLetter)
    assert lost.message.startswith(f"{path}: attachment 2 ('a.bin'): expected a file")
    assert all(record.parts is not None for record in found if isinstance(record, Document))
    check_pieces(path, found, ReaderConfig(attachments=True), step=3)
    assert outcomes(read(path, attaching().as_bytes())) == TEXTS[:1]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (b"Content-Type: text/rtf\n\n{\\rtf1 Bob.}", "Bob."),
        (b"Content-Type: application/xml\n\n<TEI><text><p>Bob.</p></text></TEI>", "Bob."),
        (b"Content-Type: text/html\nContent-Disposition: attachment\n\n<p>Bob.</p>", "Bob."),
        (b"Content-Type: message/delivery-status\n\nStatus: 5.0.0", "Status: 5.0.0"),
        (b"Content-Type: application/pgp-signature\n\nx", None),
        (
            b"Content-Type: a/b; name=a.eml\n\nSubject: b\nContent-Type: multipart/mixed; boundary=x\n\nx",
            "invalid_message",
        ),
        (b"Content-Type: application/gzip; name=a.txt.gz\n\nx", "unknown_format"),
        (b"Content-Type: a/b; name=a.txt\nContent-Transfer-Encoding: base64\n\nA", "invalid_base64"),
    ],
)
def test_attachments_of_a_kind(tmp_path: Path, part: bytes, expected: str | None) -> None:
    head = HEADERS + b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\nAnna.\n--b\n"
    found = read(tmp_path / "a.eml", head + part + b"\n--b\nContent-Disposition: attachment\n\nEve.", attachments=True)

    assert outcomes(found) == ["Anna.", *([expected] if expected else []), "Eve."]
    assert len(meta(found[0])["attachments"]) == 2


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("id_field", ["id", "message_id"])
def test_attachments_in_mailboxes(tmp_path: Path, suffix: str, id_field: str) -> None:
    path, mail = tmp_path / f"a.mbox{suffix}", FROM + attaching().as_bytes() + b"\n"
    content = BOX[0] + mail + BOX[0]

    found = read(path, gzip.compress(content) if suffix else content, attachments=True, id_field=id_field)

    assert outcomes(found)[1:-1] == TEXTS
    base = f"{path.name}:{len(BOX[0])}" if id_field == "id" else "<1@a.org>"
    ids = [record.doc_id for record in found if isinstance(record, Document)]
    assert ids[1:-1] == [base, *(f"{base}#{number}" for number in (1, 4, 5, 6))]
    check_pieces(path, found, ReaderConfig(attachments=True, id_field=id_field))


def test_attachment_whose_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: reader for name, reader in read_file.readers().items() if name != "pdf"}
    monkeypatch.setattr(read_file, "readers", lambda: known)
    monkeypatch.setattr(read_file, "_release", lambda name: "" if name == "pypdfium2" else "1")

    found = read(tmp_path / "a.eml", attaching().as_bytes(), attachments=True)

    assert outcomes(found) == [*TEXTS[:3], "missing_library", *TEXTS[4:]]
    assert isinstance(found[3], DeadLetter)
    assert "'a.pdf'" in found[3].message
    assert "needs pypdfium2: pip install 'concord-annotate[archives]'" in found[3].message
    assert read_file.libraries_of(["eml"]) == {"eml": "resiliparse 1, lxml 1"}
