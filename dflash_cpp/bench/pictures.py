"""Pictures of measurements: ratios and their intervals, acceptance by position, the cost curve, the timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_cpp.bench.record import BenchResult, acceptance_by_position
from dflash_cpp.results import TimelineEvent

COLOURS = {"verify": "#2f6fb3", "prefill": "#9bb9d8", "draft": "#d9822b", "ahead": "#3a9a5b", "inject": "#c9b458",
           "wait": "#c0504d", "begin": "#cccccc"}  # fmt: skip
OTHER = "#888888"
FORMATS = (".png", ".svg", ".pdf")


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("pictures need the package matplotlib: pip install 'dflash-cpp[pictures]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def available() -> bool:
    """Whether pictures can be drawn here."""
    try:
        _pyplot()
    except ValueError:
        return False
    return True


def check(path: Path) -> None:
    """Raise ValueError where no picture could be written there: before anything is measured."""
    _pyplot()
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path} is no picture's name; use {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the folder of {path} does not exist")


def _save(figure: Any, path: Path) -> None:
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    figure.savefig(partial, bbox_inches="tight", dpi=110)
    partial.replace(path)
    _pyplot().close(figure)


def draw_ratios(result: BenchResult, path: Path, note: str = "") -> None:
    """Draw every mode's ratio to the base by workload, with its interval: a panel each, the losses in red."""
    plt = _pyplot()
    modes = [mode for mode in result.modes if mode != result.base]
    names = list(result.workloads)
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(1.5 + 3.6 * columns, 1 + (0.6 + 0.26 * len(modes)) * rows),
        squeeze=False,
        sharey=True,
    )
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for axis, name in zip(axes.flat, names, strict=False):
        for row, mode in enumerate(modes):
            summary = result.summary(name, mode)
            for interval, colour in ((summary.looped, "#bbbbbb"), (summary.ratio, None)):
                if interval.n:
                    shown = colour or ("#b03a2e" if interval.value < 1 else "#2f6fb3")
                    axis.plot([interval.low, interval.high], [row, row], color=shown, linewidth=2)
                    axis.plot([interval.value], [row], "o", color=shown, markersize=4)
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_yticks(range(len(modes)), modes, fontsize="x-small")
        axis.set_title(name, fontsize="small")
        axis.tick_params(axis="x", labelsize="x-small")
        axis.grid(axis="x", linewidth=0.3)
    axes[0, 0].invert_yaxis()
    figure.supxlabel(
        f"tokens/s, ratio to {result.base}, 95% interval; grey: answers that loop {note}", fontsize="small"
    )
    figure.tight_layout()
    _save(figure, path)


def draw_acceptance(result: BenchResult, path: Path, n_positions: int = 12) -> None:
    """Draw, by position, the share of the drafts so long that were accepted up to and including it."""
    plt = _pyplot()
    names = list(result.workloads)
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1 + 3.4 * columns, 1 + 2.2 * rows), squeeze=False, sharey=True
    )
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for axis, name in zip(axes.flat, names, strict=False):
        for number, mode in enumerate(m for m in result.modes if m != result.base):
            shares = acceptance_by_position([turn.last(mode).stats for turn in result.workloads[name]])
            if shares:
                shown = shares[:n_positions]
                axis.plot(range(1, len(shown) + 1), shown, label=mode, color=plt.get_cmap("tab20")(number % 20))
        axis.set_title(name, fontsize="small")
        axis.set_ylim(0, 1)
    figure.supxlabel("position in the draft", fontsize="small")
    figure.supylabel("share of drafts accepted so far", fontsize="small")
    handles = {label: handle for axis in axes.flat
               for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}  # fmt: skip
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="upper center", ncols=5, fontsize="x-small",
                      bbox_to_anchor=(0.5, 0.0))  # fmt: skip
    figure.tight_layout()
    _save(figure, path)


def draw_curve(verification_ms: Mapping[int, float], path: Path) -> None:
    """Draw what a verification costs by its rows, beside what as many single rows would."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(6, 3.5))
    rows = sorted(verification_ms)
    axis.plot(rows, [verification_ms[n] for n in rows], "o-", color=COLOURS["verify"], label="a verification")
    axis.plot(rows, [n * verification_ms[rows[0]] for n in rows], "--", color=OTHER, label="that many single rows")
    axis.set_xlabel("rows: the anchor and its draft")
    axis.set_ylabel("ms")
    axis.set_ylim(0, 1.15 * max(verification_ms.values()))
    axis.legend(fontsize="small")
    figure.tight_layout()
    _save(figure, path)


def draw_timeline(timelines: Mapping[str, Sequence[TimelineEvent]], path: Path, note: str = "") -> None:
    """Draw some verifications, a row of lanes (target, drafter, host) per mode."""
    plt = _pyplot()
    figure, axes = plt.subplots(
        max(1, len(timelines)), 1, figsize=(12, 1 + 1.3 * max(1, len(timelines))), squeeze=False
    )
    names: dict[str, str] = {}
    for axis, (mode, events) in zip(axes[:, 0], timelines.items(), strict=False):
        passes = [event for event in events if event.name == "verify"]
        if not passes:
            continue
        begin, end = passes[0].start, passes[-1].end
        for row, lane in enumerate(["host", "drafter", "target"]):
            for e in events:
                if e.lane == lane and e.end > begin and e.start < end:
                    span = (1e3 * (max(e.start, begin) - begin), 1e3 * (min(e.end, end) - max(e.start, begin)))
                    axis.broken_barh([span], (row + 0.1, 0.8), facecolors=COLOURS.get(e.name, OTHER))
                    names.setdefault(e.name if lane != "host" else "host", COLOURS.get(e.name, OTHER))
        axis.set_yticks([0.5, 1.5, 2.5], ["host", "drafter", "target"])
        axis.set_xlim(0, 1e3 * (end - begin))
        axis.set_title(mode, loc="left", fontsize="small")
    axes[-1, 0].set_xlabel(f"ms {note}")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in names.values()]
    figure.legend(handles, list(names), loc="upper right", ncols=max(1, len(names)), fontsize="small")
    figure.tight_layout()
    _save(figure, path)
