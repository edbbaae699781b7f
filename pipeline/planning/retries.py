"""Dead letters that are tried again, and what a retry leaves alone."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain

from concord.pipeline.output.dead_letters import ExistingDeadLetter
from concord.pipeline.planning.existing_output import ExistingOutput
from concord.pipeline.readers.fields import DUPLICATE_ID


@dataclass(frozen=True, kw_only=True, slots=True)
class Retries:
    """Which dead letters are tried again; a record's place is its file and position.

    Attributes:
        places: of those tried again, but for files that have changed.
        skipped: places of those that stay as they are.
        reserved: ids of these.
        denied: places of records tried again whose id belongs to a document.
        changed: files that hold dead letters to try again and have changed.
        attempts: how often each has then been tried again, by file and position; by file and id in changed files,
            where positions mean nothing.
    """

    places: frozenset[tuple[str, int]] = frozenset()
    skipped: frozenset[tuple[str, int]] = frozenset()
    reserved: frozenset[str] = frozenset()
    denied: frozenset[tuple[str, int]] = frozenset()
    changed: frozenset[str] = frozenset()
    attempts: Mapping[tuple[str, int | str | None], int]

    def attempts_of(self, uri: str, position: int, doc_id: str | None) -> int:
        """Return how often a record has been tried again, this time included; 0 if it was no such dead letter."""
        return self.attempts.get((uri, doc_id if uri in self.changed else position), 0)


NO_RETRIES = Retries(attempts={})


def choose_retries(
    existing: ExistingOutput, chosen: Collection[ExistingDeadLetter], *, unchanged: Collection[str]
) -> Retries:
    """Return what follows from trying some dead letters again and leaving all others as they are.

    In a file that has changed, every record without an existing document is tried again, because it is unknown which
    dead letter belongs to which record.

    Args:
        unchanged: the files with chosen dead letters whose content is as it was annotated.
    """
    changed = frozenset(letter.source_uri for letter in chosen) - set(unchanged)
    in_unchanged = [letter for letter in chosen if letter.source_uri not in changed]
    places = frozenset(map(_place, in_unchanged))
    skipped = [
        letter
        for letter in chain.from_iterable(existing.dead_letters.values())
        if letter.source_uri not in changed and _place(letter) not in places
    ]
    # An existing document keeps its id, even where its file comes later.
    ids = {doc_id for doc_id, document in existing.documents.items() if document.source_uri in unchanged}
    attempts: dict[tuple[str, int | str | None], int] = {}
    for letter in chosen:
        mark = letter.doc_id if letter.source_uri in changed else letter.position
        if mark is not None:
            attempts[letter.source_uri, mark] = letter.attempts + 1
    return Retries(
        places=places,
        skipped=frozenset(map(_place, skipped)),
        reserved=frozenset(
            letter.doc_id for letter in skipped if letter.doc_id is not None and letter.error != DUPLICATE_ID
        ),
        denied=frozenset(_place(letter) for letter in in_unchanged if letter.doc_id in ids),
        changed=changed,
        attempts=attempts,
    )


def _place(letter: ExistingDeadLetter) -> tuple[str, int]:
    return letter.source_uri, letter.position
