"""Two runs of the same prompts: did it get faster or slower?

Two runs are two times of day: what is compared is each run's own ratio to its own base, turn by turn, so that a
machine that was busier the second time changes nothing. Tokens/s themselves are compared where that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_cpp.bench.intervals import Interval, median_interval
from dflash_cpp.bench.record import BenchResult, TurnResult

Verdict = Literal["faster", "slower", "same", "wrong"]


@dataclass(frozen=True)
class Change:
    """A mode on a workload, second run over first.

    Attributes
    ----------
    change
        Median over the turns that neither run got wrong or flagged as a loop, with its interval.
    verdict
        "wrong" where the second run has wrong tokens that the first had not; "slower" or "faster" where the whole
        interval lies beyond 1 and the median beyond the tolerance; else "same".
    """

    workload: str
    mode: str
    change: Interval
    verdict: Verdict


def compare(
    first: BenchResult, second: BenchResult, *, tolerance: float = 0.02, absolute: bool = False
) -> list[Change]:
    """Compare what two runs have in common.

    Parameters
    ----------
    first, second
        The runs.
    tolerance
        A change of the median by less is the same.
    absolute
        Compare tokens/s instead of ratios to the base.

    Raises
    ------
    ValueError
        The runs have no workload, turn or mode in common.
    """
    changes = []
    modes = [mode for mode in first.modes if mode in second.modes and (absolute or mode != first.base)]
    for workload, turns in first.workloads.items():
        others = {turn.name: turn for turn in second.workloads.get(workload, [])}
        pairs = [(turn, others[turn.name]) for turn in turns if turn.name in others]
        for mode in modes if pairs else []:
            changes.append(_change(workload, mode, pairs, (first.base, second.base), tolerance, absolute))
    if not changes:
        raise ValueError("the two runs have no workload, prompt and mode in common")
    return changes


def _change(
    workload: str, mode: str, pairs: Sequence[tuple[TurnResult, TurnResult]], bases: tuple[str, str],
    tolerance: float, absolute: bool,
) -> Change:  # fmt: skip
    values = []
    for a, b in pairs:
        if a.wrong(mode) or b.wrong(mode) or a.loops(mode, bases[0]) or b.loops(mode, bases[1]):
            continue
        if absolute:
            before, after = median_interval(a.speeds(mode)).value, median_interval(b.speeds(mode)).value
        else:
            before, after = a.ratio(mode, bases[0]), b.ratio(mode, bases[1])
        if before > 0:
            values.append(after / before)
    change = median_interval(values)
    verdict: Verdict = "same"
    if any(b.wrong(mode) and not a.wrong(mode) for a, b in pairs):
        verdict = "wrong"
    elif change.n and change.high < 1 and change.value < 1 - tolerance:
        verdict = "slower"
    elif change.n and change.low > 1 and change.value > 1 + tolerance:
        verdict = "faster"
    return Change(workload, mode, change, verdict)


def differences(first: BenchResult, second: BenchResult) -> list[str]:
    """Say what differs between two runs beside their speed: machine, build, files, settings."""
    lines = []
    for what in ("machine", "build"):
        a, b = first.environment.get(what, {}), second.environment.get(what, {})
        lines += [f"{key}: {a.get(key)} / {b.get(key)}" for key in {**a, **b} if a.get(key) != b.get(key)]
    hashes = [{f["name"]: f["sha256"] for f in run.environment.get("files", [])} for run in (first, second)]
    lines += [
        f"{name} is another file" for name in hashes[0] if hashes[1].get(name, hashes[0][name]) != hashes[0][name]
    ]
    for key in ("model", "drafters", "max_tokens", "repetitions", "n_threads", "n_ctx"):
        a, b = first.settings.get(key), second.settings.get(key)
        lines += [f"{key}: {a} / {b}"] if a != b else []
    return lines
