"""The Arrow schemas of the output tables and their version.

Every field has a one-line description. The schema metadata of a table contains the version, the signatures of parser
and tagger, how the tagger's probabilities are calibrated, and the unit of offsets.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

SCHEMA_VERSION = 13
OFFSET_UNIT = "code points of the raw text, half-open"
ANNOTATED = "annotated"
CANDIDATE = "candidate"
"""The source of a row of entities that is none; the rows of a document end with them."""

UNCALIBRATED = "none"


def _field(name: str, kind: pa.DataType, description: str, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"description": description})


def _rows(*fields: pa.Field) -> pa.DataType:
    return pa.list_(pa.struct(list(fields)))


def _schema(*fields: pa.Field) -> pa.Schema:
    metadata = {"concord.schema_version": str(SCHEMA_VERSION), "concord.offset_unit": OFFSET_UNIT}
    return pa.schema(fields, metadata=metadata)


POSITION = (
    "jsonl, csv, tsv, mbox: byte in the decompressed file; warc: byte in the file; parquet, arrow: row; else 0, or the "
    "number of an attachment"
)
_DOC_ID = _field("doc_id", pa.string(), "the document's name, unique in the collection")
_SENT_ID = _field("sent_id", pa.int32(), "0-based number of the sentence within its document")
_START = _field("start_char", pa.int32(), "offset of the first code point")
_END = _field("end_char", pa.int32(), "offset behind the last code point")

DOCUMENTS = _schema(
    _DOC_ID,
    _field("source_uri", pa.string(), "absolute path of the input file"),
    _field("source_position", pa.int64(), POSITION),
    _field("text_sha256", pa.string(), "SHA-256 of the raw text in UTF-8, hex"),
    _field("n_chars", pa.int32(), "code points of the raw text"),
    _field("n_sentences", pa.int32(), "rows in sentences"),
    _field("n_tokens", pa.int32(), "rows in tokens"),
    _field("n_entities", pa.int32(), "rows in entities, without candidates"),
    _field("n_candidates", pa.int32(), "rows in entities whose source is candidate; they follow the others"),
    _field("parser", pa.string(), "signature of the parser that made sentences, tokens and trees"),
    _field("tagger", pa.string(), "signature of the tagger that made the entities"),
    _field("status", pa.string(), "annotated; documents that could not be are in errors"),
    _field("meta", pa.string(), "the record's other fields as one JSON object", nullable=True),
    _field(
        "meta_nulls",
        pa.string(),
        "names of the fields that could not be stored and are null in meta, as a JSON list; null where there are none",
        nullable=True,
    ),
    _field(
        "language", pa.string(), "language of most of the text, by its code in ISO 639; null if unsure", nullable=True
    ),
    _field("language_confidence", pa.float32(), "how sure the language is, 0..1; null with it", nullable=True),
    _field(
        "encoding", pa.string(), "encoding in which the file was read; null where the format leaves none", nullable=True
    ),
    _field(
        "encoding_confidence",
        pa.float32(),
        "how sure the guess of the encoding is, 0..1; null where it was not guessed",
        nullable=True,
    ),
    _field(
        "replaced",
        pa.int32(),
        "characters U+FFFD that stand for bytes which are not of the encoding (reader.errors: replace)",
    ),
    _field(
        "parts",
        _rows(
            _field("kind", pa.string(), "page, chapter or the like"),
            _field("label", pa.string(), "page number or title"),
            _field("start", pa.int32(), "offset at which it begins"),
        ),
        "where pages, chapters or the like begin, in order; null where the file's own text is annotated",
        nullable=True,
    ),
    _field(
        "lost",
        _rows(
            _field("number", pa.int32(), "of the page, chapter or the like, from 1; 0 for the whole document"),
            _field("error", pa.string(), "short stable reason"),
            _field("message", pa.string(), "what was expected, what came"),
        ),
        "pages, chapters or the like that could not be read; no_text where the document has no word; null if nothing "
        "is lost",
        nullable=True,
    ),
    _field(
        "source_sha256",
        pa.string(),
        "SHA-256 of the bytes that the text was extracted from, hex; null with parts",
        nullable=True,
    ),
    _field(
        "raw_text",
        pa.string(),
        "the raw text; null unless output.keep_text is set, or the text was extracted (parts is not null)",
        nullable=True,
    ),
)

SENTENCES = _schema(
    _DOC_ID,
    _SENT_ID,
    _START,
    _END,
    _field("n_tokens", pa.int32(), "rows in tokens"),
    _field("continues", pa.bool_(), "true for a further piece of an over-long sentence; each piece has its own root"),
)

TOKENS = _schema(
    _DOC_ID,
    _SENT_ID,
    _field("token_id", pa.int32(), "1-based number of the word within its sentence, as in CoNLL-U"),
    _START,
    _END,
    _field("text", pa.string(), "the slice of the raw text; words of one multi-word token may share it"),
    _field("word", pa.string(), "the syntactic word's form, without invisible characters and line ends"),
    _field(
        "lemma",
        pa.string(),
        "lemma, where the parser knows it; this and the next three are null in a document without tags",
        nullable=True,
    ),
    _field("upos", pa.string(), "universal part of speech", nullable=True),
    _field(
        "xpos", pa.string(), "part of speech of the language's own tag set, where the parser has one", nullable=True
    ),
    _field("feats", pa.string(), "morphological features, as in CoNLL-U", nullable=True),
    _field("head", pa.int32(), "token_id of the head, 0 for the root; null in a document without trees", nullable=True),
    _field("deprel", pa.string(), "relation to the head; null in a document without trees", nullable=True),
    _field(
        "draft_ner",
        pa.string(),
        "stage one's label in BIO2; equals ner for a tagger of one stage, but for corrected words",
    ),
    _field("ner", pa.string(), "final label in BIO2; a sentence that continues another may begin with I-"),
    _field(
        "ner_prob",
        pa.float32(),
        "probability of the label by the stage that gave it, 0..1; concord.calibration in the table's metadata says "
        "how it is calibrated; null if the tagger gives none",
        nullable=True,
    ),
    _field(
        "uncertainty",
        pa.float32(),
        "entropy of stage one in nats; null if the tagger has no probabilities",
        nullable=True,
    ),
    _field("refined", pa.bool_(), "true where stage two gave the label"),
)

ENTITIES = _schema(
    _DOC_ID,
    _field("entity_id", pa.int32(), "0-based number of the entity within its document"),
    _field("sent_id", pa.int32(), "sentence in which the entity begins"),
    _START,
    _END,
    _field("start_token", pa.int32(), "token_id of the first word"),
    _field(
        "end_token",
        pa.int32(),
        "token_id of the last word; counts on past the sentence's n_tokens where the entity runs into a piece that "
        "continues it",
    ),
    _field("text", pa.string(), "the slice of the raw text"),
    _field(
        "name",
        pa.string(),
        "text without invisible characters and the line ends within words, with every run of white space as one space",
    ),
    _field("label", pa.string(), "entity type"),
    _field(
        "canonical", pa.string(), "the fullest name that the document has for whom or what is named: John F. Kennedy"
    ),
    _field(
        "identity",
        pa.int32(),
        "number within the document of whom or what is named: the same for Kennedy, counted from 0; of a candidate its "
        "entity_id",
    ),
    _field(
        "value",
        pa.string(),
        "normal form of a clear DATE (ISO 8601: 1945, 1945-05, 1945-05-08), MONEY (3500000 USD), PERCENT (12.5%), "
        "or CARDINAL (1200) in English; null if the words are not clear, and for other labels",
        nullable=True,
    ),
    _field(
        "confidence",
        pa.float32(),
        "probability that just these words are an entity of this label, 0..1; concord.calibration in the table's "
        "metadata says how it is calibrated; of a candidate the lowest of its words' labels, not calibrated; null if "
        "the tagger gives none",
        nullable=True,
    ),
    _field("uncertainty", pa.float32(), "largest uncertainty of its words in nats, or null", nullable=True),
    _field("refined", pa.bool_(), "true where stage two gave the label of any of its words"),
    _field(
        "source",
        pa.string(),
        "where the label comes from: model; terms where these words are a match of tagger.terms with this label; "
        "corrected where a person accepted, changed or added the entity; or candidate for a span that is no entity, "
        "but shown because it may be one that was missed (output.candidates)",
    ),
)

ERRORS = _schema(
    _field("doc_id", pa.string(), "the document's name, where it could be read", nullable=True),
    _field("source_uri", pa.string(), "absolute path of the input file"),
    _field("position", pa.int64(), POSITION),
    _field("stage", pa.string(), "read, parse, tag or write"),
    _field("error", pa.string(), "short stable reason"),
    _field("message", pa.string(), "where, what was expected, what came"),
    _field("attempts", pa.int32(), "how often a retry has been tried"),
    _field(
        "page",
        pa.int32(),
        "number of a page, chapter or the like that could not be read of a document that was annotated; null for a "
        "dead letter, which stands for a whole record",
        nullable=True,
    ),
)

NAMES = _schema(
    _field("name_id", pa.string(), "16 hexadecimal digits; a name keeps it in every generation"),
    _field("canonical", pa.string(), "the most frequent canonical name of its entities"),
    _field("label", pa.string(), "entity type"),
    _field("mentions", pa.int64(), "rows in entities, without candidates"),
    _field("documents", pa.int64(), "documents that have one"),
    _field("first_doc_id", pa.string(), "the first of them, in the order of the table documents"),
    _field("last_doc_id", pa.string(), "the last of them"),
    _field("variants", pa.list_(pa.string()), "its names as they are written, the most frequent first"),
)

TableName = Literal["documents", "sentences", "tokens", "entities", "errors"]
SHARD_TABLES: tuple[TableName, ...] = get_args(TableName)
"""The tables of which shards have parts; names has one part for all of them."""
DOCUMENT_TABLES: tuple[str, ...] = SHARD_TABLES[:4]
"""Those whose rows belong to documents: every shard has a part of them, and one of errors only where it has any."""

SCHEMAS: dict[str, pa.Schema] = {
    "documents": DOCUMENTS,
    "sentences": SENTENCES,
    "tokens": TOKENS,
    "entities": ENTITIES,
    "errors": ERRORS,
    "names": NAMES,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What the tables of a run are signed with.

    Attributes:
        parser, tagger: their signatures.
        calibration: the calibration methods of the tagger's probabilities, or ``UNCALIBRATED``.
    """

    parser: str = ""
    tagger: str = ""
    calibration: str = UNCALIBRATED


UNSIGNED = Signature()


def signed_schema(name: str, signature: Signature) -> pa.Schema:
    """Return a table's schema with a signature in its metadata."""
    signed = {
        "concord.parser": signature.parser,
        "concord.tagger": signature.tagger,
        "concord.calibration": signature.calibration,
    }
    return SCHEMAS[name].with_metadata({**SCHEMAS[name].metadata, **signed})
