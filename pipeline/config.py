"""The configuration of an annotation job; conf/annotate/*.yaml map to AnnotateConfig key for key."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from concord.models.config import Config


class ReaderConfig(Config):
    """How records are found in the input."""

    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    """auto goes by the file name: .txt, .jsonl/.ndjson, .parquet; .gz and .zst may follow the first two."""
    id_field: str = "id"
    """The field (jsonl, parquet) that names a document; the record's place names it where it is absent."""
    text_field: str = "text"
    """The field that holds the text; all other fields are kept in `meta`."""
    encoding: str = "utf-8"
    """The encoding of text and jsonl files. `auto` lets charset-normalizer guess a text file's."""


class PlanningConfig(Config):
    """How the input is cut into shards."""

    shard_bytes: int = Field(default=500_000, ge=1)
    """A shard is closed when its records reach this many bytes of input; a document is never split."""
    compact_at: int | None = Field(default=8, ge=2)
    """So many small shards (with less than a quarter of shard_bytes in characters) are put together when a run
    changes a collection; none ever if null."""
    rehash: bool = False
    """Hash every input file, also those whose size and time are as when they were hashed last."""
    hash_with_ray_bytes: int = Field(default=2_000_000_000, ge=1)
    """With the Ray executor, inputs larger than this many bytes in total are hashed by Ray tasks."""


class ParserConfig(Config):
    """The dependency parser."""

    package: str = "parser_en"
    """parser_en is the embedded compact package; any other name is a package of Stanza installed for `language`."""
    language: str = "en"
    directory: str | None = None
    """Where Stanza's packages lie; Stanza's own folder if none. Nothing is ever downloaded."""
    sentence_cap: int = Field(default=200, ge=10)
    """Words; a longer sentence is parsed in pieces marked `continues`."""
    batch_documents: int = Field(default=100, ge=1)
    """Documents a bulk call of the parser takes."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"


class TaggerRunConfig(Config):
    """The tagger at work."""

    model: str = "entities_en"
    """A folder, the name of an embedded default, or models:/NAME@ALIAS of the MLflow registry."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 is faster on some devices; the run then reports the share of labels that differ from fp32's."""
    batch_words: int = Field(default=4096, ge=1)
    """Words (with padding) a batch of sentences holds at most, unless one sentence is longer."""
    samples: int | None = Field(default=None, ge=1)
    """Monte-Carlo weight samples M; the tagger's own number if none."""
    threshold: float | None = None
    """Nats of uncertainty above which stage two decides; the tagger's own if none."""
    accept_parser: bool = False
    """Let a tagger that reads trees work with another parser than the one whose trees it learned from."""


class ExecutorConfig(Config):
    """Where the shards are worked on. Of documents that can be annotated at all, only `threads` changes the output."""

    kind: Literal["local", "ray"] = "local"
    actors: int = Field(default=2, ge=1)
    """Ray only: how many workers, each with one shard in flight; those with a GPU where `gpus` is set."""
    threads: int | None = Field(default=None, ge=1)
    """Threads a worker tags with, parsing with one; frozen in the plan. One for Ray and all cores (4 at most) for
    local if none; set it where both executors are to give equal bytes, and to 1 where other work shares the cores."""
    gpus: float = Field(default=0, ge=0)
    """Ray only: share of a GPU that a worker holds. Above 0 others parse for these workers, on CPUs."""
    parse_actors: int | None = Field(default=None, ge=0)
    """Ray with gpus only: how many workers parse for those that hold a GPU, each with one shard in flight and `threads`
    CPUs. Two for each of the others if null; with 0 each parses for itself."""
    worker_memory_bytes: int | None = Field(default=None, ge=1)
    """Ray only: a worker that holds more memory (RSS) than this after a shard is ended, and a new one takes its place.
    Never if null. Choose well above what a worker holds after its first shards."""
    attempts: int = Field(default=3, ge=1)
    """How often a shard is tried as a whole when its worker dies. After that its documents are done one by one, and one
    whose worker dies twice while it is alone becomes a dead letter."""
    shard_seconds: float | None = Field(default=None, gt=0)
    """Ray only: a worker that is longer at a shard is killed, which counts as its death; where documents are done one
    by one, the limit is that of each. None if null. Choose many times what a shard takes (stats.json)."""

    @property
    def parsers(self) -> int:
        """How many workers only parse."""
        if not self.gpus:
            return 0
        return 2 * self.actors if self.parse_actors is None else self.parse_actors

    @field_validator("parse_actors")
    @classmethod
    def _somebody_only_tags(cls, parse_actors: int | None, known: ValidationInfo) -> int | None:
        if parse_actors and not known.data.get("gpus"):
            raise ValueError("expected null where executor.gpus is 0: workers without a GPU parse for themselves")
        return parse_actors

    @field_validator("shard_seconds")
    @classmethod
    def _somebody_can_end_a_worker(cls, seconds: float | None, known: ValidationInfo) -> float | None:
        if seconds is not None and known.data.get("kind") == "local":
            raise ValueError("expected null for executor.kind local, which has nobody to end a process that is stuck")
        return seconds


class AnnotateConfig(Config):
    """One annotation job."""

    input: str
    """A file, a folder, or a pattern such as archive/*.jsonl.gz; a path, or a URL such as s3://bucket/archive."""
    output: str
    """The folder of the annotated collection, or its URL s3://bucket/prefix; made if absent, else brought up to date
    with the input."""
    reader: ReaderConfig = ReaderConfig()
    planning: PlanningConfig = PlanningConfig()
    parser: ParserConfig = ParserConfig()
    tagger: TaggerRunConfig = TaggerRunConfig()
    executor: ExecutorConfig = ExecutorConfig()
    max_dead_letters: float = Field(default=0.1, ge=0, le=1)
    """Share of the records that may end as dead letters; above it the run ends with exit code 3."""
    max_removed: float = Field(default=0.5, ge=0, le=1)
    """Share of the standing documents that a run may find gone from the input; above it nothing is done."""
    accept_input: bool = False
    """Bring a collection up to date with another input than the one it was made of, as when the archive has moved."""
    limit: int | None = Field(default=None, ge=1)
    """Take only the first so many records, for a try."""
    report: bool = True
    """Write _run/report.html when the run has ended."""
