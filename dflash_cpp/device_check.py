"""`dflash-cpp device-check`: one run, under five minutes, that says whether all of it works on this machine.

Our CUDA kernels against their references, greedy text of every mode against plain decoding, what each mode gains,
and a picture of who worked when.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_cpp import _core
from dflash_cpp.bench.record import BenchResult

MODES = (
    "k4v,w3,w5,w7,w5+ahead,w5+k4v+ahead,drafter,auto,upstream:none,upstream:draft-dflash@5,upstream:ngram-map-k4v"
)
WORKLOADS = ("edit", "prose", "qa")


@dataclass(frozen=True)
class Check:
    """One line of the answer: `ok` is None where there was nothing to check."""

    what: str
    ok: bool | None
    detail: str


def bench_arguments(model: str, drafter: str, folder: Path) -> list[str]:
    """The `dflash-cpp bench` run that it is made of."""
    words = ["bench", "run", "-m", model, "-d", drafter, "--modes", MODES, "--limit", "2", "-n", "64",
             "--repetitions", "2", "--out", str(folder)]  # fmt: skip
    return [*words, *(word for name in WORKLOADS for word in ("--workload", name))]


def check_devices() -> list[Check]:
    """What this build can compute on, and whether our kernels are right there."""
    gpus = [device for device in _core.devices() if device.is_gpu]
    names = ", ".join(f"{d.name} ({d.description}, {d.memory_total / 2**30:.0f} GiB)" for d in gpus)
    checks = [Check("devices", None if not gpus else True, names or "no GPU in this build: all runs on the CPU")]
    kernels = _core.check_kernels()
    if not kernels:
        checks.append(Check("kernels", None, "none in this build, or no CUDA device"))
    checks += [Check(f"kernel: {name}", not problem, problem or "as its reference") for name, problem in kernels]
    return checks


def check_modes(result: BenchResult) -> list[Check]:
    """Whether each mode's tokens are plain's, and what it gains."""
    checks = []
    for mode in result.modes:
        verdicts = [turn.verdict(mode) for turns in result.workloads.values() for turn in turns]
        wrong = sum(verdict.startswith("WRONG") for verdict in verdicts)
        near = sum(bool(verdict) for verdict in verdicts) - wrong
        ratios = [f"{name} {result.summary(name, mode).ratio.value:.2f}" for name in result.workloads
                  if result.summary(name, mode).ratio.n]  # fmt: skip
        tokens = f"{wrong} WRONG, {near} near-ties of {len(verdicts)}" if wrong or near else "tokens equal"
        checks.append(Check(mode, wrong == 0, f"{tokens}; times plain: {', '.join(ratios) or 'all answers loop'}"))
    return checks
