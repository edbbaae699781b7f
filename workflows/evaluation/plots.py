"""Pictures of a training and of a calibration, drawn from plain values as PNG or SVG."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from concord.models.evaluation.reliability import Bin
from concord.models.training.fit import EpochResult

# Two colours that people with the common forms of colour blindness can tell apart (Okabe and Ito, 2008).
BLUE, ORANGE = "#0072B2", "#D55E00"
GREY = "#666666"
# Without these a picture contains its date.
_METADATA = {"png": {"Software": None}, "svg": {"Date": None}}


def draw_curves(epochs: Sequence[EpochResult], path: Path, *, title: str) -> None:
    """Draw the training loss, and the dev scores if there are any, of every epoch."""
    numbers, measure = [epoch.epoch for epoch in epochs], epochs[0].measure
    with saved_panels(2 if epochs[0].scored else 1, path, title) as panels:
        panels[0].plot(numbers, [epoch.loss for epoch in epochs], marker=".")
        panels[0].set_ylabel("training loss")
        for scores in panels[1:]:
            scores.plot(numbers, [epoch.dev_score for epoch in epochs], marker=".", label=f"dev {measure}")
            if any(epoch.draft_score != epoch.dev_score for epoch in epochs):
                drafts = [epoch.draft_score for epoch in epochs]
                scores.plot(numbers, drafts, marker=".", linestyle="--", label="stage one")
            scores.set_ylabel(f"{measure} in percent")
            scores.legend(loc="lower right")
        for axes in panels:
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_reliability(panels: Mapping[str, Mapping[str, Sequence[Bin]]], path: Path, *, title: str) -> None:
    """Draw reliability diagrams before and after a calibration: the share that is right by mean confidence.

    Args:
        panels: what the predictions are of -> label of a curve -> its bins.
    """
    with saved_panels(len(panels), path, title) as drawn:
        for axes, (kind, curves) in zip(drawn, panels.items(), strict=True):
            least = min(min(entry.confidence, entry.accuracy) for bins in curves.values() for entry in bins)
            axes.plot([least, 1], [least, 1], color=GREY, linewidth=0.8)
            for (label, bins), color, marker in zip(curves.items(), (ORANGE, BLUE), ("s", "o"), strict=True):
                confidences, accuracies = [entry.confidence for entry in bins], [entry.accuracy for entry in bins]
                axes.plot(confidences, accuracies, color=color, marker=marker, label=label)
            axes.set(xlabel=f"mean confidence of {kind}", ylabel="share that is right")
            axes.legend(loc="upper left", fontsize="small")


def new_figure(inches: tuple[float, float], title: str) -> Figure:
    """Return an empty figure of this width and height."""
    # Without pyplot, which keeps global state and looks for a display.
    figure = Figure(figsize=inches, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize="medium")
    return figure


@contextmanager
def saved_panels(number: int, path: Path, title: str) -> Iterator[Sequence[Axes]]:
    """Save what is drawn on the panels, with the labels of the first below all of them unless it has a legend."""
    figure = new_figure((1.6 + 4.2 * number, 4.0), title)
    panels = figure.subplots(1, number, squeeze=False)[0]
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    yield panels
    handles, labels = panels[0].get_legend_handles_labels()
    if handles and panels[0].get_legend() is None:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the name's suffix."""
    # A fixed salt, so that the ids of an SVG file are the same each time.
    with rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=110, metadata=_METADATA[path.suffix.removeprefix(".")])
