"""Guesses of encodings: Western European unless the letters say otherwise, with an honest confidence."""

from contextlib import suppress

import pytest

from concord.models.errors import ConfigError
from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.files import Decoded, decode
from concord.pipeline.readers.records import RecordError

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


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Muñoz", "cp1252"),
        ("Muñoz", "iso8859-1"),
        ("é", "cp1252"),
        ("été", "cp1252"),
        ("Åsa Bergström", "cp1252"),
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


def test_what_is_known_has_no_confidence() -> None:
    assert decode(b"plain", encoding="auto") == Decoded("plain", "utf-8")
    assert decode("\ufeffé\r\n".encode(), encoding="auto") == Decoded("é\r\n", "utf-8")
    assert decode("é".encode("utf-16"), encoding="auto") == Decoded("é", "utf-16")
    assert decode(b"\xe9", encoding="latin-1") == Decoded("é", "latin-1")


def test_long_text_is_guessed_from_where_it_is_not_ascii() -> None:
    content = b"plain words " * 100_000 + SPANISH.encode("cp1252") + b" plain words" * 100_000

    decoded = decode(content, encoding="auto")

    assert decoded.encoding == "cp1252"
    assert SPANISH in decoded.text


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


def test_letters_within_markup_decide_nothing() -> None:
    page = '<a title="Zoë Muñoz à Besançon">' * 20 + RUSSIAN

    assert decode(page.encode("cp1251", "replace"), encoding="auto").text.endswith(RUSSIAN)


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
        with pytest.raises(RecordError, match="expected utf-8 or letters that show an encoding, got neither") as caught:
            decode(content.encode(encoding), encoding="auto")
        assert caught.value.code == "invalid_encoding"


@pytest.mark.parametrize(
    ("text", "encoding", "bad"),
    [(RUSSIAN * 3, "cp1251", b"\x98"), (GREEK * 3, "cp1253", b"\xff"), (SPANISH * 9, "cp1252", b"\x81")],
)
def test_damage_does_not_make_another_encoding_likely(text: str, encoding: str, bad: bytes) -> None:
    with pytest.raises(RecordError, match="expected utf-8 or letters that show an encoding, got neither"):
        decode(text.encode(encoding) + b" " + bad, encoding="auto")


def test_file_in_two_encodings_is_a_dead_letter() -> None:
    content = (RUSSIAN * 5).encode("cp1251") + b"\n" + (RUSSIAN * 4).encode("koi8-r")

    with pytest.raises(RecordError, match="expected utf-8 or letters that show an encoding, got neither"):
        decode(content, encoding="auto")


@pytest.mark.parametrize("part", [b"<!--", b"<script ", b"< ", b"<" + b"a" * 1000, b"\xe9" + b"a" * 49])
def test_hostile_markup_is_guessed_in_linear_time(part: bytes) -> None:
    content = part * (2_000_000 // len(part)) + b"<" + (RUSSIAN * 50).encode("cp1251")

    with suppress(RecordError):
        decode(content, encoding="auto")


def test_seven_bit_japanese_is_recognized() -> None:
    content = JAPANESE.encode("iso2022_jp")

    assert decode(content, encoding="auto")[:3] == (JAPANESE, "iso2022_jp_ext", 1.0)


@pytest.mark.parametrize(("size", "bad"), [(10, 1), (100, 3), (1000, 10)])
def test_a_few_invalid_bytes_are_replaced_and_counted_where_that_is_asked_for(size: int, bad: int) -> None:
    content = ("\ufffd" + "é" * (size - bad)).encode() + b"\xff" * bad

    with pytest.raises(RecordError, match="got byte 0xff"):
        decode(content, encoding="utf-8")
    for encoding in ("utf-8", "auto"):
        decoded = decode(content, encoding=encoding, errors="replace")
        assert decoded.text == "\ufffd" + "é" * (size - bad) + "\ufffd" * bad
        assert decoded.replaced == bad


@pytest.mark.parametrize(("size", "bad"), [(10, 4), (1000, 25)])
def test_more_than_a_few_invalid_bytes_are_a_dead_letter_all_the_same(size: int, bad: int) -> None:
    content = ("é" * size).encode() + b"\xff" * bad

    with pytest.raises(RecordError, match=f"and {bad} such places in all, which is more than a few") as caught:
        decode(content, encoding="utf-8", errors="replace")
    assert caught.value.code == "invalid_utf8"


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
