"""What a run of the bench measured, and how it is summed up and kept.

The arithmetic: a mode's ratio on a turn is the median over the rounds of its tokens/s over the base's in the same
round; a workload's is the median over its turns, with a bootstrap interval over them. A turn where the mode's
tokens are wrong counts for nothing; one whose answer loops (guard.py) counts apart, never in the headline.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash_cpp.bench.guard import Repetition
from dflash_cpp.bench.intervals import Interval, median_interval
from dflash_cpp.results import Stats, TimelineEvent

FORMAT = 1
WRONG = "WRONG"


@dataclass
class Generation:
    """One mode's answer to one turn in one round.

    Attributes
    ----------
    n_tokens
        Tokens generated.
    wall_seconds
        The whole call by a clock outside of the core, prefill and chat template included.
    verdict
        "" where the tokens are the base's, "near-tie at N" or "WRONG at N" where they part.
    repetition
        How much the answer repeats itself.
    stats
        What the core counted; no timeline.
    text
        The answer; of the base only, "" otherwise.
    """

    n_tokens: int
    wall_seconds: float
    verdict: str
    repetition: Repetition
    stats: Stats
    text: str = ""

    @property
    def tokens_per_second(self) -> float:
        """Of decoding alone."""
        return self.stats.tokens_per_second

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Generation:
        """Read what `asdict` gave."""
        return cls(**{**raw, "repetition": Repetition(**raw["repetition"]), "stats": Stats(**raw["stats"])})


@dataclass
class TurnResult:
    """All rounds of all modes on one turn: [mode][round]."""

    name: str
    generations: dict[str, list[Generation]] = field(default_factory=dict)

    def speeds(self, mode: str) -> list[float]:
        """Tokens per second by round."""
        return [g.tokens_per_second for g in self.generations[mode]]

    def last(self, mode: str) -> Generation:
        """The last round's."""
        return self.generations[mode][-1]

    def ratio(self, mode: str, base: str) -> float:
        """Median over the rounds of mode / base, paired; 0 where the base generated nothing."""
        pairs = zip(self.speeds(mode), self.speeds(base), strict=True)
        return statistics.median(a / b if b > 0 else 0.0 for a, b in pairs)

    def verdict(self, mode: str) -> str:
        """The worst of the rounds': WRONG, a near-tie, or ""."""
        verdicts = [g.verdict for g in self.generations[mode]]
        return next((v for v in verdicts if v.startswith(WRONG)), next((v for v in verdicts if v), ""))

    def wrong(self, mode: str) -> bool:
        """Whether the mode's tokens are not the base's, and no near-tie explains it."""
        return self.verdict(mode).startswith(WRONG)

    def loops(self, mode: str, base: str) -> str:
        """Why this turn is an artefact: the mode's answer or the base's loops. "" where neither does."""
        return self.last(mode).repetition.reason or self.last(base).repetition.reason

    def seconds(self, mode: str) -> float:
        """Median seconds of decoding."""
        return statistics.median(g.stats.decode_seconds for g in self.generations[mode])


@dataclass(frozen=True)
class Summary:
    """A mode on a workload.

    Attributes
    ----------
    ratio
        To the base, over the turns whose answers do not loop: the headline.
    looped
        The same over those that do.
    tokens_per_second, prefill_per_second
        Medians over all turns.
    acceptance_length, target_idle, drafter_busy
        Means over all turns.
    n_wrong, n_near_ties
        Turns whose tokens are wrong (left out of all ratios), or part at a near-tie.
    saved_by_loops
        Of the seconds of decoding that the mode saved, the share that turns with looping answers gave; None where
        it saved none.
    """

    ratio: Interval
    looped: Interval
    tokens_per_second: float
    prefill_per_second: float
    acceptance_length: float
    target_idle: float
    drafter_busy: float
    n_wrong: int
    n_near_ties: int
    saved_by_loops: float | None


def mean(values: Sequence[float]) -> float:
    """Their mean; 0 of none."""
    return sum(values) / len(values) if values else 0.0


def summarise(turns: Sequence[TurnResult], mode: str, base: str) -> Summary:
    """Sum a mode up over a workload's turns."""
    right = [turn for turn in turns if not turn.wrong(mode)]
    honest = [turn for turn in right if not turn.loops(mode, base)]
    looped = [turn for turn in right if turn.loops(mode, base)]

    def saved(some: Sequence[TurnResult]) -> float:
        return sum(turn.seconds(base) - turn.seconds(mode) for turn in some)

    stats = [turn.last(mode).stats for turn in turns]
    read = [s.prompt_tokens / s.prefill_seconds for s in stats if s.prefill_seconds > 0]
    return Summary(
        ratio=median_interval([turn.ratio(mode, base) for turn in honest]),
        looped=median_interval([turn.ratio(mode, base) for turn in looped]),
        tokens_per_second=statistics.median(statistics.median(turn.speeds(mode)) for turn in turns),
        prefill_per_second=statistics.median(read) if read else 0.0,
        acceptance_length=mean([s.acceptance_length for s in stats]),
        target_idle=mean([s.target_idle_share for s in stats]),
        drafter_busy=mean([s.drafter_busy_share for s in stats]),
        n_wrong=len(turns) - len(right),
        n_near_ties=sum(bool(turn.verdict(mode)) for turn in right),
        saved_by_loops=saved(looped) / saved(right) if saved(right) > 0 else None,
    )


def acceptance_by_position(stats: Sequence[Stats]) -> list[float]:
    """Return, by position, the share of the drafts so long that were accepted up to and including it."""
    accepted: list[float] = []
    offered: list[float] = []
    for source in (source for s in stats for source in s.sources.values()):
        for i, (share, n) in enumerate(
            zip(source["acceptance_by_position"], source["offered_by_position"], strict=True)
        ):
            if i == len(offered):
                offered.append(0)
                accepted.append(0)
            offered[i] += n
            accepted[i] += share * n
    return [a / n if n else 0.0 for a, n in zip(accepted, offered, strict=True)]


@dataclass
class BenchResult:
    """A whole run.

    Attributes
    ----------
    settings
        What was asked for: model, drafters, modes, rounds, tokens. Two runs with the same settings may be joined.
    environment
        Machine, build, hashes of the models, memory, the target's cost curve.
    workloads
        [name] turns, in order.
    timelines
        [mode] some verifications from the middle of one turn.
    """

    settings: dict[str, Any]
    environment: dict[str, Any]
    workloads: dict[str, list[TurnResult]]
    timelines: dict[str, list[TimelineEvent]] = field(default_factory=dict)

    @property
    def modes(self) -> list[str]:
        """In the order of the command line, the base first."""
        return list(self.settings["modes"])

    @property
    def base(self) -> str:
        """What ratios are taken to, and whose tokens are right."""
        return str(self.settings["base"])

    def summary(self, workload: str, mode: str, base: str | None = None) -> Summary:
        """Sum a mode up."""
        return summarise(self.workloads[workload], mode, base or self.base)

    def summaries(self, base: str | None = None) -> dict[str, dict[str, Summary]]:
        """[workload][mode]."""
        return {name: {mode: self.summary(name, mode, base) for mode in self.modes} for name in self.workloads}

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, ready for JSON."""
        return {
            "format": FORMAT,
            "settings": self.settings,
            "environment": self.environment,
            "summary": {
                name: {mode: asdict(summary) for mode, summary in by_mode.items()}
                for name, by_mode in self.summaries().items()
            },
            "workloads": {name: [asdict(turn) for turn in turns] for name, turns in self.workloads.items()},
            "timelines": {mode: [asdict(event) for event in events] for mode, events in self.timelines.items()},
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> BenchResult:
        """Read what `to_dict` gave.

        Raises
        ------
        ValueError
            It has another form.
        """
        try:
            if raw["format"] != FORMAT:
                raise ValueError(f"it has format {raw['format']}, this program reads {FORMAT}")
            workloads = {
                name: [
                    TurnResult(turn["name"], {m: [Generation.from_dict(g) for g in gs]
                                              for m, gs in turn["generations"].items()})
                    for turn in turns
                ]
                for name, turns in raw["workloads"].items()
            }  # fmt: skip
            timelines = timelines_of(raw["timelines"])
            result = cls(dict(raw["settings"]), dict(raw["environment"]), workloads, timelines)
            wanted = set(result.modes)
            if not wanted or result.base not in wanted:
                raise ValueError("its base is none of its modes")
            for turns in workloads.values():
                for turn in turns:
                    if set(turn.generations) != wanted or not all(turn.generations.values()):
                        raise ValueError(f"'{turn.name}' has not all modes")
            return result
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no result of the bench ({type(error).__name__}: {error})") from error


def timelines_of(raw: Mapping[str, Any]) -> dict[str, list[TimelineEvent]]:
    """[mode] events, from their dicts."""
    return {mode: [TimelineEvent(**event) for event in events] for mode, events in raw.items()}


def read_json(path: Path) -> Any:
    """Read a JSON file; ValueError where it cannot be read or is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def save_text(path: Path, text: str) -> None:
    """Write beside, then rename."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def load_result(path: Path) -> BenchResult:
    """Read a run's results.json.

    Raises
    ------
    ValueError
        The file cannot be read or holds something else.
    """
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: it is no result of the bench")
    try:
        return BenchResult.from_dict(raw)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


# -- the journal ------------------------------------------------------------------------------------------------

Round = dict[str, list[Generation]]
"""[mode][turn] of one round over an item."""


class Journal:
    """A run's folder while it is measured: a file to which each round is added as it ends, so that none is lost.

    The first line holds the settings. Opened again with the same settings, the rounds are there to go on from.

    Raises
    ------
    ValueError
        The folder cannot be written, or holds a run with other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.rounds: dict[tuple[str, str, int], Round] = {}
        self._path = folder / "rounds.jsonl"
        header = json.dumps({"format": FORMAT, "settings": settings}, sort_keys=True)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self._read(header)
            else:
                self._append(header)
        except OSError as error:
            raise ValueError(f"cannot write to {folder}: {error.strerror or error}") from error

    def _read(self, header: str) -> None:
        raw = self._path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]  # the last line of a run that was killed may be half a line
        lines = whole.decode("utf-8").splitlines()
        if not lines:
            self._path.unlink()
            self._append(header)
            return
        if lines[0] != header:
            raise ValueError(
                f"{self._path.parent} holds a run with other settings; give another --out, or delete it"
            )
        for number, line in enumerate(lines[1:], 2):
            try:
                raw_round = json.loads(line)
                key = (raw_round["workload"], raw_round["item"], raw_round["round"])
                self.rounds[key] = {
                    mode: [Generation.from_dict(g) for g in generations]
                    for mode, generations in raw_round["modes"].items()
                }
            except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{self._path}, line {number}: damaged; delete the file to measure anew"
                ) from error
        if len(whole) < len(raw):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))

    def _append(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    def add(self, workload: str, item: str, number: int, measured: Round) -> None:
        """Keep a round."""
        modes = {mode: [asdict(g) for g in generations] for mode, generations in measured.items()}
        self._append(json.dumps({"workload": workload, "item": item, "round": number, "modes": modes}))
        self.rounds[workload, item, number] = measured


def without_timeline(stats: Stats) -> Stats:
    """Return the counters alone."""
    return replace(stats, timeline=[])


Report = Callable[[str, int, int], None]
"""Called as report(what, done, total) while something long runs."""
