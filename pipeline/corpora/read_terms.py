"""Read lists of terms: one JSON object a line, in the form of spaCy's EntityRuler."""

from pathlib import Path

import orjson

from concord.models.errors import ConfigError
from concord.models.taggers.base import Tagger
from concord.models.terms import Term, TermMatcher
from concord.pipeline.corpora.corpus_format import numbered_lines
from concord.pipeline.errors import InputError
from concord.pipeline.storage.files import file_sha256


def read_terms(path: Path) -> TermMatcher:
    """Read a list of terms; empty lines are ignored, and ``.gz`` and ``.zst`` files are decompressed.

    Raises:
        InputError: with file and line, when the file cannot be read or a line is no term; when it has none.
    """
    terms = [_read_line(line, f"{path}:{number}") for number, line in numbered_lines(path) if line.strip()]
    if not terms:
        raise InputError(f'{path}: expected one term or more, such as {{"label": "DRUG", "pattern": "aspirin"}}')
    return TermMatcher(terms)


def read_terms_for(tagger: Tagger, path: str | None, *, digest: str | None = None) -> TermMatcher | None:
    """Read the list of terms that a tagger is run with; None without one.

    Args:
        digest: the SHA-256 that the file has according to the plan of a run.

    Raises:
        InputError: as ``read_terms``; when the file is another one, or has labels that the tagger does not know.
    """
    if path is None:
        return None
    if digest is not None and file_sha256(Path(path)) != digest:
        raise InputError(f"{path}: changed since the run was planned; run the command again")
    terms = read_terms(Path(path))
    if unknown := sorted(terms.labels - set(tagger.entity_types)):
        raise InputError(
            f"{path}: expected labels that the tagger knows ({', '.join(tagger.entity_types)}), got "
            f"{', '.join(unknown)}; leave these terms out, or train a tagger with them (concord train, data.terms)"
        )
    return terms


def _read_line(line: str, where: str) -> Term:
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{where}: expected a JSON object, got {line[:80]!r}: {error}") from error
    try:
        return Term.from_mapping(values, where=where)
    except ConfigError as error:
        raise InputError(str(error)) from error
