"""Pictures of measurements: ratios with their intervals, and who worked when."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_cpp.results import TimelineEvent

if TYPE_CHECKING:
    from dflash_cpp.bench.runner import Run

COLOURS = {"verify": "#2f6fb3", "prefill": "#9bb9d8", "draft": "#d9822b", "ahead": "#3a9a5b", "inject": "#c9b458",
           "wait": "#c0504d", "begin": "#cccccc"}  # fmt: skip
OTHER = "#888888"


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("pictures need the package matplotlib: pip install 'dflash-cpp[pictures]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def check(path: Path) -> None:
    """Raise ValueError where no picture could be written there: before anything is measured."""
    _pyplot()
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"{path} is no picture's name; use .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the folder of {path} does not exist")


def _save(figure: Any, path: Path) -> None:
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    figure.savefig(partial, bbox_inches="tight", dpi=150)
    partial.replace(path)


def draw_ratios(reports: Mapping[str, Run], path: Path, note: str = "") -> None:
    """Draw the ratio to plain decoding of every mode, by workload, with its 95% interval."""
    plt = _pyplot()
    modes = [m for m in next(iter(reports.values())).modes if m != "plain"]
    figure, axis = plt.subplots(figsize=(2 + 0.4 * len(modes) * len(reports), 4))
    step = 0.8 / max(1, len(modes))
    for number, mode in enumerate(modes):
        summaries = [run.summary(mode) for run in reports.values()]
        at = [i + step * (number - (len(modes) - 1) / 2) for i in range(len(summaries))]
        ratios = [s["ratio"] for s in summaries]
        errors = [[s["ratio"] - s["low"] for s in summaries], [s["high"] - s["ratio"] for s in summaries]]
        axis.bar(at, ratios, step * 0.9, label=mode, yerr=errors, capsize=2)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(reports)), list(reports))
    axis.set_ylabel("tokens/s, ratio to plain decoding")
    axis.set_title(note, fontsize="small")
    axis.legend(fontsize="small")
    _save(figure, path)
    plt.close(figure)


def draw_timeline(timelines: Mapping[str, list[TimelineEvent]], path: Path, *, verifications: int = 12,
                  note: str = "") -> None:  # fmt: skip
    """Draw some verifications from the middle of a generation, a row of lanes (target, drafter, host) per mode."""
    plt = _pyplot()
    figure, axes = plt.subplots(len(timelines), 1, figsize=(12, 1 + 1.3 * len(timelines)), squeeze=False)
    names: dict[str, str] = {}
    for axis, (mode, events) in zip(axes[:, 0], timelines.items(), strict=True):
        passes = [e for e in events if e.name == "verify"]
        middle = max(0, len(passes) // 2 - verifications // 2)
        shown = passes[middle : middle + verifications]
        if not shown:
            continue
        begin, end = shown[0].start, shown[-1].end
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
    figure.legend(handles, list(names), loc="upper right", ncols=len(names), fontsize="small")
    figure.tight_layout()
    _save(figure, path)
    plt.close(figure)
