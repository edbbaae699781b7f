"""The language of texts: codes where they are sure, nothing where they are not."""

import errno
import os
import tempfile

import pytest

from concord.pipeline.names import language
from concord.pipeline.names.language import language_of

pytestmark = pytest.mark.slow

TEXTS = {
    "en": "The committee will meet on Thursday, and every member of it has read what the mayor wrote last week.",
    "pt": "A comissão vai reunir-se na quinta-feira, e todos os membros já leram o que a presidente escreveu.",
    "sv": "Kommittén sammanträder på torsdag, och alla ledamöter har läst vad borgmästaren skrev förra veckan.",
    "sk": "Výbor sa zíde vo štvrtok a všetci jeho členovia už čítali, čo minulý týždeň napísala primátorka.",
    "el": "Η επιτροπή θα συνεδριάσει την Πέμπτη και όλα τα μέλη της διάβασαν τι έγραψε η δήμαρχος.",
    "he": "הוועדה תתכנס ביום חמישי, וכל החברים כבר קראו את מה שכתבה ראשת העיר בשבוע שעבר.",
}


@pytest.mark.parametrize("code", TEXTS)
def test_a_text_of_one_language_is_known(code: str) -> None:
    found = language_of(TEXTS[code])
    assert found is not None
    assert found.code == code
    assert 0.9 <= found.confidence <= 1


@pytest.mark.parametrize("text", ["", "  \n", "1984", "Paris", "?!", "https://example.org/a/b", "OK"])
def test_nothing_is_said_of_a_text_that_may_be_of_any_language(text: str) -> None:
    assert language_of(text) is None


def test_a_long_text_has_the_language_of_most_of_it() -> None:
    found = language_of(TEXTS["pt"] + " " + 900 * (TEXTS["sv"] + " "))
    assert found is not None
    assert found.code == "sv"


def test_the_model_is_read_without_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
    language.load_languages.cache_clear()
    language.load_languages()
