"""The curves of a training as one picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from concord.models.training.fit import EpochResult


def draw_curves(epochs: Sequence[EpochResult], path: Path, *, title: str) -> None:
    """Draw loss and dev scores over the epochs into a PNG file."""
    # Without pyplot: it keeps global state and looks for a display.
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    losses, scores = figure.subplots(1, 2)
    measure = epochs[0].measure
    numbers = [epoch.epoch for epoch in epochs]
    losses.plot(numbers, [epoch.loss for epoch in epochs], marker=".")
    losses.set(xlabel="epoch", ylabel="training loss")
    scores.plot(numbers, [epoch.dev_score for epoch in epochs], marker=".", label=f"dev {measure}")
    if any(epoch.draft_score != epoch.dev_score for epoch in epochs):
        scores.plot(numbers, [epoch.draft_score for epoch in epochs], marker=".", linestyle="--", label="stage one")
    scores.set(xlabel="epoch", ylabel=f"{measure} in percent")
    scores.legend(loc="lower right")
    for axes in (losses, scores):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=110, metadata={"Software": None})
