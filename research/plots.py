"""The figures of the papers, drawn from plain values as PNG or SVG, and the picture of the page of results."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator, StrMethodFormatter

from research.grid.claims import PooledAnswer

# Two colours that people with the common forms of colour blindness can tell apart (Okabe and Ito, 2008).
BLUE, ORANGE = "#0072B2", "#D55E00"
GREY = "#666666"
_CELL_INCHES = 0.26
# Without these a picture contains its date.
_METADATA = {"png": {"Software": None}, "svg": {"Date": None}}


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


def draw_answers(answers: Sequence[PooledAnswer], path: Path) -> None:
    """Draw the pooled difference of each question with its interval, and the difference on each corpus."""
    figure = new_figure((9.0, 1.2 + 0.36 * len(answers)), "points of F1, pooled over corpora, with 95 % intervals")
    axes = figure.subplots()
    for place, found in enumerate(answers):
        corpora = [difference.mean for difference in found.corpora.values()]
        axes.plot(corpora, [place] * len(corpora), color=GREY, marker="|", markersize=9, linestyle="")
        color, difference = BLUE if found.answer in {"yes", "no"} else ORANGE, found.difference
        axes.plot([difference.low, difference.high], [place, place], color=color, linewidth=2)
        axes.plot(difference.mean, place, color=color, marker="o")
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(answers)), [found.question for found in answers], fontsize="small")
    axes.invert_yaxis()
    save_figure(figure, path)


def draw_threshold(values: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Draw the effect of the threshold: the change of F1 from the drafts alone, and the share of words refined."""
    with saved_panels(2, path, title) as (change, share):
        points = [point for point in values["points"] if point["threshold"] >= 0]
        thresholds = [point["threshold"] for point in points]
        change.plot(thresholds, [point["f1_change"] for point in points], color=BLUE, marker=".")
        everything = values["points"][0]["f1_change"]
        change.axhline(everything, color=ORANGE, linestyle="--", label=f"every word refined: {everything:+.2f}")
        change.axhline(0.0, color=GREY, linewidth=0.8)
        change.set(ylabel=f"change of {values['score']} in points")
        share.plot(thresholds, [100.0 * point["refined_share"] for point in points], color=BLUE, marker=".")
        share.set(ylabel="words refined in percent", yscale="symlog", ylim=(0, None))
        share.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        for axes in (change, share):
            axes.axvline(values["own"], color=GREY, linestyle=":", label=f"own threshold: {values['own']:.2f} nats")
            axes.set(xlabel="threshold in nats")


def draw_samples(values: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Draw F1 and speed by the number of weight samples."""
    with saved_panels(2, path, title) as (scores, speed):
        numbers = [point["samples"] for point in values["points"]]
        scores.plot(numbers, [point["f1"] for point in values["points"]], color=BLUE, marker="o", label="final labels")
        drafts = [point["draft_f1"] for point in values["points"]]
        scores.plot(numbers, drafts, color=ORANGE, marker="s", linestyle="--", label="drafts alone")
        scores.set(ylabel=f"{values['score']} in percent")
        _draw_speed(speed, numbers, values["points"], device=values["device"])
        for axes in (scores, speed):
            axes.set(xlabel="weight samples M", xscale="log")
            _tick_at(axes, numbers)


def draw_memory(values: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Draw F1 and the share of recurring names, or words, that are right, by the slots of the document memory."""
    with saved_panels(2, path, title) as panels:
        numbers = [point["slots"] for point in values["points"]]
        for axes, key, label in (
            (panels[0], "f1", f"{values['score']} in percent"),
            (panels[1], "recurring", f"recurring {'names' if values['score'] == 'F1' else 'words'} right in percent"),
        ):
            axes.plot(numbers, [point[key] for point in values["points"]], color=BLUE, marker="o")
            axes.axvline(values["own"], color=GREY, linestyle=":", label=f"own memory: {values['own']} slots")
            axes.set(xlabel="memory slots read at most", ylabel=label)
            _tick_at(axes, numbers)


def draw_length(values: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Draw F1 and speed by the length of sentences."""
    with saved_panels(2, path, title) as (scores, speed):
        bins = values["bins"]
        places = range(len(bins))
        names = [f"{entry['words']}\n({entry['sentences']:,})" for entry in bins]
        scores.plot(places, [entry["f1"] for entry in bins], color=BLUE, marker="o")
        scores.set(ylabel=f"{values['score']} in percent")
        _draw_speed(speed, places, bins, device=values["device"])
        for axes in (scores, speed):
            axes.set(xlabel="words of the sentence (sentences)")
            axes.set_xticks(places, names, fontsize="small")


def draw_uncertainty(values: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Draw histograms of the uncertainty of right and of wrong drafts."""
    with saved_panels(1, path, title) as (axes,):
        edges = values["edges"]
        for key, color, filled in (("right", BLUE, True), ("wrong", ORANGE, False)):
            total, mean = sum(values[key]), values[f"mean_{key}"]
            if not total:
                continue
            shares = [100.0 * count / total for count in values[key]]
            label = f"{key}: {total:,} words, mean {mean:.3f} nats"
            axes.stairs(shares, edges, fill=filled, color=color, alpha=0.4 if filled else 1.0, linewidth=2, label=label)
            axes.axvline(mean, color=color, linestyle="--")
        axes.set(xlabel="uncertainty of the draft in nats", ylabel="share of these words in percent", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def draw_parts(values: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Draw the recall of each position in a mention, with a part of the output layer's input zeroed."""
    with saved_panels(1, path, title) as (axes,):
        colors, width = (BLUE, ORANGE, GREY), 0.27
        for place, ((zeroed, recalls), color) in enumerate(zip(values["zeroed"].items(), colors, strict=True)):
            axes.bar([n + (place - 1) * width for n in range(len(recalls))], recalls.values(), width, color=color)
            axes.containers[-1].set_label(f"{zeroed} zeroed")
            axes.set_xticks(range(len(recalls)), recalls)
        axes.set(xlabel="position of the word in its mention (BIOES)", ylabel="recall in percent")


def draw_attended(values: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Draw how many hops away, in the sentence and in its tree, the word is that words of names attend to most."""
    with saved_panels(2, path, title) as panels:
        for axes, (name, found) in zip(panels, values["hops"].items(), strict=True):
            for shift, (key, color) in zip((-0.2, 0.2), (("attended", BLUE), ("by_chance", GREY)), strict=True):
                places = range(1, len(found[key]["shares"]) + 1)
                axes.bar([place + shift for place in places], found[key]["shares"], 0.4, color=color)
                axes.containers[-1].set_label(key.replace("_", " "))
            axes.set_xticks(places, [*map(str, places[:-1]), f"{places[-1]}+"])
            axes.set(xlabel=f"hops in the {name}", ylabel="words of names in percent")


def draw_epochs(curves: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, *, measure: str, title: str) -> None:
    """Draw the score on dev of several trainings, epoch by epoch."""
    with saved_panels(1, path, title) as (axes,):
        for name, epochs in curves.items():
            axes.plot([entry["epoch"] for entry in epochs], [entry["dev"] for entry in epochs], marker=".", label=name)
        axes.set(xlabel="epoch", ylabel=f"{measure} on dev in percent")


def draw_attention(
    weights: Sequence[Sequence[float]],
    path: Path,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    heads: int,
    title: str,
) -> None:
    """Draw the attention weights of a sentence.

    Args:
        weights: one row a word, one column for each thing attended to, 0..1; the mean of `heads` heads.
    """
    widest = max(map(len, rows))
    inches = (2.0 + 0.08 * widest + _CELL_INCHES * len(columns), 2.2 + _CELL_INCHES * len(rows))
    figure = new_figure((max(6.5, inches[0]), max(2.6, inches[1])), title)
    axes = figure.subplots()
    image = axes.imshow(weights, cmap="Blues", vmin=0.0, aspect="auto")
    # Dollar signs in words do not start formulas.
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize="small", parse_math=False)
    axes.set_yticks(range(len(rows)), rows, fontsize="small", parse_math=False)
    figure.colorbar(image, ax=axes, label="weight" if heads == 1 else f"weight, mean of {heads} heads", shrink=0.8)
    save_figure(figure, path)


def _draw_speed(axes: Axes, places: Sequence[int], points: Sequence[Mapping[str, Any]], *, device: str) -> None:
    speeds = [point["words_per_second"] for point in points]
    axes.plot(places, speeds, color=BLUE, marker="o")
    axes.set(ylabel=f"words per second ({device})", ylim=(0, 1.08 * max(speeds)))


def _tick_at(axes: Axes, numbers: Sequence[int]) -> None:
    axes.xaxis.set_major_locator(FixedLocator(numbers))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(number) for number in numbers])
