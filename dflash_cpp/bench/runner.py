"""Paired measurement: every mode on every prompt, interleaved, the order rotated, plain as the base.

The target is loaded once and its memory shared by all modes, so that nothing but the mode differs. The
table and the KV cache start empty for each generation: what is measured is one prompt, not what earlier
prompts taught.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dflash_cpp._core import NgramMap
from dflash_cpp.bench.workloads import BenchPrompt
from dflash_cpp.llm import LLM
from dflash_cpp.results import Completion

NEAR_TIE = 0.05
"""Logit gap below which batched and single-row kernels may disagree on the argmax."""


@dataclass(frozen=True)
class Mode:
    """A way to decode: its name, whether the k4v table drafts, and whether the drafter does."""

    name: str
    ngram: bool
    drafter: bool = False


PLAIN = Mode("plain", ngram=False)
MODES = {
    mode.name: mode
    for mode in [
        PLAIN,
        Mode("k4v", ngram=True),
        Mode("drafter", ngram=False, drafter=True),
        Mode("drafter+k4v", ngram=True, drafter=True),
    ]
}


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
    divergence
        [mode] "" where the tokens equal plain's, "near-tie at N" where they part at one, "WRONG at N"
        otherwise.
    """

    name: str
    tokens_per_second: dict[str, list[float]] = field(default_factory=dict)
    acceptance_length: dict[str, float] = field(default_factory=dict)
    completion_tokens: int = 0
    divergence: dict[str, str] = field(default_factory=dict)

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

    def ratios(self, mode: str) -> list[float]:
        """The ratio to plain of every prompt whose tokens are right."""
        return [r.ratio(mode) for r in self.results if not r.divergence.get(mode, "").startswith("WRONG")]

    def summary(self, mode: str) -> dict[str, float]:
        """Median ratio with its bootstrap 95% interval, and median tokens/s."""
        ratios = self.ratios(mode)
        low, high = bootstrap_interval(ratios)
        speeds = [statistics.median(r.tokens_per_second[mode]) for r in self.results]
        return {
            "ratio": statistics.median(ratios) if ratios else 0.0,
            "low": low,
            "high": high,
            "tokens_per_second": statistics.median(speeds),
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, ready for JSON."""
        return {**asdict(self), "summary": {mode: self.summary(mode) for mode in self.modes}}


def bootstrap_interval(values: Sequence[float], n_resamples: int = 2000) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the median, resampled with a fixed seed."""
    if not values:
        return (0.0, 0.0)
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(n_resamples))
    return medians[int(0.025 * n_resamples)], medians[int(0.975 * n_resamples) - 1]


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
    modes = [PLAIN, *(mode for mode in modes if mode is not PLAIN)]
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
