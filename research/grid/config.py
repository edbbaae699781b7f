"""The configuration of the grid, research/grid.yaml: corpora, tables of systems, claims, and the runs they need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from concord.models.config import Config
from concord.models.errors import ConfigError
from concord.workflows.job_files import read_yaml

CONF = Path("research/grid.yaml")


Measure = Literal[
    "all", "multi_word", "recurring", "once", "recall", "recurring_less_once", "draft", "refinement", "uncertainty"
]


class CorpusConfig(Config):
    """One corpus: a folder with the files train, dev and (mostly) test."""

    folder: str
    """Below the folder of all corpora."""
    documents: bool = True
    """Whether its sentences are grouped in documents."""
    floor: tuple[float, float | None] | None = None
    """F1 on dev and test of a CRF over words, affixes and shapes; a tagger below it is undertrained or broken."""
    set: tuple[str, ...] = ()
    """``key=value`` for every training on this corpus, as ``concord train --set`` takes them."""
    set_for: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """Tagger -> further ``key=value`` for its trainings on this corpus."""
    halves: bool = False
    """Whether its dev set is both: every second document chooses epoch and threshold, the others are the test set."""
    trees: Literal["gold", "parser", "none"] = "none"
    """Where the dependency trees come from; with `parser`, ``concord parse`` adds them before the training."""


class RowConfig(Config):
    """One system of a table."""

    tagger: str
    key: str | None = None
    """Identifies the system in the names of runs; the tagger by default. Equal keys mean the same system."""
    name: str | None = None
    """What the page calls it; the key by default."""
    profile: str | None = None
    """Another profile than the table's."""
    corpus: str | None = None
    """Another corpus than the table's: the same texts with other trees."""
    scored_on: str | None = None
    """A corpus whose dev and test are scored in place of the row's own: the same texts with other trees."""
    set: tuple[str, ...] = ()
    """``key=value`` for the trainings of this system."""
    not_applicable: str | None = None
    """Why there is nothing to run; the page says n/a."""

    @property
    def own_key(self) -> str:
        """The system's key."""
        return self.key or self.tagger

    @property
    def title(self) -> str:
        """What the page calls the system."""
        return self.name or self.own_key


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training of the grid."""

    corpus: str
    profile: str
    row: RowConfig
    seed: int

    @property
    def name(self) -> str:
        """The name of the run in records and in the working folder."""
        return f"{self.corpus}.{self.profile}.{self.row.own_key}.{self.seed}"


class TableConfig(Config):
    """Systems side by side: the same corpus, representation and budget."""

    title: str
    corpus: str
    profile: str
    """The profile of conf/train/*.yaml, which decides the word representation."""
    seeds: tuple[int, ...] = (1, 2, 3)
    rows: tuple[RowConfig, ...]
    notes: tuple[str, ...] = ()

    def run(self, row: RowConfig, seed: int) -> Run:
        """Return the run of a row."""
        return Run(corpus=row.corpus or self.corpus, profile=row.profile or self.profile, row=row, seed=seed)


class ClaimConfig(Config):
    """One claim, as a comparison of two rows in each of some tables."""

    text: str
    tables: tuple[str, ...]
    better: str | None = None
    """Key of the row that is better by the claim."""
    worse: str | None = None
    about_inputs: bool = False
    """Whether the rows differ by their inputs: a row that lacks some may then be below the floor."""
    measure: Measure = "all"
    """Of `all`, `multi_word`, `recurring` and `once` it is the F1 of these names; `recall` is that of recurring names.
    `recurring_less_once` is what is gained on recurring names beyond the gain on others. `draft` compares the row
    `better` with its own drafts, and `refinement` what both rows gain over their own drafts. `uncertainty` is the ratio
    of the mean entropies of wrong and right drafts."""
    paper: float | None = None
    """The paper's figure for `uncertainty`."""
    untestable: str | None = None
    """Why it cannot be tested here."""
    question: str | None = None
    """What the page of results asks about all corpora of the claims with this question, pooled; None if nothing."""


class RevisionConfig(Config):
    """A change of a tagger's code after which it has to be trained again, though its configuration is the same."""

    number: int
    """Counted from 1, the revision of records that name none."""
    change: str
    """What has changed, in words."""


class ReproductionConfig(Config):
    """What became of one table or figure of a paper."""

    paper: str
    item: str
    """Its number."""
    about: str
    """What it shows."""
    status: Literal["reproduced", "in kind", "not"]
    """`in kind` is the same measurement on other data, or by a command instead of a figure of ours."""
    where: str
    """The place here or the command; for `not`, the reason."""


class GridConfig(Config):
    """The whole grid; research/grid.yaml."""

    corpora: Mapping[str, CorpusConfig]
    tables: Mapping[str, TableConfig]
    claims: tuple[ClaimConfig, ...] = ()
    papers: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    """What the papers print: corpus -> key of a row -> figure."""
    missing: Mapping[str, str] = Field(default_factory=dict)
    """Corpora of the papers that are not available -> why."""
    set_for: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """Profile -> ``key=value`` for all its runs."""
    revisions: Mapping[str, RevisionConfig] = Field(default_factory=dict)
    """Tagger -> the revision of its code."""
    reproductions: tuple[ReproductionConfig, ...] = ()
    figures: str | None = None
    """A file with what research.figures and research.epochs measured: `gating`, `attended` and `epochs`."""
    speeds: str | None = None
    """A file of benchmarks/bench_papers.py."""


def read_grid(path: Path = CONF) -> GridConfig:
    """Read the grid; a ConfigError names the key at fault."""
    return GridConfig.from_mapping(read_yaml(path), where=str(path))


def runs_of(grid: GridConfig, tables: Sequence[str]) -> list[Run]:
    """Return the runs of tables, first seeds first, so that a grid stopped early has something of every row.

    Raises:
        ConfigError: when there is no such table.
    """
    unknown = [name for name in tables if name not in grid.tables]
    if unknown:
        raise ConfigError(f"--table: expected one of {', '.join(grid.tables)}, got {unknown[0]!r}")
    # Two tables may ask for the same run.
    found: dict[str, Run] = {}
    for table in (grid.tables[name] for name in tables):
        for seed in table.seeds:
            for row in table.rows:
                if row.not_applicable is None:
                    run = table.run(row, seed)
                    found.setdefault(run.name, run)
    return list(found.values())
