"""The best setting for these prompts: a tournament of modes, paired, and how sure its winner is.

Every mode first answers a few of the prompts; the slower ones leave, the others answer more, and so on
(successive halving). What counts is what a user pays: seconds of decoding for all prompts together. The last ones
are told apart by bootstrap over the prompts. `plain` and the default stay to the end: a setting is worth typing
where it beats both, only there.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_cpp.bench.intervals import Interval, resample
from dflash_cpp.bench.modes import DRAFTER, Mode, parse_mode
from dflash_cpp.bench.record import Round, TurnResult
from dflash_cpp.bench.runner import join_rounds
from dflash_cpp.bench.workloads import Item

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10)
TABLES = ("k4v:6:16", "k4v:6:48", "k4v:12:16", "k4v:20:48")
"""Table sizes beside the default (12:48), tried on the best mode that uses a table."""
FINALISTS = 4


def candidates(with_drafter: bool) -> list[str]:
    """Names of the modes to begin with."""
    if not with_drafter:
        return ["plain", "k4v", *TABLES]
    widths = [f"w{n}" for n in WIDTHS]
    return ["plain", "k4v", "auto", "drafter", *widths, *(f"{w}+k4v" for w in widths[1:8:2]), "w3+ahead",
            "w5+ahead", "w5+k4v+ahead"]  # fmt: skip


def default_mode(with_drafter: bool) -> str:
    """What decodes where nothing is set."""
    return "auto" if with_drafter else "k4v"


def table_variants(name: str) -> list[str]:
    """The same mode with tables of other sizes; none where it has no table, or a size of its own."""
    parts = (f"{DRAFTER}+k4v" if name == "auto" else name).split("+")
    return ["+".join([table if part == "k4v" else part for part in parts]) for table in TABLES if "k4v" in parts]


@dataclass(frozen=True)
class Standing:
    """A mode at the end.

    Attributes
    ----------
    mode
        It.
    seconds
        Of decoding, all prompts.
    ratio
        Of plain's seconds to its own, with the bootstrap interval over prompts: its speed-up.
    best
        Share of the resamples in which it was the fastest of the finalists.
    """

    mode: Mode
    seconds: float
    ratio: Interval
    best: float


def standings(turns: Sequence[TurnResult], modes: Sequence[Mode], base: str = "plain") -> list[Standing]:
    """Rank modes that all have answered the same turns, fastest first; wrong tokens are left out."""
    right = [mode for mode in modes if not any(turn.wrong(mode.name) for turn in turns)]
    seconds = {mode.name: [turn.seconds(mode.name) for turn in turns] for mode in right}
    indices = range(len(turns))

    def total(name: str, chosen: Sequence[int]) -> float:
        return sum(seconds[name][i] for i in chosen)

    wins = {mode.name: 0 for mode in right}

    def count_win(chosen: Sequence[int]) -> float:
        wins[min(wins, key=lambda name: total(name, chosen))] += 1
        return 0.0

    n_resamples = len(resample(len(turns), count_win))
    result = []
    for mode in right:
        name = mode.name
        ratios = resample(len(turns), lambda chosen, name=name: total(base, chosen) / total(name, chosen))  # type: ignore[misc]
        interval = Interval(
            total(base, indices) / total(name, indices), ratios[int(0.025 * n_resamples)],
            ratios[int(0.975 * n_resamples) - 1], len(turns),
        )  # fmt: skip
        result.append(Standing(mode, total(name, indices), interval, wins[name] / n_resamples))
    return sorted(result, key=lambda standing: standing.seconds)


MeasureRound = Callable[[Sequence[Mode], Item, int], Round]
"""Measures some modes on an item; the last argument rotates their order."""


def tune(
    measure_round: MeasureRound,
    items: Sequence[Item],
    *,
    with_drafter: bool,
    repetitions: int = 3,
    on_stage: Callable[[str, int], None] = lambda *_: None,
) -> list[Standing]:
    """Hold the tournament; return the finalists, the fastest first.

    Parameters
    ----------
    measure_round
        Measures.
    items
        The prompts to tune for.
    with_drafter
        Whether there is a drafter.
    repetitions
        Rounds of the final.
    on_stage
        Called with each stage's name and the number of rounds that it will measure.

    Raises
    ------
    ValueError
        There are no items.
    """
    if not items:
        raise ValueError("there is nothing to tune for; give prompts")
    modes = [parse_mode(name) for name in candidates(with_drafter)]
    kept = {"plain", default_mode(with_drafter)}

    def run(stage: str, field: Sequence[Mode], some: Sequence[Item], rounds: int) -> list[Standing]:
        field = sorted(field, key=lambda mode: mode.name != "plain")  # the base comes first
        on_stage(f"{stage}: {len(field)} settings, {len(some)} prompts", rounds * len(some))
        turns: list[TurnResult] = []
        for number, item in enumerate(some):
            turns += join_rounds(item, [measure_round(field, item, number + r) for r in range(rounds)])
        return standings(turns, field)

    def survivors(ranked: Sequence[Standing], n: int) -> list[Mode]:
        fastest = [standing.mode for standing in ranked[:n]]
        return [*fastest, *(s.mode for s in ranked[n:] if s.mode.name in kept)]

    sample = items[:: max(1, len(items) // 4)][:4]
    modes = survivors(run("first look", modes, sample, 1), max(FINALISTS, len(modes) // 3))
    ranked = run("all prompts", modes, items, 1)
    best_with_table = next((s.mode.name for s in ranked if s.mode.ngram), "")
    modes = survivors(ranked, FINALISTS - 1)
    if with_drafter and best_with_table in [mode.name for mode in modes]:
        variants = [parse_mode(name) for name in table_variants(best_with_table)]
        tables = run("table sizes", [parse_mode("plain"), parse_mode(best_with_table), *variants], sample, 1)
        winner = next(s.mode for s in tables if s.mode.name != "plain")
        if winner.name != best_with_table:
            modes.append(winner)
    return run("final", modes, items, repetitions)


def arguments_of(mode: Mode) -> list[str]:
    """The options of `dflash-cpp generate` that decode in a mode."""
    words = [] if mode.drafter else ["--drafter", "none"]
    if mode.width != "auto":
        words += ["--width", str(mode.width)]
    if mode.drafter and mode.ahead != "auto":
        words += ["--ahead", mode.ahead]
    if not mode.ngram:
        words += ["--no-ngram"]
    elif (mode.size_n, mode.size_m) != (12, 48):
        words += ["--table-n", str(mode.size_n), "--table-m", str(mode.size_m)]
    return words


def server_arguments_of(mode: Mode) -> list[str] | None:
    """The options of `dflash-cpp serve` that do; None for plain, which needs no drafting at all."""
    if mode.name == "plain":
        return None
    words = [] if mode.drafter else ["--drafter", "none"]
    if mode.width != "auto":
        words += ["--spec-parallel-width", str(mode.width)]
    if mode.drafter and mode.ahead != "auto":
        words += ["--spec-parallel-ahead", mode.ahead]
    if not mode.ngram:
        words += ["--spec-parallel-ngram", "off"]
    elif (mode.size_n, mode.size_m) != (12, 48):
        words += ["--spec-parallel-size-n", str(mode.size_n), "--spec-parallel-size-m", str(mode.size_m)]
    return words


def advice(ranked: Sequence[Standing], model: str, drafter: str | None) -> list[str]:
    """Say which command line to use, and how sure that is."""
    best = ranked[0]
    name = default_mode(any(s.mode.drafter for s in ranked))
    default = next((s for s in ranked if s.mode.name == name), None)
    lines = [
        f"fastest: {best.mode.name}, {best.ratio} times plain; the fastest in {best.best:.0%} of the resamples"
    ]
    chosen = best
    if default and best is not default and best.best < 0.95:
        lines.append(f"not surely better than {name}, the default ({default.ratio} times plain): leave it at that")
        chosen = default
    where = ["-m", model, *(["-d", drafter] if drafter and chosen.mode.drafter else [])]
    lines.append(f"dflash-cpp generate {shlex.join([*where, *arguments_of(chosen.mode)])} PROMPT")
    server = server_arguments_of(chosen.mode)
    if server is not None:
        own = ["--drafter", drafter] if drafter and chosen.mode.drafter else []
        lines.append(f"dflash-cpp serve {shlex.join([model, *own, *server])}")
    return lines
