"""The gate of a promotion: whether each condition holds, and how much is missing."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.models.evaluation.significance import Difference
from concord.workflows.corpora import Overlap
from concord.workflows.evaluation import Line
from concord.workflows.job_files import read_yaml
from concord.workflows.promotion import (
    GateConfig,
    comparison_conditions,
    describe_conditions,
    digest_condition,
    first_condition,
    provenance_condition,
    read_gate,
    relative_speed,
    throughput_condition,
)

GATE = GateConfig(
    data=["gold.conll"], alpha=0.05, minimum_gain=0.5, no_worse=["long"], tolerance=2.0, throughput_ratio=0.8
)


def part(line: Line, name: str, *, low: float) -> Line:
    return replace(line, kind="language", name=name, difference=Difference(mean=low + 3, low=low, high=low + 6))


def test_the_gate_file_lists_every_key_with_its_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(CHECKOUT)
    path = Path("conf/promote.yaml")
    config = read_gate(path)
    assert set(read_yaml(path)) == set(GateConfig.model_fields)
    own = {"data", "no_worse"}
    assert config.model_dump(exclude=own) == GateConfig(data=[]).model_dump(exclude=own)
    assert all(Path(corpus).is_absolute() and Path(corpus).is_file() for corpus in config.data)
    (tmp_path / "gate.yaml").write_text("data: [a.conll]\ntolerence: 1.0\n")
    with pytest.raises(ConfigError, match="did you mean 'tolerance'"):
        read_gate(tmp_path / "gate.yaml")


def test_a_better_candidate_passes(line: Line) -> None:
    lines = [line, replace(line, kind="type", name="PER", difference=Difference(mean=-9, low=-12, high=-6))]
    conditions = [*comparison_conditions(GATE, [*lines, part(line, "long", low=-1.9)]), throughput_condition(GATE, 0.8)]
    assert [(condition.name, condition.holds) for condition in conditions] == [
        ("p", True),
        ("gain", True),
        ("long", True),
        ("throughput", True),
    ]
    assert all(condition.short_by == 0 for condition in conditions)


def test_a_failing_condition_says_how_much_is_missing(line: Line) -> None:
    worse = replace(line, difference=Difference(mean=-0.25, low=-1.0, high=0.5), p=0.3)
    conditions = [
        *comparison_conditions(GATE, [worse, part(line, "long", low=-2.5), part(line, "short", low=-1.0)]),
        throughput_condition(GATE, 0.6),
        first_condition(GATE, 41.5),
    ]
    failed = {condition.name: condition.short_by for condition in conditions if not condition.holds}
    assert failed == pytest.approx({"p": 0.25, "gain": 0.75, "long": 0.5, "throughput": 0.2, "min_f1": 8.5})
    text = describe_conditions(conditions)
    assert text.count(" NO ") == 5
    assert "8.5" in text.splitlines()[-1]


def test_a_gain_of_zero_and_a_p_equal_to_alpha_fail(line: Line) -> None:
    gate = GATE.model_copy(update={"minimum_gain": 0.0, "no_worse": []})
    nothing = replace(line, difference=Difference(mean=0.0, low=-1.0, high=1.0), p=0.05)
    p, gain = comparison_conditions(gate, [nothing])
    assert (p.holds, gain.holds, gain.wanted) == (False, False, "above 0")


def test_a_line_that_the_comparison_lacks_is_named_with_those_there_are(line: Line) -> None:
    with pytest.raises(ConfigError, match="lines of the comparison, which are PER, unseen, got long"):
        comparison_conditions(GATE, [line, part(line, "PER", low=0.0), part(line, "unseen", low=0.0)])


def test_seen_documents_unknown_provenance_and_changed_files_fail() -> None:
    clean = Overlap(compared=40, short=2, seen={})
    assert provenance_condition(GATE, clean).holds
    seen = provenance_condition(GATE, Overlap(compared=40, short=2, seen={"train": 3, "dev": 1}))
    assert (seen.holds, seen.short_by) == (False, 3)
    assert "3 in what it was trained on" in seen.found
    assert not provenance_condition(GATE, None).holds
    assert provenance_condition(GATE.model_copy(update={"unknown_provenance": "allow"}), None).holds
    assert digest_condition("a" * 64).holds
    assert not digest_condition("a" * 64, fault="the files are not what was registered").holds


def test_speeds_are_compared_in_turns_and_in_processor_time(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    champion, candidate = load_tagger(tiny_bundle), load_tagger(tiny_bundle)
    clock, labelled = [0.0], list[tuple[str, int]]()

    def fake(name: str, *seconds: float) -> Callable[[Sequence[object]], None]:
        costs = iter(seconds)

        def predict_documents(documents: Sequence[object]) -> None:
            labelled.append((name, len(documents)))
            clock[0] += next(costs)

        return predict_documents

    monkeypatch.setattr("time.process_time", lambda: clock[0])
    # The first turn warms up, and single slow turns do not count.
    monkeypatch.setattr(champion, "predict_documents", fake("champion", 90, 2, 2, 50, 2, 1))
    monkeypatch.setattr(candidate, "predict_documents", fake("candidate", 10, 4, 4, 4, 60, 3))
    document = [Sentence(words=("Ada",) * 1000)]
    assert relative_speed(champion, candidate, [document] * 8) == 0.5
    # As many documents as have 5,000 words.
    assert labelled == [("champion", 5), ("candidate", 5)] * 6
