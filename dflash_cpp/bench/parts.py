"""Is a step the sum of its parts? Drafter and target side by side in a generation, and each alone.

Where the two fought for the same cores, a pass inside a step would take longer than the same pass alone. And
what a step spends outside of llama.cpp's passes is its overhead.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from dflash_cpp import _core
from dflash_cpp.llm import LLM, Prompt

HOST_EVENTS = ("propose", "sample", "commit", "learn")


@dataclass(frozen=True)
class StepParts:
    """Medians, in milliseconds, over the steps whose draft came from the drafter.

    `overhead` is the share of all step time spent outside of llama.cpp's passes; `ratio` is draft + verify in
    the step over the same two alone; a small-model drafter's `draft_alone` is `width` single-row passes.
    """

    width: int
    steps: int
    draft: float
    verify: float
    inject: float
    draft_alone: float
    verify_alone: float
    ratio: float
    overhead: float


def measure_parts(llm: LLM, prompt: Prompt, *, max_tokens: int = 128, repetitions: int = 40) -> StepParts:
    """Generate, then time the same passes alone at the context that the generation ended with.

    Raises
    ------
    ValueError
        The LLM has no drafter, or the generation was too short to measure.
    """
    drafter, target = llm._drafter, llm._open_target()
    if drafter is None:
        raise ValueError("there is no drafter to measure; give one")
    timeline = llm.generate(prompt, max_tokens=max_tokens, logit_bias=None).stats.timeline
    drafts = [e for e in timeline if e.name == "draft"]
    if len(drafts) < 8:
        raise ValueError(f"only {len(drafts)} drafts were made; use a longer max_tokens")
    width = statistics.mode(e.rows for e in drafts)
    verifies = [e for e in timeline if e.name == "verify" and e.rows == width + 1]

    def median_ms(events: list[float]) -> float:
        return 1e3 * statistics.median(events) if events else 0.0

    draft = median_ms([e.end - e.start for e in drafts if e.rows == width])
    verify = median_ms([e.end - e.start for e in verifies])
    inject = median_ms([e.end - e.start for e in timeline if e.name == "inject"][1:])
    verify_alone = target.measure_us(width + 1, repetitions) / 1e3
    draft_alone = 0.0
    if isinstance(drafter, _core.Drafter):
        alone = []
        for _ in range(repetitions):
            start = time.perf_counter()
            drafter.lattice(5, width)
            alone.append(time.perf_counter() - start)
        draft_alone = median_ms(alone)
    elif isinstance(drafter, _core.SmallModelDrafter):
        draft_alone = width * drafter.measure_us(1, repetitions) / 1e3
    together = draft + verify
    passes = sum(
        e.end - e.start for e in timeline if e.name in ("draft", "inject", "verify") and e.start >= drafts[0].start
    )
    host = sum(e.end - e.start for e in timeline if e.name in HOST_EVENTS and e.start >= drafts[0].start)
    return StepParts(
        width, len(drafts), draft, verify, inject, draft_alone, verify_alone,
        together / (draft_alone + verify_alone), host / (passes + host),
    )  # fmt: skip
