"""Paired measurement: every mode on every prompt, interleaved, the order rotated, plain as the base.

The target is loaded once and its memory shared by all modes, so that nothing but the mode differs. The
table and the KV cache start empty for each generation: what is measured is one prompt, not what earlier
prompts taught.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from dflash_cpp import _core
from dflash_cpp._core import NgramMap
from dflash_cpp.bench.workloads import BenchPrompt
from dflash_cpp.llm import LLM, Ahead
from dflash_cpp.results import Completion, Stats

NEAR_TIE = 0.05
"""Logit gap below which batched and single-row kernels may disagree on the argmax."""


@dataclass(frozen=True)
class Mode:
    """A way to decode: whether the k4v table drafts, whether the drafter does, how wide, and ahead or in turn."""

    name: str
    ngram: bool = False
    drafter: bool = False
    width: int | Literal["auto"] = "auto"
    ahead: Ahead = "auto"


PLAIN = Mode("plain")
MODES = ["plain", "k4v", "drafter", "drafter+k4v"]
"""Measured where nothing else is asked for."""
STATIC_MODES = [
    "plain", "k4v", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w2+k4v", "w5+k4v", "w2+ahead", "w5+ahead",
    "drafter", "drafter+k4v",
]  # fmt: skip
"""The automatic choice (the last two) against what could be set by hand."""


def parse_mode(name: str) -> Mode:
    """Return the mode of a name: "plain", or of k4v, drafter, wN (a fixed width) and ahead those joined by "+".

    A fixed width drafts in turn unless "ahead" stands with it; "drafter" alone decides both by itself.

    Raises
    ------
    ValueError
        The name has another part.
    """
    if name == "plain":
        return PLAIN
    mode = Mode(name)
    for part in name.split("+"):
        if part == "k4v":
            mode = replace(mode, ngram=True)
        elif part == "drafter":
            mode = replace(mode, drafter=True)
        elif part == "ahead":
            mode = replace(mode, drafter=True, ahead="on")
        elif part[:1] == "w" and part[1:].isdecimal() and 1 <= int(part[1:]) <= 63:
            mode = replace(mode, drafter=True, width=int(part[1:]))
            if mode.ahead != "on":
                mode = replace(mode, ahead="off")
        else:
            raise ValueError(
                f"mode '{name}' has a part '{part}'; join k4v, drafter, wN and ahead by +, or say plain"
            )
    return mode


class ModePool:
    """LLMs for modes: the models are loaded once with the drafter and once without, and shared by all modes.

    `pace`, in milliseconds: what a verification and a drafter's pass take at least, the rest slept.
    """

    def __init__(
        self, load: Callable[[bool], LLM], *, pace: tuple[float, float] = (0.0, 0.0), outcomes: int = 4
    ) -> None:
        self._load, self._pace, self._outcomes = load, pace, outcomes
        self._bases: dict[bool, LLM] = {}
        self._variants: dict[str, LLM] = {}

    def __call__(self, mode: Mode) -> LLM:
        """Return the LLM of a mode, always the same one."""
        if mode.drafter not in self._bases:
            base = self._bases[mode.drafter] = self._load(mode.drafter)
            base._open_target().set_pace(round(1e3 * self._pace[0]))
            if isinstance(base._drafter, _core.Drafter):
                base._drafter.set_pace(round(1e3 * self._pace[1]))
        if mode.name not in self._variants:
            self._variants[mode.name] = self._bases[mode.drafter]._variant(
                ngram=mode.ngram, width=mode.width, ahead=mode.ahead if mode.drafter else "auto",
                ahead_outcomes=self._outcomes,
            )  # fmt: skip
        return self._variants[mode.name]

    def close(self) -> None:
        """Free the models."""
        for llm in [*self._variants.values(), *self._bases.values()]:
            llm.close()


@dataclass
class PromptResult:
    """All repetitions of all modes on one prompt.

    Attributes
    ----------
    tokens_per_second
        [mode][repetition], decoding only.
    acceptance_length
        [mode], tokens per verification.
    completion_tokens
        Tokens generated, the same for every mode unless they diverged.
    stats
        [mode] the last repetition's.
    divergence
        [mode] "" where the tokens equal plain's, "near-tie at N" where they part at one, "WRONG at N"
        otherwise.
    """

    name: str
    tokens_per_second: dict[str, list[float]] = field(default_factory=dict)
    acceptance_length: dict[str, float] = field(default_factory=dict)
    completion_tokens: int = 0
    divergence: dict[str, str] = field(default_factory=dict)
    stats: dict[str, Stats] = field(default_factory=dict, repr=False)

    def ratio(self, mode: str, base: str = "plain") -> float:
        """Median over the repetitions of mode / base, paired."""
        pairs = zip(self.tokens_per_second[mode], self.tokens_per_second[base], strict=True)
        return statistics.median(a / b for a, b in pairs)


@dataclass
class Run:
    """A whole measurement."""

    model: str
    modes: list[str]
    results: list[PromptResult]

    def ratios(self, mode: str, base: str = "plain") -> list[float]:
        """The ratio to another mode of every prompt whose tokens are right."""
        return [r.ratio(mode, base) for r in self.results if not r.divergence.get(mode, "").startswith("WRONG")]

    def summary(self, mode: str, base: str = "plain") -> dict[str, float]:
        """Median ratio with its bootstrap 95% interval, and median tokens/s."""
        speeds = [statistics.median(r.tokens_per_second[mode]) for r in self.results]
        return summarise(self.ratios(mode, base), speeds)

    def to_dict(self) -> dict[str, Any]:
        """Everything measured but the timelines, ready for JSON."""
        raw = asdict(self)
        for result in raw["results"]:
            for stats in result["stats"].values():
                del stats["timeline"]
        return {**raw, "summary": {mode: self.summary(mode) for mode in self.modes}}


def bootstrap_interval(values: Sequence[float], n_resamples: int = 2000) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the median, resampled with a fixed seed."""
    if not values:
        return (0.0, 0.0)
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(n_resamples))
    return medians[int(0.025 * n_resamples)], medians[int(0.975 * n_resamples) - 1]


def summarise(ratios: Sequence[float], speeds: Sequence[float]) -> dict[str, float]:
    """Return the median ratio (0 without any) with its bootstrap 95% interval, and median tokens/s."""
    low, high = bootstrap_interval(ratios)
    ratio = statistics.median(ratios) if ratios else 0.0
    return {"ratio": ratio, "low": low, "high": high, "tokens_per_second": statistics.median(speeds)}


def top_two_gap(llm: LLM, tokens: Sequence[int], n_single: int) -> float:
    """Gap between the two largest logits after `tokens`, replayed as plain decoding would."""
    largest = sorted(llm.next_logits(tokens, n_single), reverse=True)[:2]
    return largest[0] - largest[1]


def divergence(llm: LLM, prompt: Sequence[int], base: Completion, other: Completion) -> str:
    """Compare two greedy completions: "" where equal, else where they part and whether a near-tie excuses it."""
    if base.tokens == other.tokens:
        return ""
    pairs = zip(base.tokens, other.tokens, strict=False)
    shorter = min(len(base.tokens), len(other.tokens))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    gap = top_two_gap(llm, [*prompt, *base.tokens[:at]], at + 1)
    return f"near-tie at {at}" if gap < NEAR_TIE else f"WRONG at {at}"


def measure(
    llm_of: Callable[[Mode], LLM],
    model: str,
    prompts: Sequence[BenchPrompt],
    modes: Sequence[Mode],
    *,
    max_tokens: int,
    repetitions: int,
    on_result: Callable[[PromptResult], None] | None = None,
) -> Run:
    """Measure every mode on every prompt, greedy.

    Parameters
    ----------
    llm_of
        Gives the LLM that decodes in a mode.
    model
        Its name, for the report.
    prompts, modes
        What to measure; `plain` is added where it is missing, being the base.
    max_tokens
        Tokens to generate per prompt.
    repetitions
        Rounds over the modes per prompt; the order of modes rotates from round to round.
    on_result
        Called after each prompt.
    """
    modes = [PLAIN, *(mode for mode in modes if mode != PLAIN)]
    results = []
    for index, item in enumerate(prompts):
        result = PromptResult(item.name, {mode.name: [] for mode in modes})
        completions: dict[str, Completion] = {}
        for round_number in range(repetitions):
            shift = (index + round_number) % len(modes)
            for mode in [*modes[shift:], *modes[:shift]]:
                llm = llm_of(mode)
                llm.reset()
                if isinstance(llm.ngram, NgramMap):
                    llm.ngram.clear()
                completion = llm.generate(item.prompt, max_tokens=max_tokens)
                completions[mode.name] = completion
                result.tokens_per_second[mode.name].append(completion.stats.tokens_per_second)
                result.acceptance_length[mode.name] = completion.stats.acceptance_length
                result.stats[mode.name] = completion.stats
        plain = llm_of(PLAIN)
        result.completion_tokens = len(completions["plain"].tokens)
        for mode in modes[1:]:
            result.divergence[mode.name] = divergence(
                plain, plain.prompt_tokens(item.prompt), completions["plain"], completions[mode.name]
            )
        results.append(result)
        if on_result:
            on_result(result)
    return Run(model, [mode.name for mode in modes], results)
