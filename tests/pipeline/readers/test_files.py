"""Bytes, lines and encodings: what is compressed, cut, damaged, too large, or in another encoding than UTF-8."""

import gzip
import json
import re
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from concord_testing.broken_files import check_pieces, read_all, zstd
from concord_testing.checkout import CHECKOUT

from concord.models.errors import ConfigError
from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.readers import files
from concord.pipeline.readers.files import Decoded, decode
from concord.pipeline.readers.records import RecordError

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdCompressor, compress, train_dict
else:
    from backports.zstd import CompressionParameter, ZstdCompressor, compress, train_dict

pytestmark = pytest.mark.slow(reason="unpacks gigabytes in a process that has little memory")

SPANISH = "El señor Muñoz llegó mañana por la tarde a la reunión."
FRENCH = "Les élèves étaient très fiers de leur école près de Besançon."
FINNISH = "Hän käyttää työssään päivittäin kieltä, jota ei välttämättä ymmärretä."
ENGLISH = "He said “no” – and the café’s owner, Zoë, paid €5."
POLISH = "Łukasiewicz pojechał do Łodzi, gdzie spotkał się z żoną i dziećmi."
CZECH = "Řekl pan Dvořák z Plzně a odešel domů, kde čekala jeho žena."
HUNGARIAN = "Több száz győri lakos és sok diák vett részt az ünnepségen, mondta Szűcs."
TURKISH = "Türkiye'nin en büyük şehri İstanbul'dur; Ayşe çalışmaya başladı."
RUSSIAN = "Вчера в Москве прошла встреча министров."
GREEK = "Χθες στην Αθήνα έγινε η συνάντηση των υπουργών."
TAIWANESE = "昨天部長們在台北舉行會議，討論新的貿易協定。"
JAPANESE = "昨日、東京で大臣たちの会議が開かれた。"
KOREAN = "어제 서울에서 장관 회의가 열렸다."
HEBREW = "אתמול נפגשו השרים בירושלים ודנו בהסכם."
ARABIC = "اجتمع الوزراء أمس في القاهرة لمناقشة الاتفاق."
THAI = "เมื่อวานนี้รัฐมนตรีประชุมกันที่กรุงเทพ"
CHINESE = "昨天部长们在北京举行会议，讨论新的贸易协定。"

LINES = [json.dumps({"id": f"d{number}", "text": f"Zoë met Bob {number} times."}) for number in range(300)]
CONTENT = "".join(f"{line}\n" for line in LINES).encode()
IDS = [f"d{number}" for number in range(len(LINES))]
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstd}
gzipped = partial(gzip.compress, mtime=0)
PACKED = gzipped(CONTENT)
NEITHER = "expected utf-8 or letters that show an encoding, got neither"


def read(path: Path, **config: object) -> list[Document | DeadLetter]:
    format = path.suffixes[0][1:].replace("txt", "text")
    return read_all(path, format, ReaderConfig.from_mapping(config))


def outcomes(path: Path, **config: object) -> list[str | None]:
    return [record.error if isinstance(record, DeadLetter) else record.doc_id for record in read(path, **config)]


def last_message(path: Path) -> str:
    found = read(path)[-1]
    assert isinstance(found, DeadLetter)
    return found.message


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Muñoz", "cp1252"),
        ("été", "cp1252"),
        (SPANISH, "cp1252"),
        (FRENCH, "cp1252"),
        (FRENCH, "cp850"),
        (FRENCH, "mac-roman"),
        (FINNISH, "cp1252"),
        (ENGLISH, "cp1252"),
        (POLISH, "iso8859-2"),
        (CZECH, "cp1250"),
        (HUNGARIAN, "cp1250"),
    ],
)
def test_text_is_read_as_it_was_written(text: str, encoding: str) -> None:
    decoded = decode(text.encode(encoding), encoding="auto")

    assert decoded.text == text
    assert decoded.confidence is not None


def test_confidence_grows_with_the_evidence() -> None:
    confidences = [
        decode(text.encode("cp1252"), encoding="auto").confidence or 0 for text in ("Muñoz", SPANISH, SPANISH * 20)
    ]

    assert confidences == sorted(confidences)
    assert confidences[0] <= 0.2
    assert confidences[-1] > 0.9


def test_what_is_known_is_no_guess() -> None:
    assert decode(b"plain", encoding="auto") == Decoded("plain", "utf-8")
    assert decode("\ufeffé\r\n".encode(), encoding="auto") == Decoded("é\r\n", "utf-8")
    assert decode("é".encode("utf-16"), encoding="auto") == Decoded("é", "utf-16")
    assert decode(b"\xe9", encoding="latin-1") == Decoded("é", "latin-1")
    assert decode(JAPANESE.encode("iso2022_jp"), encoding="auto") == Decoded(JAPANESE, "iso2022_jp_ext", 1.0)


def test_damaged_utf8_is_not_taken_for_another_encoding() -> None:
    content = SPANISH.encode().replace("ó".encode(), b"\xf3", 1)

    with pytest.raises(RecordError, match="byte 0xf3 at offset 21") as caught:
        decode(content, encoding="auto")

    assert caught.value.code == "invalid_utf8"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (RUSSIAN, "iso8859-5"),
        (RUSSIAN, "cp866"),
        (GREEK, "cp1253"),
        (CHINESE, "gb18030"),
        (TAIWANESE, "big5"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc_jp"),
        (KOREAN, "cp949"),
        (HEBREW, "cp1255"),
        (ARABIC, "cp1256"),
        (THAI, "cp874"),
        (TURKISH, "cp1254"),
        (POLISH, "cp1250"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "{english}{}", "{}{english}", "{markup}{}{markup}"])
def test_guess_is_made_by_letters_outside_of_ascii_and_markup(text: str, encoding: str, around: str) -> None:
    markup = '<div class="menu item"><a href="http://example.org/a/long/path.html" title="home">x</a></div>' * 30
    page = around.format(text, english="The minister met the delegation in London. " * 50, markup=markup)

    decoded = decode(page.encode(encoding), encoding="auto")

    assert decoded.text == page
    assert decoded.confidence is not None


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Москва", "cp1251"),
        ("Москва", "koi8-r"),
        ("東京", "cp932"),
        ("東京", "euc_jp"),
        ("台北", "big5"),
        ("서울", "cp949"),
        ("Αθήνα", "cp1253"),
        ("กรุงเทพ", "cp874"),
        ("Łódź", "cp1250"),
    ],
)
def test_text_too_short_to_be_sure_of_is_a_dead_letter_instead_of_other_letters(text: str, encoding: str) -> None:
    for content in (text, f"The minister met the delegation in {text}."):
        with pytest.raises(RecordError, match=NEITHER) as caught:
            decode(content.encode(encoding), encoding="auto")
        assert caught.value.code == "invalid_encoding"


@pytest.mark.parametrize(
    "content",
    [
        (RUSSIAN * 3).encode("cp1251") + b" \x98",
        (GREEK * 3).encode("cp1253") + b" \xff",
        (SPANISH * 9).encode("cp1252") + b" \x81",
        (RUSSIAN * 5).encode("cp1251") + b"\n" + (RUSSIAN * 4).encode("koi8-r"),
        bytes(range(256)) * 8,
    ],
)
def test_damage_or_a_second_encoding_does_not_make_another_one_likely(content: bytes) -> None:
    with pytest.raises(RecordError, match=NEITHER):
        decode(content, encoding="auto")


@pytest.mark.parametrize("part", [b"<!--", b"<script ", b"< ", b"<" + b"a" * 1000, b"\xe9" + b"a" * 49])
def test_hostile_markup_is_guessed_in_linear_time(part: bytes) -> None:
    content = part * (2_000_000 // len(part)) + b"<" + (RUSSIAN * 50).encode("cp1251")

    with suppress(RecordError):
        decode(content, encoding="auto")


@pytest.mark.parametrize(("size", "bad", "few"), [(10, 1, True), (100, 3, True), (1000, 10, True), (10, 4, False)])
def test_a_few_invalid_bytes_are_replaced_and_counted_where_that_is_asked_for(size: int, bad: int, few: bool) -> None:
    content = ("\ufffd" + "é" * (size - bad)).encode() + b"\xff" * bad

    with pytest.raises(RecordError, match="got byte 0xff") as caught:
        decode(content, encoding="utf-8")
    assert caught.value.code == "invalid_utf8"
    for encoding in ("utf-8", "auto") if few else ():
        decoded = decode(content, encoding=encoding, errors="replace")
        assert (decoded.text, decoded.replaced) == ("\ufffd" + "é" * (size - bad) + "\ufffd" * bad, bad)
    if not few:
        with pytest.raises(RecordError, match=f"and {bad} such places in all, which is more than a few"):
            decode(content, encoding="utf-8", errors="replace")


@pytest.mark.parametrize(
    ("label", "content", "text"),
    [
        ("gb2312", "朱镕基".encode("gbk") + b"\x80", "朱镕基€"),
        ("Shift_JIS", "㈱①髙".encode("cp932"), "㈱①髙"),
        ("euc-kr", "찦차".encode("cp949"), "찦차"),
        ("euc-jp", b"\xad\xa1\xad\xea", "①㈱"),
        ("big5", "峯".encode("big5hkscs") + b"\xa3\xe1", "峯€"),
        ("iso-8859-1", b"\x93Zo\xeb\x94", "“Zoë”"),
        ("latin-1", b"\x80", "€"),
        ("us-ascii", b"caf\xe9", "café"),
        ("iso-8859-9", b"\x93\xddstanbul\x94", "“İstanbul”"),
        ("tis-620", b"\xa1\x85", "ก…"),
        ("x-mac-cyrillic", b"\x8c\xee", "Мо"),
        ("iso-8859-8-i", b"\xe9", "י"),
        (" UTF8 ", "é".encode(), "é"),
        ("utf-16", "é".encode("utf-16"), "é"),
        ("cp850", b"\x82", "é"),
        ("hz-gb-2312", b"~{VPND~}", "中文"),
    ],
)
def test_label_means_what_browsers_take_it_for(label: str, content: bytes, text: str) -> None:
    encoding = ReaderConfig(encoding=label).encoding

    assert decode(content, encoding=encoding) == Decoded(text, encoding)


@pytest.mark.parametrize("label", ["hex", "rot13", "no-such", "", "x-user-defined"])
def test_label_that_nobody_knows_is_refused(label: str) -> None:
    with pytest.raises(ConfigError, match=r"encoding: .*expected auto or an encoding"):
        ReaderConfig.from_mapping({"encoding": label})


@pytest.mark.parametrize(
    ("content", "encoding", "expected"),
    [
        (b"\xef\xbb\xbfText\xef\xbb\xbf", "utf-8", "Text\ufeff"),
        ("\ufeffText".encode("utf-16-le"), "utf-16-le", "Text"),
        ("Caf\u00e9 \U0001f600".encode("utf-16"), "utf-16", "Caf\u00e9 \U0001f600"),
        ("Caf\u00e9 \U0001f600".encode("utf-32"), "auto", "Caf\u00e9 \U0001f600"),
        ("Caf\u00e9".encode("utf-32"), "utf-8", "set reader.encoding to utf-32 or auto"),
        (b"caf\xe9 noir", "utf-8", "byte 0xe9 at offset 3 of the record"),
        (b"\xff\xfe\x00", "auto", "expected utf-16, got byte 0x00 at offset 2"),
        (b"+2AA-", "utf-7", "surrogates not allowed"),  # which the codec accepts
    ],
)
def test_text_is_without_its_byte_order_mark_and_whole(
    tmp_path: Path, content: bytes, encoding: str, expected: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content)

    [found] = read(tmp_path / "a.txt", encoding=encoding)

    if isinstance(found, Document):
        assert found.text == expected
    else:
        assert (found.doc_id, found.position) == ("a.txt", 0)
        assert expected in found.message


def with_window(content: bytes, log: int) -> bytes:
    """Compress as ``zstd --long=LOG`` does of a pipe, whose frame says the window and not the size."""
    parameters = {CompressionParameter.window_log: log, CompressionParameter.enable_long_distance_matching: 1}
    compressor = ZstdCompressor(options={int(key): value for key, value in parameters.items()})
    return compressor.compress(content[:10]) + compressor.compress(content[10:]) + compressor.flush()


NOTE = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"  # a frame to skip


def test_zstd_that_cannot_be_unpacked_is_a_dead_letter_that_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    frame = bytearray(with_window(CONTENT, 31))
    frame[5] += 1 << 3  # the exponent in the byte of the window
    path.write_bytes(frame)
    assert outcomes(path) == ["corrupt_stream"]
    assert "memory" in last_message(path)
    dictionary = train_dict([line.encode() for line in LINES], 2000)
    path.write_bytes(compress(CONTENT, zstd_dict=dictionary))
    assert "Dictionary" in last_message(path)


@pytest.mark.parametrize(
    "stored",
    [
        *(with_window(CONTENT, log) for log in (27, 28, 31)),
        NOTE + compress(CONTENT[:5000]) + NOTE + compress(b"") + compress(CONTENT[5000:]) + NOTE,
    ],
)
def test_zstd_with_a_long_window_or_several_frames_is_read(tmp_path: Path, stored: bytes) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(stored)

    assert outcomes(tmp_path / "a.jsonl.zst") == IDS


FLUSHING = zlib.compressobj(level=0, wbits=31)
FLUSHED = b"".join(FLUSHING.compress(f"{line}\n".encode()) + FLUSHING.flush(zlib.Z_FULL_FLUSH) for line in LINES)


@pytest.mark.parametrize(
    ("stored", "lines", "error", "says"),
    [
        (PACKED + bytes(1), 300, "", ""),
        (bytes(100_000).join((gzipped(CONTENT[:5000]), gzipped(CONTENT[5000:]))) + bytes(512), 300, "", ""),
        (FLUSHED + FLUSHING.flush(), 300, "", ""),
        (gzipped(b""), 0, "", ""),
        (PACKED + b"\n", 300, "corrupt_stream", "Not a gzipped file"),
        (PACKED + bytes(10) + b"x" * 5000, 300, "corrupt_stream", "Not a gzipped file"),
        (PACKED[:-6] + b"\x00" * 6, 300, "corrupt_stream", "CRC"),
        (PACKED[:-8], 300, "truncated_stream", "fetch it again"),
        (PACKED + PACKED[:5], 300, "truncated_stream", "fetch it again"),
        (CONTENT, 0, "corrupt_stream", "rename the file if it is not compressed"),
        (b"", 0, "truncated_stream", "the file is empty"),
    ],
)
def test_odd_gzip_files_lose_no_data_in_silence(
    tmp_path: Path, stored: bytes, lines: int, error: str, says: str
) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(stored)

    assert outcomes(path) == IDS[:lines] + ([error] if error else [])
    if error:
        assert says in last_message(path)


MANY = b"".join(b'{"text": "%s"}\n' % (str(number * 7919).encode() * 9) for number in range(4000))


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize(("kept", "error"), [*((k, "truncated") for k in (0.05, 0.5, 0.999)), (0.3, "corrupt")])
def test_broken_stream_yields_the_lines_before_its_fault_and_one_dead_letter(
    tmp_path: Path, suffix: str, kept: float, error: str
) -> None:
    stored = bytearray(COMPRESSORS[suffix](MANY))
    place = int(len(stored) * kept)
    if error == "truncated":
        del stored[place:]
    else:
        stored[place] ^= 0x55
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(stored)

    *whole, cut = read(path)

    assert [record.doc_id for record in whole] == [
        f"{path.name}:{match.start()}" for match in islice(re.finditer(rb"(?m)^.", MANY), len(whole))
    ]
    check_pieces(path, [*whole, cut], ReaderConfig(), step=999)
    assert isinstance(cut, DeadLetter)
    if error == "truncated" or suffix == ".gz":
        assert (cut.error, MANY[cut.position - 1 : cut.position]) == (f"{error}_stream", b"\n" if whole else b"")
        assert "breaks off at byte" in cut.message
    if suffix == ".gz":
        # Nothing that the file holds is given up: deflate yields all but a little of it.
        assert len(whole) >= int(4000 * kept * 0.75)


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("format", ["txt", "jsonl"])
def test_bomb_is_a_dead_letter_with_its_place(
    tmp_path: Path, format: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ALWAYS_UNPACKED_BYTES", 100_000)
    line = b'{"id": "first", "text": "Ada met Charles."}\n'
    path = tmp_path / f"a.{format}{suffix}"
    path.write_bytes(COMPRESSORS[suffix](line + b" " * 1_000_000))
    (tmp_path / f"b.txt{suffix}").write_bytes(COMPRESSORS[suffix](b" " * 100_000))

    assert outcomes(tmp_path / f"b.txt{suffix}") == [f"b.txt{suffix}"]
    *before, found = read(path)

    assert isinstance(found, DeadLetter)
    assert found.error == "unpacks_too_far"
    assert (len(before), found.position) == ((1, len(line)) if format == "jsonl" else (0, 0))
    assert str(path) in found.message
    assert "check the file, and unpack it" in found.message
    check_pieces(path, [*before, found], ReaderConfig())


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS])
def test_line_that_is_too_long_costs_only_itself(tmp_path: Path, suffix: str) -> None:
    long = json.dumps({"id": "long", "text": "x" * 3_000_000}).encode()
    content = b'{"id": "a", "text": "one"}\n' + long + b'\n{"id": "b", "text": "two"}\n'
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESSORS.get(suffix, bytes)(content))

    assert outcomes(path, max_record_bytes=1000) == ["a", "record_too_large", "b"]
    assert outcomes(path, max_record_bytes=len(long) + 1) == ["a", "long", "b"]


READ_WITH_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
sys.path.insert(0, "tests/support")
from concord_testing.broken_files import read_all
from concord.pipeline.config import ReaderConfig
import concord.pipeline.readers.files
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 1_000_000_000,) * 2)
for name in sys.argv[1:]:
    [found] = read_all(Path(name), Path(name).suffixes[0][1:].replace("txt", "text"), ReaderConfig())
    print(found.error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS") or sys.platform != "linux", reason="needs /proc")
def test_small_bombs_of_every_format_need_little_memory(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(10_000_000)) * 120
    names = [tmp_path / f"bomb.{suffix}.gz" for suffix in ("txt", "jsonl", "csv")]
    for name in names:
        name.write_bytes(bomb)

    done = subprocess.run(
        [sys.executable, "-c", READ_WITH_LITTLE_MEMORY, *map(str, names)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["unpacks_too_far"] * 3, done.stderr


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff", b""])
def test_json_lines_in_utf_16_are_read_in_any_pieces(tmp_path: Path, mark: bytes) -> None:
    encoding = "utf-16-be" if mark == b"\xfe\xff" else "utf-16-le"
    path = tmp_path / "a.jsonl"
    path.write_bytes(mark + CONTENT.decode().encode(encoding))
    config = ReaderConfig() if mark else ReaderConfig(encoding=encoding)

    found = read_all(path, "jsonl", config)

    assert [record.doc_id for record in found] == IDS
    assert isinstance(found[0], Document)
    assert (found[0].text, found[0].encoding) == ("Zoë met Bob 0 times.", "utf-16" if mark else encoding)
    check_pieces(path, found, config, step=70)


def test_invalid_utf_16_costs_only_its_line(tmp_path: Path) -> None:
    lines = [b'{"id": "a", "text": "one"}', b'{"text": "t\x00\xd8wo"}', b'{"id": "c", "text": "three"}']
    halves = [line.decode("latin-1").encode("utf-16-le").replace(b"\x00\x00\xd8\x00", b"\x00\xd8") for line in lines]
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe" + b"\n\x00".join(halves) + b"\n\x00" + b"{")

    assert outcomes(tmp_path / "a.jsonl") == ["a", "invalid_utf8", "c", "invalid_utf8"]


def test_lines_end_in_carriage_returns_where_the_first_one_does(tmp_path: Path) -> None:
    lines = [json.dumps({"id": name, "text": "x" * size}) for name, size in (("a", 9), ("b", 300_000), ("c", 9))]
    (tmp_path / "a.jsonl").write_text("\r".join(lines))
    (tmp_path / "b.jsonl").write_bytes(b'{"id": "a", "text": "one"}\n{"id": "b",\r"text": "two"}\n')

    assert outcomes(tmp_path / "a.jsonl") == ["a", "b", "c"]
    assert outcomes(tmp_path / "a.jsonl", max_record_bytes=1000) == ["a", "record_too_large", "c"]
    assert outcomes(tmp_path / "b.jsonl") == ["a", "b"]
