"""What decides whether a document must be done again."""

from hashlib import sha256
from typing import Any

import orjson

from models.config import Config
from pipeline.config import AnnotateConfig
from pipeline.records import Document


class ComponentIdentity(Config):
    """Which parser or tagger did the work."""

    name: str
    version: str | None = None
    """The version in the registry or of the package, if it has one."""
    digest: str
    """Sha256 in hex over the component's weight files and configuration."""


def digest_of(value: Any) -> str:
    """Give the sha256, in hex, of a plain value's canonical JSON text."""
    return sha256(canonical_json(value)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Give the one JSON text of a plain value: sorted keys, no white space."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def deciding_config(config: AnnotateConfig) -> dict[str, Any]:
    """Give the part of a configuration that can change a byte of the output.

    Left out are the output's own place, the executor (its threads stand in the plan), what only decides the
    exit code or the report, where parser and tagger lie (their digests stand for them), and whether they may differ
    in whose trees they know.
    """
    values = config.model_dump(mode="json", exclude={"output", "executor", "max_dead_letters", "report"})
    del values["planning"]["hash_with_ray_bytes"]
    del values["parser"]["directory"]
    del values["tagger"]["model"], values["tagger"]["accept_parser"]
    return values


def document_signature(
    document: Document, *, parser: str, tagger: str, schema_version: int, threads: int, config: AnnotateConfig
) -> str:
    """Give the sha256, in hex, of all that decides a document's rows besides its place in the input.

    How the input is cut into shards is left out: it changes labels only within the margin of rounding.

    Args:
        parser, tagger: the digests of their files.
    """
    deciding = deciding_config(config)
    return digest_of(
        {
            "doc_id": document.doc_id,
            "text": sha256(document.text.encode()).hexdigest(),
            "meta": document.meta,
            "parser": [parser, deciding["parser"]],
            "tagger": [tagger, deciding["tagger"]],
            "schema_version": schema_version,
            "threads": threads,
        }
    )
