"""Guesses of encodings: Western European unless the letters say otherwise, with an honest confidence."""

import pytest

from concord.pipeline.readers.encodings import Decoded, decode
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
        (POLISH, "cp1250"),
        (POLISH, "iso8859-2"),
        (CZECH, "cp1250"),
        (HUNGARIAN, "cp1250"),
        (TURKISH, "cp1254"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (GREEK, "cp1253"),
        (CHINESE, "gb18030"),
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


def test_byte_that_the_likeliest_encoding_lacks_leaves_the_next() -> None:
    content = (SPANISH * 2000).encode("cp1252") + b"\x81"

    assert decode(content, encoding="auto").encoding == "iso8859-1"
