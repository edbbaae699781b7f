"""The job of a training: a profile of a file of conf/train, with overrides from ``--set``.

A mistake in a file or an override is a ConfigError that names the file and the key.

``concord init`` makes a folder to begin with, from the files of starter/: the samples once for each entity type.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from concord.models.bundles.manifest import read_saved
from concord.models.config import Affects, Config
from concord.models.errors import ConfigError
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.workflows.bundles import require_new_folder
from concord.workflows.console import Answer, table
from concord.workflows.job_files import absolute, apply_overrides, corpus_paths, read_yaml
from concord.workflows.registry import find_tagger

Part = Literal["train", "dev", "test", "unlabelled"]
TYPE = re.compile(r"[^\W_][\w-]*")
_ENDINGS = ("vex", "idor", "una", "atra", "ston", "mel", "bin", "gar", "dix", "olo")
"""Endings of the invented names of each type."""
# The others hold samples.
_ONCE = {"README.md", "train.yaml", "promote.yaml"}


class TrainCorpus(Config):
    """A corpus to train on, and how much it counts."""

    path: str
    """A path or pattern."""
    weight: float = Field(default=1.0, gt=0)
    """How often an epoch reads each of its documents; a weight of 0.25 reads a quarter of them, the same in every
    epoch."""
    lacks: list[str] = Field(default_factory=list)
    """Entity types, as they are called after ``labels``, that the corpus does not annotate: its outside words may be of
    these types."""

    @model_validator(mode="before")
    @classmethod
    def _of_path(cls, corpus: Any) -> Any:
        return {"path": corpus} if isinstance(corpus, str) else corpus


class DataConfig(GoldFormat):
    """The gold corpora of a training: ``.conllu`` or ``.conll`` files, optionally ``.gz`` or ``.zst``.

    A tagger learns entities, or with the scheme ``TOKENS`` labels of single words, such as parts of speech.
    """

    train: list[TrainCorpus]
    """One path or pattern (such as corpora/*.train.conllu), or a list of them; read in this order."""
    dev: list[str]
    """A path or pattern, or a list. They alone decide the best epoch and the threshold, by the mean of their scores."""
    test: list[str] | None = None
    """As ``dev``. Scored once, with the selected model, and only reported."""
    labels: dict[str, str | None] = Field(default_factory=dict)
    """Entity type of the corpora -> type to learn; null drops it, and types that are not listed stay. Token labels are
    renamed in the same way."""
    vectors: str | None = None
    """Pretrained word vectors (optional): a text file of GloVe, word2vec or fastText."""
    terms: str | None = None
    """A list of terms, one JSON object a line as for spaCy's EntityRuler, that labels `unlabelled`."""
    unlabelled: list[str] | None = None
    """As ``dev``: corpora whose labels are not read. Words that match `terms` have its labels in training, and
    other words any label, except for `outside`."""
    outside: float = Field(default=0.1, ge=0, le=1)
    """Share of the words without a match that count as outside. With 0 only gold corpora teach what no entity is."""

    @field_validator("train", "dev", "test", "unlabelled", mode="before")
    @classmethod
    def _list_one_path(cls, paths: Any) -> Any:
        return [paths] if isinstance(paths, str) else paths

    def paths(self, part: Part) -> list[str]:
        """Return the paths of a part; none if there is no such part."""
        found: list[str] | None = [corpus.path for corpus in self.train] if part == "train" else getattr(self, part)
        return found or []


class ProfileConfig(Config):
    """One size of a tagger with its training.

    With ``extends: NAME`` a profile lists only its differences from another profile of the same file. Mappings are
    merged key by key at every depth; any other value, including a list, replaces that of the other profile. A key
    cannot be removed, so a profile that lacks a key of another cannot extend it.
    """

    model: dict[str, Any] = Field(default_factory=dict)
    """Configuration of the tagger; its class in models/taggers checks the keys."""
    fit: dict[str, Any] = Field(default_factory=dict)
    """Configuration of the training; models/training/fit.py checks the keys."""


class TrainConfig(Config):
    """One file of conf/train."""

    tagger: str | None = None
    """Module name of a tagger in models/taggers; null for that of `start`."""
    data: DataConfig
    start: str | None = None
    """A tagger from which the training continues, with its weights, vocabulary and configuration: the folder of a
    bundle, a bundled tagger or a registered version. `model` is not read."""
    profiles: dict[str, ProfileConfig]
    """`small` trains in minutes on two cores, `paper` has the size in the paper."""
    register_as: str | None = None
    """Name in the model registry; if null, that of `start`, or else of the tagger."""


class TrainJob(Config):
    """One training: a profile of a file of conf/train with all overrides applied."""

    tagger: str
    profile: Annotated[str, Affects("nothing")]
    data: DataConfig
    start: str | None = None
    """Folder of the bundle from which the training continues."""
    model: dict[str, Any]
    fit: dict[str, Any] = Field(default_factory=dict)
    register_as: Annotated[str, Affects("nothing")]

    @property
    def digest(self) -> str:
        """The sha256, in hex, of everything that determines the trained weights."""
        return hashlib.sha256(json.dumps(self.deciding_values(), sort_keys=True).encode()).hexdigest()


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
    job = config.model_dump(exclude={"profiles"}) | config.profiles[profile].model_dump()
    job |= {"profile": profile}
    apply_overrides(job, overrides)
    if isinstance(job["start"], str):
        job |= _started(job, job["start"])
    job["register_as"] = job["register_as"] or job["tagger"]
    checked = TrainJob.from_mapping(job, where=str(path))
    data = checked.data
    # Each file that matches a pattern has the weight of the pattern.
    train = [
        corpus.model_copy(update={"path": path})
        for corpus in data.train
        for path in corpus_paths([corpus.path], key="data.train")
    ]
    parts: tuple[Part, ...] = ("dev", "test", "unlabelled")
    others: dict[str, list[str] | None] = {
        part: corpus_paths(data.paths(part), key=f"data.{part}") or None for part in parts
    }
    files = {key: absolute(name) for key in ("vectors", "terms") if (name := getattr(data, key)) is not None}
    return checked.model_copy(update={"data": data.model_copy(update={"train": train, **others, **files})})


def _started(job: Mapping[str, Any], start: str) -> dict[str, Any]:
    """Return what the tagger decides from which a training continues.

    Raises:
        ConfigError: when the job names another kind of tagger.
        ModelError: when there is no such tagger.
    """
    found = find_tagger(start)
    saved = read_saved(found.folder)
    if job["tagger"] not in (None, saved.tagger):
        raise ConfigError(f"start: expected a {job['tagger']}, which the job trains, got a {saved.tagger}: {start}")
    name = job["register_as"] or found.name
    return {"start": str(found.folder), "tagger": saved.tagger, "model": saved.config, "register_as": name}


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


def init_command(folder: Path, types: Sequence[str]) -> Answer:
    """Fill a new or empty folder.

    Raises:
        ConfigError: when the folder holds something, or a type is no name of one or is named twice.
    """
    require_new_folder(folder, "the corpora")
    if not types or len(set(types)) < len(types):
        raise ConfigError(f"--types: expected different entity types, such as DRUG,DOSE, got {','.join(types)!r}")
    for kind in types:
        if not TYPE.fullmatch(kind):
            raise ConfigError(f"--types: expected names of letters, digits, - and _, such as DRUG,DOSE, got {kind!r}")
    name = re.sub(r"[^\w-]+", "-", folder.absolute().name).strip("-") or "labels"
    shown = {"name": name, "types": ", ".join(types), "first": types[0]}
    starter = Path(str(files("concord.workflows.training"))) / "starter"
    written = sorted(path.relative_to(starter).as_posix() for path in starter.rglob("*") if path.is_file())
    for path in written:
        template = Template((starter / path).read_text(encoding="utf-8"))
        if path in _ONCE:
            text = template.substitute(shown)
        else:
            text = "".join(_sample(template, kind, number) for number, kind in enumerate(types))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(concord .*?)  # ", readme, re.MULTILINE)
    rows = [("folder", str(folder)), ("files", ", ".join(written)), ("tagger", "doc_uanet over the bundled encoder")]
    steps = "\n".join([f"cd {folder}", *commands])
    return Answer(
        values={"folder": str(folder), "files": written, "commands": commands},
        text=f"{table(rows)}\n\nREADME.md lists the commands in order:\n\n{steps}",
    )


def _sample(template: Template, kind: str, number: int) -> str:
    """Return the samples of a type, whose names end unlike those of other types."""
    turn, place = divmod(number, len(_ENDINGS))
    return template.substitute(TYPE=kind, type=kind.lower(), end=_ENDINGS[place] * (turn + 1))
