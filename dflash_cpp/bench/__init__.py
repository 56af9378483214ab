"""Measure on your own prompts: modes interleaved on one machine in one run, as ratios to plain decoding."""

from dflash_cpp.bench.guard import Repetition, judge
from dflash_cpp.bench.modes import ALL_MODES, MODES, STATIC_MODES, Mode, ModePool, parse_mode, parse_modes
from dflash_cpp.bench.record import BenchResult, TurnResult, load_result
from dflash_cpp.bench.runner import Runner, measure
from dflash_cpp.bench.workloads import WORKLOADS, Item, Turn, load_items, load_workload

__all__ = [
    "ALL_MODES", "MODES", "STATIC_MODES", "WORKLOADS", "BenchResult", "Item", "Mode", "ModePool", "Repetition",
    "Runner", "Turn", "TurnResult", "judge", "load_items", "load_result", "load_workload", "measure", "parse_mode",
    "parse_modes",
]  # fmt: skip
