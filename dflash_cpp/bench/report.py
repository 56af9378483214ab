"""A run as tables for the terminal and as a Markdown page with pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from dflash_cpp.bench import pictures
from dflash_cpp.bench.record import BenchResult, Summary, mean, save_text
from dflash_cpp.results import Stats

MIB = 2**20
PICTURES = {"ratios": "Ratios by workload", "acceptance": "Acceptance by position",
            "curve": "What a verification costs by its rows", "timeline": "Who worked when"}  # fmt: skip


def verdict_of(summary: Summary, n_turns: int) -> str:
    """Say in a few words what must be known beside a ratio: wrong tokens, near-ties, loops."""
    looped = summary.looped.n
    parts = [f"{summary.n_wrong} WRONG"] if summary.n_wrong else []
    parts += [f"{summary.n_near_ties} near-ties"] if summary.n_near_ties else []
    parts += [f"{looped} of {n_turns} loop: {summary.looped.value:.2f}"] if looped else []
    return ", ".join(parts)


def summary_table(result: BenchResult, base: str | None = None) -> Table:
    """Every mode on every workload."""
    base = base or result.base
    table = Table("workload", "mode", "tokens/s", f"ratio to {base}", "95% interval", "tokens/verification",
                  "target idle", "drafter busy", "", box=None)  # fmt: skip
    for name, turns in result.workloads.items():
        for mode in result.modes:
            s = result.summary(name, mode, base)
            interval = f"{s.ratio.low:.3f} - {s.ratio.high:.3f}" if s.ratio.n else ""
            table.add_row(name, mode, f"{s.tokens_per_second:.1f}", f"{s.ratio.value:.3f}" if s.ratio.n else "-",
                          interval, f"{s.acceptance_length:.2f}", f"{s.target_idle:.1%}", f"{s.drafter_busy:.1%}",
                          verdict_of(s, len(turns)))  # fmt: skip
    return table


def divergences(result: BenchResult) -> list[str]:
    """A line for each turn and mode whose tokens part from the base's."""
    return [
        f"{turn.name}: {mode} {turn.verdict(mode)}"
        for turns in result.workloads.values()
        for turn in turns
        for mode in result.modes
        if turn.verdict(mode)
    ]


def details_table(result: BenchResult) -> Table:
    """What each source did, summed over a workload's turns (last round)."""
    table = Table(
        "workload", "mode", "source", "steps", "drafts", "width", "accepted/draft", "by position",
        "expected tokens/s", "realised", "ahead hits", box=None,
    )  # fmt: skip
    for name, turns in result.workloads.items():
        for mode in result.modes:
            stats = [turn.last(mode).stats for turn in turns]
            for source in stats[0].choices:
                if row := _source_row(stats, source):
                    table.add_row(name, mode, source, *row)
    return table


def _source_row(stats: Sequence[Stats], source: str) -> list[str]:
    steps = [s.choices[source] for s in stats if s.choices[source]["steps"]]
    if not steps:
        return []
    n_steps = sum(step["steps"] for step in steps)
    mine = [s.sources[source] for s in stats if source in s.sources]
    drafts = sum(m["proposals"] for m in mine)
    accepted = sum(m["accepted"] for m in mine)
    width = sum(m["proposed"] for m in mine) / max(1, drafts)
    positions = []
    for i in range(min(5, max((len(m["acceptance_by_position"]) for m in mine), default=0))):
        seen = [(m["acceptance_by_position"][i], m["offered_by_position"][i])
                for m in mine if len(m["acceptance_by_position"]) > i]  # fmt: skip
        positions.append(f"{sum(a * n for a, n in seen) / max(1, sum(n for _, n in seen)):.2f}")
    weighted = [
        sum(step["steps"] * step[key] for step in steps) / n_steps
        for key in ("expected_tokens_per_second", "realised_tokens_per_second")
    ]
    hits = sum(s.ahead["hits"] for s in stats)
    launched = sum(s.ahead["launched"] for s in stats)
    return [
        f"{n_steps:.0f}", str(drafts), f"{width:.1f}", f"{accepted / max(1, drafts):.2f}", " ".join(positions),
        f"{weighted[0]:.1f}", f"{weighted[1]:.1f}", f"{hits} of {launched}" if source == "ahead" else "",
    ]  # fmt: skip


# -- Markdown ---------------------------------------------------------------------------------------------------


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _shares(stats: Sequence[Stats]) -> str:
    """Accepted draft tokens by source, as shares of all tokens."""
    total = sum(s.completion_tokens for s in stats)
    accepted: dict[str, int] = {}
    for source, counted in ((source, c) for s in stats for source, c in s.sources.items()):
        accepted[source] = accepted.get(source, 0) + counted["accepted"]
    parts = [f"{source} {n / total:.0%}" for source, n in accepted.items() if n and total]
    return ", ".join(parts)


def markdown(result: BenchResult, images: Mapping[str, str]) -> str:
    """Return the report: what ran where, ratios with losses in bold, loops apart, and the pictures.

    Parameters
    ----------
    result
        The run.
    images
        [one of PICTURES] its file, relative to the page.
    """
    s, e = result.settings, result.environment
    machine, built = e.get("machine", {}), e.get("build", {})
    parts = [
        "# Bench report",
        f"{s['model']}, greedy, up to {s['max_tokens']} tokens an answer, {s['repetitions']} rounds (of long "
        "prompts and sessions one); every mode on every prompt, interleaved, the order rotated. Ratios are those "
        f"of decoding, to `{result.base}`, paired by prompt and round: the median over prompts with its bootstrap "
        "95% interval. Answers that loop are kept out of it and shown beside.",
        f"{machine.get('processor', '')}, {machine.get('cores', '?')} cores, {machine.get('memory', '?')}; "
        f"{machine.get('system', '')}. dflash-cpp {built.get('dflash_cpp', '?')}, llama.cpp "
        f"{built.get('llama_cpp', '?')}.",
        "## Ratios",
        _ratio_table(result),
        "Bold: slower than the base, interval and all.",
    ]
    for key, title in PICTURES.items():
        if key in images:
            parts += [f"![{title}]({images[key]})"]
    parts += ["## Loops", _loops(result)]
    for name in result.workloads:
        parts += [f"## {name}", _workload_table(result, name)]
        parts += [line for line in [_prompts_line(result, name)] if line]
    if parted := divergences(result):
        parts += ["## Where tokens part", "\n".join(f"- {line}" for line in parted)]
    else:
        parts += ["## Where tokens part", f"Nowhere: every mode gave `{result.base}`'s tokens on every prompt."]
    parts += ["## Memory", _memory(e), "## How it was made", _how(result)]
    return "\n\n".join(parts) + "\n"


def _ratio_table(result: BenchResult) -> str:
    rows = []
    for mode in result.modes:
        cells = [mode]
        for name in result.workloads:
            ratio = result.summary(name, mode).ratio
            text = f"{ratio.value:.2f} ({ratio.low:.2f} - {ratio.high:.2f})" if ratio.n else "-"
            cells.append(f"**{text}**" if ratio.n and ratio.high < 1 else text)
        rows.append(cells)
    return _markdown_table(["mode", *result.workloads], rows)


def _loops(result: BenchResult) -> str:
    counts = []
    for name, turns in result.workloads.items():
        looped = [turn for turn in turns if turn.last(result.base).repetition.loops]
        if looped:
            counts.append(f"{name} {len(looped)} of {len(turns)}")
    if not counts:
        return "No answer loops."
    rows = []
    for mode in (mode for mode in result.modes if mode != result.base):
        for name in result.workloads:
            s = result.summary(name, mode)
            if s.looped.n:
                share = "-" if s.saved_by_loops is None else f"{s.saved_by_loops:.0%}"
                rows.append(
                    [name, mode, f"{s.ratio.value:.2f}" if s.ratio.n else "-", f"{s.looped.value:.2f}", share]
                )
    head = ["workload", "mode", "ratio", "ratio where it loops", "of the time saved, by loops"]
    return f"Answers that loop: {', '.join(counts)}.\n\n{_markdown_table(head, rows)}"


def _workload_table(result: BenchResult, name: str) -> str:
    turns = result.workloads[name]
    rows = []
    for mode in result.modes:
        s = result.summary(name, mode)
        stats = [turn.last(mode).stats for turn in turns]
        rows.append([
            mode, f"{s.tokens_per_second:.1f}", f"{s.prefill_per_second:.0f}", str(s.ratio),
            f"{s.acceptance_length:.2f}", _shares(stats), f"{s.target_idle:.1%}", f"{s.drafter_busy:.1%}",
            verdict_of(s, len(turns)),
        ])  # fmt: skip
    head = ["mode", "tokens/s", "prefill tokens/s", "ratio", "tokens/verification", "accepted, of all tokens",
            "target idle", "drafter busy", ""]  # fmt: skip
    return _markdown_table(head, rows)


def _prompts_line(result: BenchResult, name: str) -> str:
    turns = result.workloads[name]
    lengths = [turn.last(result.base).n_tokens for turn in turns]
    prompts = [turn.last(result.base).stats.prompt_tokens for turn in turns]
    asked = f"{len(turns)} prompts of {min(prompts)} to {max(prompts)} tokens"
    return f"{asked}, answers of {mean(lengths):.0f} on average."


def _memory(environment: Mapping[str, Any]) -> str:
    rows = []
    for drafter, added in environment.get("memory", {}).items():
        device = "-" if added["device"] is None else f"{added['device'] / MIB:.1f}"
        planned = f"{added['planned'] / MIB:.1f} + {added['planned_host'] / MIB:.1f}"
        rows.append([drafter, planned, f"{added['measured'] / MIB:.1f}", device])
    if not rows:
        return "Not measured (no drafter)."
    head = ["drafter", "planned, MiB (and on the host)", "measured, MiB", "on devices, MiB"]
    return f"What a drafter adds to the target:\n\n{_markdown_table(head, rows)}"


def _how(result: BenchResult) -> str:
    files = [f"- `{f['name']}`, {f['bytes']} bytes, SHA-256 `{f['sha256']}`"
             for f in result.environment.get("files", [])]  # fmt: skip
    command = result.environment.get("command", "")
    return "\n".join([f"    {command}", "", *files])


def write(result: BenchResult, folder: Path, curve: Mapping[int, float]) -> Path:
    """Draw the pictures where matplotlib is there, and write report.md; return its path."""
    images = {}
    if pictures.available():
        images = {"ratios": "ratios.png", "acceptance": "acceptance.png"}
        pictures.draw_ratios(result, folder / images["ratios"])
        pictures.draw_acceptance(result, folder / images["acceptance"])
        if curve:
            images["curve"] = "curve.png"
            pictures.draw_curve(curve, folder / images["curve"])
        if result.timelines:
            images["timeline"] = "timeline.png"
            pictures.draw_timeline(result.timelines, folder / images["timeline"])
    path = folder / "report.md"
    save_text(path, markdown(result, images))
    return path
