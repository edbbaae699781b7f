"""What happens in a round of the soak test: runs, the edits before each, and its faults; drawn from a seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "kill_driver", "term_driver", "crash", "no_space", "two_drivers", "kill_worker", "term_worker", "hostile"
]


_ENDING: tuple[Kind, ...] = ("kill_driver", "kill_driver", "term_driver", "crash", "no_space", "hostile")
_SURVIVED: dict[str, tuple[Kind, ...]] = {
    "local": ("two_drivers",),
    "ray": ("two_drivers", "kill_worker", "kill_worker", "term_worker"),
}
# The steps at which a driver can be killed, and how often a run of a few shards reaches each at most. With Ray, workers
# do the steps of a shard.
_STEPS: dict[str, dict[str, int]] = {
    "local": {
        "plan": 1,
        "write": 12,
        "fsync": 12,
        "rename": 8,
        "commit": 3,
        "link": 6,
        "publish": 1,
        "swap": 1,
        "sweep": 1,
    },
    "ray": {"plan": 1, "write": 3, "fsync": 3, "publish": 1, "swap": 1, "sweep": 1},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault of a run, and when it happens.

    Attributes:
        after: share of the remaining shards that are committed before it.
        delay: further wait, as a share of the mean time of a shard.
        step: of a crash: the value of CONCORD_CRASH_AT.
        writes: of no space: the number of the file that fails, from 1.
        attack: of a hostile copy: decides what is in place of which of its files (concord_testing.hostile.ATTACKS).
    """

    kind: Kind
    after: float = 0.0
    delay: float = 0.0
    step: str = ""
    writes: int | None = None
    attack: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """A change of the archive; the number decides which record."""

    kind: Literal["change", "add", "remove", "rename", "tear"]
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduledRun:
    """Edits of the archive, and the faults of the run that follows."""

    edits: tuple[Edit, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Everything that happens in a round."""

    seed: int
    number: int
    executor: Literal["local", "ray"]
    runs: tuple[ScheduledRun, ...]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Schedule":
        """Read a schedule back from its JSON."""
        runs = tuple(
            ScheduledRun(
                edits=tuple(Edit(**edit) for edit in run["edits"]),
                faults=tuple(Fault(**fault) for fault in run["faults"]),
            )
            for run in values["runs"]
        )
        return cls(seed=values["seed"], number=values["number"], executor=values["executor"], runs=runs)


def draw(seed: int, number: int, *, ray: bool) -> Schedule:
    """Draw the schedule of a round; equal seeds and numbers give equal schedules.

    Args:
        ray: draw rounds on Ray as well, one in four.
    """
    chance = random.Random(f"{seed}/{number}")
    executor: Literal["local", "ray"] = "ray" if chance.random() < 0.25 and ray else "local"
    runs = []
    for run in range(chance.randint(1, 3)):
        # A fault that a run survives comes last, because the run ends with it.
        kinds = [*chance.choices(_ENDING, k=chance.randint(0, 3)), chance.choice(_ENDING + _SURVIVED[executor])]
        edits = [_draw_edit(chance) for _ in range(chance.randint(3, 12) if run else 0)]
        faults = [_draw_fault(chance, kind, executor) for kind in kinds]
        runs.append(ScheduledRun(edits=tuple(edits), faults=tuple(faults)))
    return Schedule(seed=seed, number=number, executor=executor, runs=tuple(runs))


def _draw_edit(chance: random.Random) -> Edit:
    return Edit(
        kind=chance.choice(("change", "change", "add", "remove", "rename", "tear")), number=chance.randrange(10_000)
    )


def _draw_fault(chance: random.Random, kind: Kind, executor: str) -> Fault:
    if kind == "crash":
        step, most = chance.choice(list(_STEPS[executor].items()))
        return Fault(kind=kind, step=f"{step}:{chance.randint(1, most)}")
    if kind == "no_space":
        return Fault(kind=kind, writes=chance.randint(1, 12))
    if kind == "hostile":
        return Fault(kind=kind, attack=chance.randrange(10_000))
    return Fault(kind=kind, after=round(chance.random(), 3), delay=round(chance.random(), 3))
