"""Measure on your own prompts: modes interleaved on one machine in one run, as ratios to plain decoding."""

from dflash_cpp.bench.runner import MODES, STATIC_MODES, Mode, ModePool, PromptResult, Run, measure, parse_mode
from dflash_cpp.bench.workloads import WORKLOADS, BenchPrompt, load_prompts

__all__ = [
    "MODES", "STATIC_MODES", "WORKLOADS", "BenchPrompt", "Mode", "ModePool", "PromptResult", "Run",
    "load_prompts", "measure", "parse_mode",
]  # fmt: skip
