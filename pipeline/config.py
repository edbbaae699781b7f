"""The configuration of an annotation job; conf/annotate/*.yaml map to AnnotateConfig key for key."""

import codecs
from typing import Annotated, Any, Literal

import webencodings
from pydantic import Field, ValidationInfo, field_validator

from concord.models.config import Affects, Config, flatten
from concord.models.data.outputs import PredictOptions

_SUPERSETS = {"gbk": "gb18030", "iso2022_jp": "iso2022_jp_ext"}
"""Codecs of Python that lack characters which browsers read, and those that have them."""


def codec_of(label: str) -> str | None:
    """Return the name of Python's codec for what browsers take a label for, or else for what Python does.

    A page in Latin-1 is read as Windows-1252, for example, and one in Shift_JIS as code page 932. None for a label that
    neither knows.
    """
    try:
        known = webencodings.lookup(label) or webencodings.lookup(codecs.lookup(label).name)
        # Browsers refuse 7-bit encodings of China and Korea. Python's utf-16 also heeds a byte order mark.
        if known is None or known.name in ("replacement", "x-user-defined") or label.lower() in ("utf-16", "utf16"):
            return _text_codec(label)
    except (LookupError, UnicodeError):
        return None
    name: str = known.codec_info.name
    return _SUPERSETS.get(name, name)


def _text_codec(label: str) -> str:
    """Return the name of a codec between bytes and text, which ``hex`` is not; raise LookupError if there is none."""
    "".encode(label)
    return codecs.lookup(label).name


Device = Literal["cpu", "cuda", "auto"]


class ReaderConfig(Config):
    """How records are read from the input."""

    format: str = "auto"
    """text, html, jsonl, csv, tsv, parquet, arrow, pdf, docx, odt, rtf, epub, eml, mbox, tei (ALTO and PAGE XML
    as well), warc, or the reader of another package. auto goes by the file name: .txt, .html/.htm, .jsonl/.ndjson,
    .csv, .tsv, .pdf, .docx, .odt, .rtf, .epub, .eml, .mbox, .xml/.tei, .warc, each also with .gz or .zst; .parquet;
    .arrow."""
    id_field: str = "id"
    """The field or column that holds a document's id; where it is absent, the record's place is the id."""
    text_field: str = "text"
    """The field or column that holds the text; all others go into `meta`."""
    encoding: str = "utf-8"
    """The encoding of text, html, csv, tsv and jsonl files, by a name that browsers or Python know; it means what
    browsers take it for: gb2312 is GB 18030, iso-8859-1 is Windows-1252. With `auto` it is guessed where the bytes are
    not UTF-8; jsonl is UTF-8 then."""
    errors: Literal["strict", "replace"] = "strict"
    """What becomes of bytes that are not of the encoding: with `strict` their record is a dead letter. With `replace` a
    few of them become U+FFFD and are counted: up to three in a record, or 1 % of its bytes if that is more."""
    main_content: bool = False
    """Of html files, read only the main content, without navigation, sidebars and footers; these are told apart by
    rules that may drop lists and captions of the article as well."""
    join_lines: bool = True
    """Of pdf files and of OCR in ALTO and PAGE XML, join the lines of a paragraph by a space, and the two halves of a
    word that is broken at the end of a line. Without, each line of the page is one of the text."""
    attachments: bool = False
    """Of eml and mbox files, read what messages attach as documents of their own; pictures, sounds and films are left
    out."""
    # Records beyond this bound are dead letters, which may be tried again with another.
    max_record_bytes: Annotated[int, Affects("nothing")] = Field(default=1 << 30, ge=1)
    """A record of more bytes, decompressed, becomes a dead letter, and is not read further."""
    extraction_memory_bytes: Annotated[int, Affects("nothing")] = Field(default=2 << 30, ge=64 << 20)
    """So much memory may the process take that extracts texts (of html, pdf, docx, odt, rtf, epub, tei, eml, mbox,
    warc and files or archives of other packages), beyond what it takes when it starts; a record for which that does not
    suffice becomes a dead letter. So may the process that annotates the documents of a shard which has ended two, with
    10 kB more for each character."""
    extraction_seconds: Annotated[float, Affects("nothing")] = Field(default=30, gt=0, le=1_000_000)
    """A record whose text takes more seconds of processor time to extract, or ten times as many by the clock, becomes
    a dead letter. A file of one document may take a second longer for each MB; a document of a shard that has ended two
    processes, which is annotated in another, a second for each 50 characters."""

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        codec = "auto" if encoding == "auto" else codec_of(encoding)
        if codec is None:
            raise ValueError("expected auto or an encoding that browsers or Python know, such as utf-8 or gb2312")
        return codec


Retry = Literal["all", "read", "parse", "tag", "write"]


class PlanningConfig(Config):
    """How the input is cut into shards."""

    shard_bytes: int = Field(default=500_000, ge=1)
    """A shard is closed when its records reach this many bytes of input; a document is never split."""
    rehash: Annotated[bool, Affects("nothing", later_runs=False)] = False
    """Hash every input file, even those whose size and time are unchanged since they were last hashed."""
    retry: Annotated[Retry | None, Affects("nothing", later_runs=False)] = None
    """Try dead letters of files that have not changed again, too: all of them, or those of one stage."""


class ParserConfig(Config):
    """The dependency parser."""

    package: Annotated[str, Affects("nothing")] = "parser_en"
    """`parser_en` is the bundled compact package for English; `parser_multi` reads all languages that write spaces,
    over the states of the bundled encoder; `spacy:NAME_OR_FOLDER` is a spaCy pipeline in whatever language; any other
    name is a Stanza package installed for `language`."""
    language: str = "en"
    directory: Annotated[str | None, Affects("nothing")] = None
    """The folder of Stanza's packages; Stanza's default if null. Nothing is ever downloaded."""
    trees: bool = True
    """Without, heads and relations are null, and the network that finds them is not loaded."""
    tags: bool = True
    """Without, lemmas, parts of speech and features are null as well; the trees, which are made from them, must be
    left out too."""
    batch_documents: Annotated[int, Affects("bytes")] = Field(default=100, ge=1)
    """Documents per bulk call of the parser."""
    device: Annotated[Device, Affects("bytes", later_runs=False)] = "cpu"
    """Of `parser_multi`, which reads the encoder with the tagger, the default is the tagger's device."""

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, tags: bool, other: ValidationInfo) -> bool:
        if other.data.get("trees") and not tags:
            raise ValueError("expected true where trees is true: trees are made from tags; set parser.trees=false too")
        return tags


class TaggerRunConfig(PredictOptions):
    """The tagger and how it is run."""

    model: Annotated[str, Affects("nothing")] = "entities_multi"
    """A folder, the name of a bundled tagger, or models:/NAME@ALIAS of the MLflow registry."""
    device: Annotated[Device, Affects("bytes", later_runs=False)] = "cpu"
    threshold: float | None = Field(default=None, ge=0)
    """Uncertainty in nats above which stage two decides; the tagger's own threshold if null."""
    terms: Annotated[str | None, Affects("nothing")] = None
    """A list of terms, one JSON object a line as for spaCy's EntityRuler: words that match it where the
    tagger says otherwise are decided by stage two, which reads the list's label as their draft; a tagger of one stage
    takes the list's label where it is not sure of its own."""
    accept_parser: Annotated[bool, Affects("nothing")] = False
    """Allow a tagger that reads trees to run with another parser than the one whose trees it learned from."""


_ACTORS = 2
"""Workers without a GPU."""
_GPU_SHARE = 0.25
"""Of a GPU that a worker holds: one process alone leaves most of it idle while it prepares batches and writes."""


class ExecutorConfig(Config):
    """Where shards are processed. For documents that can be annotated, only `threads` changes the output."""

    kind: Literal["local", "ray"] = "local"
    actors: int | None = Field(default=None, ge=1)
    """Ray only: number of workers, each with one shard in flight. If null, two; with GPUs as many as there is
    room for."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a worker for the encoder and the tagger; the rest of parsing uses one. Fixed in the plan of a
    collection. If null, a new plan takes OMP_NUM_THREADS, or without that variable 1 for Ray and all cores (at most 4)
    for local. Set it where both executors should write equal bytes, and to 1 where other work shares the cores."""
    gpus: float | None = Field(default=None, ge=0)
    """Ray only: share of a GPU that a worker holds beside `threads` CPUs. If null, a quarter where tagger.device is
    cuda, and else 0."""
    worker_memory_bytes: int | None = Field(default=None, ge=1)
    """Ray only: a worker that holds more memory (RSS) than this after a shard is replaced by a new one. Never if null.
    Choose well above what a worker holds after its first shards."""
    drain_seconds: float = Field(default=10, ge=0)
    """After SIGTERM or SIGINT, shards in flight may take so long to finish; one that does not is dropped after its
    current batch, and done again by the next run. Kubernetes kills a pod 30 seconds after SIGTERM."""
    shard_seconds: float | None = Field(default=None, gt=0)
    """Ray only: a worker that takes longer for a shard is killed, whatever it does, and another one does the shard. No
    limit if null. Choose many times what a shard takes (stats.json)."""

    def gpu_share(self, device: str) -> float:
        """Return the share of a GPU that each worker holds, given the tagger's device."""
        return self.gpus if self.gpus is not None else _GPU_SHARE * (device == "cuda")

    def num_actors(self, device: str) -> int | None:
        """Return the number of workers, given the tagger's device; None if it depends on the nodes."""
        return self.actors if self.actors is not None or self.gpu_share(device) else _ACTORS

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, gpus: float | None) -> float | None:
        if gpus is not None and gpus > 1 and gpus % 1:
            raise ValueError("expected a share of one GPU, up to 1, or a whole number of them")
        return gpus

    @field_validator("gpus", "shard_seconds")
    @classmethod
    def _check_ray_alone(cls, setting: float | None, other: ValidationInfo) -> float | None:
        if setting is not None and other.data.get("kind") == "local":
            raise ValueError("expected null for executor.kind local, since only Ray reads it")
        return setting


class OutputConfig(Config):
    """Where the annotated collection is, and what it keeps."""

    path: Annotated[str, Affects("nothing", later_runs=False)]
    """Its folder, or its URL (s3://, gs://, az://). It is created, or brought up to date with the input."""
    candidates: bool = False
    """Also write, as rows of entities whose source is `candidate`, the spans that must be shown so that few names are
    missed; for a tagger with such a guarantee (concord calibrate --recall), run as it was calibrated."""
    keep_text: Annotated[bool, Affects("bytes")] = False
    """Store the raw text of each document in the table of documents, for when the input moves away. Texts that the
    readers of the extra archives extract are stored in any case."""
    keep: Annotated[int, Affects("nothing")] = Field(default=1, ge=1)
    """How many generations are kept, the newest included. Those with a name (concord history --tag) are kept anyway."""
    grace_seconds: Annotated[float, Affects("nothing")] = Field(default=3600, ge=0)
    """For how long a generation is kept after the next one is finished, so that programs can finish reading it."""


class AnnotateConfig(Config):
    """One annotation job.

    A field affects nothing if it cannot change a byte of the output, or if the plan covers it: threads of the executor,
    and the digests of parser, tagger and terms in place of their paths. Only fields that affect labels have documents
    tagged again. The reader affects bytes alone, since the texts that it reads are compared. Fields that permit
    something or say where a run works do not hold for later runs of a collection.
    """

    input: Annotated[str, Affects("bytes", later_runs=False)]
    """A file, a folder, or a pattern such as archive/*.jsonl.gz; a path, or a URL such as s3://bucket/archive."""
    output: OutputConfig
    """In a job file, a plain string is its path."""
    reader: Annotated[ReaderConfig, Affects("bytes")] = ReaderConfig()
    planning: Annotated[PlanningConfig, Affects("bytes")] = PlanningConfig()
    parser: ParserConfig = ParserConfig()
    tagger: TaggerRunConfig = TaggerRunConfig()
    executor: Annotated[ExecutorConfig, Affects("nothing", later_runs=False)] = ExecutorConfig()
    max_dead_letters: Annotated[float, Affects("nothing")] = Field(default=0.1, ge=0, le=1)
    """Share of the records that may become dead letters; above it the run ends with exit code 3."""
    max_lost_files: Annotated[int, Affects("nothing")] = Field(default=0, ge=0)
    """Files that may be lost, as a whole or from some place on; above it the run ends with exit code 3."""
    max_removed: Annotated[float, Affects("nothing", later_runs=False)] = Field(default=0.5, ge=0, le=1)
    """Share of the existing documents that may be gone from the input; above it the run is refused."""
    accept_input: Annotated[bool, Affects("nothing", later_runs=False)] = False
    """Accept another input than the one the collection was made from, for example after the archive was moved."""
    limit: Annotated[int | None, Affects("bytes", later_runs=False)] = Field(default=None, ge=1)
    """Read only this many records, for a trial run."""
    report: Annotated[bool, Affects("nothing")] = True
    """Write _run/report.html at the end of the run."""

    @property
    def lasting(self) -> dict[str, Any]:
        """The settings that hold for later runs over the same collection, by dotted keys such as ``output.keep``."""
        return flatten(self.values_where(lambda mark: mark.later_runs))
