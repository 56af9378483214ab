"""Measure on your own prompts: modes interleaved on one machine in one run, as ratios to plain decoding."""

from dflash_cpp.bench.runner import MODES, Mode, PromptResult, Run, measure
from dflash_cpp.bench.workloads import WORKLOADS, BenchPrompt, load_prompts

__all__ = ["MODES", "WORKLOADS", "BenchPrompt", "Mode", "PromptResult", "Run", "load_prompts", "measure"]
