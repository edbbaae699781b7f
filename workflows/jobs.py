"""Read job files: strict YAML with overrides from ``--set``.

One file is one job. Paths in it are relative to the current folder (usually the checkout) and are made absolute on
reading, since workers have other working directories. A mistake in a file or an override is a ConfigError that names
the file and the key.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from concord.models.config import Config, ConfigError
from concord.pipeline.config import AnnotateConfig, ParserConfig
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.storage.urls import check_path, check_url, is_url
from concord.workflows.yaml_values import apply_overrides, flatten, parse_override, read_yaml, set_value

JOB_SUFFIXES = {".yaml", ".yml"}
"""How the names of job files end."""
_OPTION_KEYS = {
    "output": "output.path",
    "model": "tagger.model",
    "terms": "tagger.terms",
    "device": "tagger.device",
    "executor": "executor.kind",
    "actors": "executor.actors",
    "threads": "executor.threads",
    "keep": "output.keep",
    "limit": "limit",
    "rehash": "planning.rehash",
}


class TrainCorpus(Config):
    """A corpus to train on, and how much it counts."""

    path: str
    """A path or pattern; or a folder of labels that ``concord distil`` has written."""
    weight: float = Field(default=1.0, gt=0)
    """How often an epoch reads each of its documents; of a fraction, so large a part of the documents is read, the same
    in every epoch."""
    lacks: list[str] = Field(default_factory=list)
    """Entity types, as they are called after ``labels``, that the corpus does not annotate: its outside words may be of
    these types."""

    @model_serializer(mode="wrap")
    def _leave_out_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is lacking where nothing is, so that such a corpus has the digest that it always had."""
        values: dict[str, Any] = dump(self)
        return values if self.lacks else {key: value for key, value in values.items() if key != "lacks"}


class DataConfig(GoldFormat):
    """The gold corpora of a training: ``.conllu`` or ``.conll`` files, optionally ``.gz`` or ``.zst``.

    A tagger learns entities, or with the scheme ``TOKENS`` labels of single words, such as parts of speech.
    """

    train: list[str | TrainCorpus]
    """One path or pattern (such as corpora/*.train.conllu), or a list of them; read in this order."""
    dev: str | list[str] | None = None
    """Paths or patterns. Alone decides the best epoch and the threshold, by the mean over the files' scores."""
    folds: int | None = Field(default=None, ge=2)
    """In place of `dev`: cut the training documents into so many parts and score each by a training on the others; the
    means over the parts choose epoch and threshold, and then one training reads all documents."""
    test: str | list[str] | None = None
    """Paths or patterns. Scored once, with the selected model, and only reported."""
    labels: dict[str, str | None] = Field(default_factory=dict)
    """Entity type of the corpora -> type to learn; null drops it, and types that are not listed stay. Token labels are
    renamed in the same way."""
    vectors: str | None = None
    """Pretrained word vectors (optional): a text file of GloVe, word2vec or fastText."""
    terms: str | None = None
    """A list of terms and patterns, one JSON object a line as for spaCy's EntityRuler, that labels `unlabelled`."""
    unlabelled: str | list[str] | None = None
    """Paths or patterns of corpora whose labels are not read. Words that match `terms` have its labels in training, and
    other words any label, except for `outside`."""
    outside: float = Field(default=0.1, ge=0, le=1)
    """Share of the words without a match that count as outside. With 0 only gold corpora teach what no entity is."""

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out these keys at their defaults, so that a training without them has the digest that it always had."""
        values: dict[str, Any] = dump(self)
        optional = ("terms", "unlabelled", "outside", "folds")
        defaults = {key: DataConfig.model_fields[key].default for key in optional}
        return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}

    @field_validator("train", mode="before")
    @classmethod
    def _list_one_path(cls, train: Any) -> Any:
        return [train] if isinstance(train, str) else train

    @model_validator(mode="after")
    def _check_what_chooses(self) -> Self:
        if (self.dev is None) == (self.folds is None):
            got = "neither" if self.dev is None else "both"
            raise ValueError(f"expected either dev, a corpus, or folds, a number of parts of train; got {got}")
        return self

    def paths(self, part: Literal["train", "dev", "test", "unlabelled"]) -> list[str]:
        """Return the paths of a part; none if there is no such part."""
        found: str | list[str | TrainCorpus] | None = getattr(self, part)
        listed = [found] if isinstance(found, str) else found or []
        return [corpus if isinstance(corpus, str) else corpus.path for corpus in listed]

    def train_corpora(self) -> list[TrainCorpus]:
        """Return the training corpora with their weights."""
        return [TrainCorpus(path=corpus) if isinstance(corpus, str) else corpus for corpus in self.train]


class ProfileConfig(Config):
    """One size of a tagger with its training.

    With ``extends: NAME`` a profile lists only its differences from another profile of the same file. Mappings are
    merged key by key at every depth; any other value, including a list, replaces that of the other profile. A key
    cannot be removed, so a profile that lacks a key of another cannot extend it.
    """

    model: dict[str, Any]
    """Configuration of the tagger; its class in models/taggers checks the keys."""
    fit: dict[str, Any] = Field(default_factory=dict)
    """Configuration of the training; models/training/fit.py checks the keys."""


class TrainConfig(Config):
    """One file of conf/train."""

    tagger: str
    """Module name of a tagger in models/taggers."""
    data: DataConfig
    start: str | None = None
    """Folder of a bundle from which the training continues, with its weights, vocabulary and configuration; `model` is
    not read."""
    profiles: dict[str, ProfileConfig]
    """`small` trains in minutes on two cores, `paper` has the size in the paper."""
    register_as: str | None = None
    """Name in the model registry; if null, that of the tagger."""
    experiment: str = "concord"
    """The MLflow experiment that the run belongs to."""


class TrainJob(Config):
    """One training: a profile of a file of conf/train with all overrides applied."""

    tagger: str
    profile: str
    data: DataConfig
    start: str | None = None
    model: dict[str, Any]
    fit: dict[str, Any] = Field(default_factory=dict)
    register_as: str
    experiment: str = "concord"

    @model_serializer(mode="wrap")
    def _leave_out_no_start(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a start where there is none, so that such a training has the digest that it always had."""
        values: dict[str, Any] = dump(self)
        return {key: value for key, value in values.items() if key != "start" or value is not None}

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.start is not None and self.data.folds is not None:
            raise ValueError(
                "start: expected data.dev, a corpus, got data.folds; a tagger that has read the documents of all folds "
                "cannot be scored on them"
            )
        return self

    @property
    def digest(self) -> str:
        """The sha256, in hex, of everything that determines the trained weights."""
        decisive = self.model_dump(mode="json", exclude={"register_as", "experiment", "profile"})
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


class ParseConfig(Config):
    """One gold corpus to parse."""

    input: str
    """A corpus: ``.conllu`` or ``.conll``, optionally with ``.gz`` or ``.zst``."""
    output: str
    """The corpus with trees: ``.conllu``, optionally with ``.gz`` or ``.zst``."""
    parser: ParserConfig = ParserConfig()


class GateConfig(GoldFormat):
    """The conditions for a new version to become the champion, such as in conf/promote.yaml."""

    data: list[str]
    """The promotion set: corpora that were not used for training, checkpoint selection or calibration."""
    labels: dict[str, str | None] = Field(default_factory=dict)
    """Entity type of the corpora and of both taggers -> the type to compare by; null drops it."""
    train: list[str] = Field(default_factory=list)
    """Corpora whose names count as seen, for slices such as name:unseen."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Significance level: the overall p must be below it, and intervals cover 1 - alpha."""
    minimum_gain: float = 0.0
    """Points of F1 (accuracy for token labels) over the champion; the gain must be above 0 in any case."""
    slices: dict[str, str] = Field(default_factory=dict)
    """Name -> condition, as in ``concord compare --slice NAME=CONDITION``."""
    slice_tolerance: float = Field(default=5.0, ge=0)
    """Points below 0 that the lower end of a slice's interval may reach: a slice must be shown to be no worse, and the
    fewer names it has, the wider its interval."""
    throughput_ratio: float = Field(default=0.8, ge=0)
    """Minimum speed as a fraction of the champion's, both timed alternately in one process; 0 disables the test."""
    throughput_turns: int = Field(default=5, ge=1)
    """How often each is timed on the beginning of the promotion set; the median of the ratios counts."""
    min_f1: float = Field(default=50.0, ge=0, le=100)
    """Minimum score of a first champion, which cannot be compared, in percent (accuracy for token labels)."""
    unknown_provenance: Literal["refuse", "allow"] = "refuse"
    """Whether a bundle that does not record its training data may pass."""
    rounds: int = Field(default=10_000, ge=1)
    """Of the randomisation test."""
    seed: int = 1


def job_values(options: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the dotted keys of an annotation job that options of a command or function set; None sets nothing.

    Settings are further keys, dotted or nested. They win over options, as ``--set`` does.
    """
    chosen = {_OPTION_KEYS[name]: value for name, value in options.items() if value is not None}
    return {**chosen, **flatten(settings or {})}


def read_annotate_job(
    path: Path | None, *, values: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> AnnotateConfig:
    """Return the annotation job of a file, of values, or of both.

    Args:
        values: dotted key -> value, from options of the command line; they take precedence over the file.
        overrides: ``key=value`` of ``--set``; they take precedence over everything.
    """
    job = read_yaml(path) if path is not None else {}
    config = annotate_config(job, values=values, overrides=overrides, where=str(path) if path else "")
    paths: dict[str, Any] = {
        "input": absolute(config.input),
        "output": config.output.model_copy(update={"path": absolute(config.output.path)}),
        **_parser_path(config.parser),
    }
    tagger: dict[str, Any] = {}
    if names_model(config):
        tagger["model"] = absolute_model(config.tagger.model)
    if config.tagger.terms is not None:
        tagger["terms"] = absolute(config.tagger.terms)
    if tagger:
        paths["tagger"] = config.tagger.model_copy(update=tagger)
    return config.model_copy(update=paths)


def annotate_config(
    job: dict[str, Any],
    *,
    values: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    where: str = "",
) -> AnnotateConfig:
    """Validate an annotation job after setting values and overrides in it, as in ``read_annotate_job``.

    An output that is a plain string is a path, and leaves the other keys of its section as they are.
    """
    if isinstance(path := job.get("output"), str):
        job["output"] = {"path": path}
    for key, value in [*(values or {}).items(), *map(parse_override, overrides)]:
        set_value(job, "output.path" if key == "output" and isinstance(value, str) else key, value)
    return AnnotateConfig.from_mapping(job, where=where)


def read_parse_job(values: Mapping[str, Any], *, overrides: Sequence[str] = ()) -> ParseConfig:
    """Return the job of parsing a gold corpus; overrides take precedence over values."""
    job = dict(values)
    apply_overrides(job, overrides)
    config = ParseConfig.from_mapping(job)
    paths = {"input": absolute(config.input), "output": absolute(config.output)}
    return config.model_copy(update={**paths, **_parser_path(config.parser)})


def names_model(config: AnnotateConfig) -> bool:
    """Return whether the job names its tagger; otherwise the default may be replaced by its fallback."""
    return "model" in config.tagger.model_fields_set


def read_gate(path: Path) -> GateConfig:
    """Read a gate and make its paths absolute."""
    gate = GateConfig.from_mapping(read_yaml(path), where=str(path))
    paths = {key: _corpora(getattr(gate, key), key=f"{path}: {key}") for key in ("data", "train")}
    return gate.model_copy(update=paths)


def read_train_config(path: Path) -> TrainConfig:
    """Read a file of conf/train, with every ``extends`` of its profiles resolved."""
    values = read_yaml(path)
    profiles = values.get("profiles")
    if isinstance(profiles, dict):
        values["profiles"] = {name: _extended(profiles, name, where=str(path)) for name in profiles}
    return TrainConfig.from_mapping(values, where=str(path))


def read_train_job(path: Path, *, profile: str = "small", overrides: Sequence[str] = ()) -> TrainJob:
    """Return the job of one profile of a training file with the overrides applied.

    Overrides of ``model.`` and ``fit.`` apply to the profile, others to the keys of the file.
    """
    config = read_train_config(path)
    if profile not in config.profiles:
        known = ", ".join(sorted(config.profiles))
        raise ConfigError(f"{path}: expected a profile of the file ({known}), got {profile!r}")
    job: dict[str, Any] = {
        "tagger": config.tagger,
        "profile": profile,
        "data": config.data.model_dump(),
        "start": config.start,
        **config.profiles[profile].model_dump(),
        "register_as": config.register_as or config.tagger,
        "experiment": config.experiment,
    }
    apply_overrides(job, overrides)
    checked = TrainJob.from_mapping(job, where=str(path))
    data = checked.data
    paths: dict[str, Any] = {"train": _train_corpora(data.train)}
    parts: tuple[Literal["dev", "test", "unlabelled"], ...] = ("dev", "test", "unlabelled")
    for name in parts:
        found = _corpora(data.paths(name), key=f"data.{name}")
        # One corpus is a plain value, however it is given, so that the job and its digest are the same.
        paths[name] = found if len(found) > 1 else next(iter(found), None)
    for key in ("vectors", "terms"):
        if (path := getattr(data, key)) is not None:
            paths[key] = absolute(path)
    start = None if checked.start is None else absolute(checked.start)
    return checked.model_copy(update={"data": checked.data.model_copy(update=paths), "start": start})


def absolute(path: str) -> str:
    """Make a local path absolute; a URL such as ``s3://bucket/key`` stays unchanged.

    Raises:
        InputError: for a URL with credentials, or one with a slash too few.
        ConfigError: for the home of a user who does not exist.
    """
    if is_url(path):
        check_url(path)
        return path
    check_path(path)
    try:
        return str(Path.cwd() / Path(path).expanduser())
    except RuntimeError as error:
        raise ConfigError(f"{path}: expected a path, got the home of a user who does not exist") from error


def absolute_model(name: str) -> str:
    """Make the folder of a model absolute; a bundled name or ``models:/...`` stays unchanged."""
    if name.startswith("models:/"):
        return name
    folder = absolute(name)
    return folder if Path(folder).is_dir() else name


def _corpora(wanted: Sequence[str], *, key: str) -> list[str]:
    """Return the absolute paths of corpora; a pattern stands for the files that match it, sorted."""
    found = []
    for path in map(absolute, wanted):
        if Path(path).exists() or not has_magic(path):
            found.append(path)
            continue
        # Not Path.glob: it also matches hidden files.
        matching = sorted(name for name in glob(path, recursive=True) if Path(name).is_file())  # noqa: PTH207
        if not matching:
            raise ConfigError(f"{key}: expected files that match {path}, found none")
        found += matching
    return found


def _train_corpora(wanted: Sequence[str | TrainCorpus]) -> list[str | TrainCorpus]:
    """Return corpora with absolute paths; each file that matches a pattern has the weight of the pattern."""
    found: list[str | TrainCorpus] = []
    for corpus in wanted:
        if isinstance(corpus, str):
            found += _corpora([corpus], key="data.train")
        else:
            paths = _corpora([corpus.path], key="data.train")
            found += [corpus.model_copy(update={"path": path}) for path in paths]
    return found


def _extended(profiles: Mapping[str, Any], name: str, *, where: str, extending: tuple[str, ...] = ()) -> Any:
    """Return a profile merged into the one it extends; ``extending`` are the profiles that led to it, in order."""
    profile = profiles[name]
    if not isinstance(profile, dict) or "extends" not in profile:
        return profile
    base, chain = profile["extends"], (*extending, name)
    if base in chain:
        raise ConfigError(f"{where}: profiles.{name}.extends: expected no cycle, got {' -> '.join((*chain, base))}")
    if not isinstance(base, str) or base not in profiles:
        known = ", ".join(sorted(map(str, profiles.keys() - {name})))
        raise ConfigError(
            f"{where}: profiles.{name}.extends: expected another profile of the file ({known}), got {base!r}"
        )
    changes = {key: value for key, value in profile.items() if key != "extends"}
    return _merged(_extended(profiles, base, where=where, extending=chain), changes)


def _merged(base: Any, changes: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    return base | {key: _merged(base.get(key), value) for key, value in changes.items()}


def _parser_path(parser: ParserConfig) -> dict[str, ParserConfig]:
    """Return the parser with an absolute directory if the job sets one; a default must not look like a choice."""
    if parser.directory is None:
        return {}
    return {"parser": parser.model_copy(update={"directory": absolute(parser.directory)})}
