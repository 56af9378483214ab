"""`dflash-cpp train` and `dflash-cpp train eval`."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from dflash_cpp import models
from dflash_cpp.errors import DFlashError
from dflash_cpp.train.config import SIZES

if TYPE_CHECKING:
    from dflash_cpp.train.evaluate import Report

errors = Console(stderr=True, highlight=False, soft_wrap=True)
output = Console(highlight=False, soft_wrap=True)

STAGES = ("answers", "features", "training")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dflash-cpp train`."""
    parser.add_argument(
        "target", metavar="TARGET", help="the target: a GGUF's path, smollm2, or hf:user/repo/file.gguf"
    )
    parser.add_argument("--out", "-o", type=Path, required=True, metavar="DIR",
                        help="the run's folder; a run that is there goes on")  # fmt: skip
    parser.add_argument("--prompts", type=Path, nargs="+", default=[], metavar="FILE",
                        help="your own prompts (JSONL or text) instead of the built-in ones")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=400_000, metavar="N", help="answer tokens to write (400000)")
    parser.add_argument("--minutes", type=float, metavar="M", help="minutes to train for, this time (60)")
    parser.add_argument("--blocks", type=float, metavar="N", help="train until N blocks in all")
    parser.add_argument("--rate", type=float, default=1.0, metavar="X",
                        help="factor of the learning rates (1); 0.25 refines a trained drafter")  # fmt: skip
    parser.add_argument("--config", default="base", metavar="SIZE", help=f"{', '.join(SIZES)} (base)")
    parser.add_argument("--block-size", type=int, metavar="N", help="rows of a block, the anchor included")
    parser.add_argument("--draft-vocab", type=int, metavar="N", help="tokens that can be drafted; 0: all (8192)")
    parser.add_argument("--without", action="append", choices=("convolution", "selector"), default=[],
                        help="leave a part out, to see what it is worth")  # fmt: skip
    parser.add_argument("--teacher", default="exact", metavar="KIND",
                        help="exact, or bf16: the target unpacked, faster on many CPUs (exact)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the built-in prompts (1)")
    parser.add_argument("--sequences", type=int, default=64, metavar="N", help="answers written at once (64)")
    parser.add_argument("--max-answer", type=int, default=320, metavar="N", help="longest answer, in tokens (320)")
    parser.add_argument(
        "--cache-gb", type=float, default=16.0, metavar="X", help="most disk space for features (16)"
    )
    parser.add_argument("--outtype", default="q4_0", metavar="TYPE", help="type of the drafter's GGUF (q4_0)")
    parser.add_argument("--device", default="auto", metavar="D", help="cpu, cuda or auto: where to train (auto)")
    parser.add_argument("--start-from", type=Path, metavar="DIR", help="go on from a packed run")
    parser.add_argument("--pack", type=Path, metavar="DIR",
                        help="afterwards write there what another machine needs to go on")  # fmt: skip
    parser.add_argument("--until", default="training", choices=STAGES, help="stop after this stage")


def add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dflash-cpp train eval`."""
    parser.add_argument("out", type=Path, metavar="DIR", help="the folder of a training run")
    parser.add_argument("--humaneval", type=int, default=24, metavar="N", help="HumanEval prompts to take (24)")
    parser.add_argument("--max-answer", type=int, default=200, metavar="N", help="longest answer, in tokens (200)")
    parser.add_argument(
        "--engine", action="store_true", help="also decode with the run's drafter.gguf, and compare"
    )
    parser.add_argument("--width", type=int, default=5, metavar="N", help="width of the engine's drafts (5)")
    parser.add_argument("--json", action="store_true", help="print everything measured as JSON")


class _Bars:
    """One progress bar per stage on standard error; where nobody watches, a line now and then."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage, self._printed = "", 0.0

    def __call__(self, stage: str, numbers: dict[str, Any]) -> None:
        done, total = int(numbers["done"]), max(1, int(numbers["total"]))
        shown = {k: v for k, v in numbers.items() if k not in ("done", "total", "progress")}
        text = ", ".join(f"{k} {v:,.3g}" if isinstance(v, float) else f"{k} {v:,}" for k, v in shown.items())
        if not errors.is_terminal:
            if stage != self._stage or time.monotonic() - self._printed > 30 or done >= total:
                errors.print(f"{stage}: {done}/{total} {text}")
                self._stage, self._printed = stage, time.monotonic()
            return
        if stage != self._stage:
            self.stop()
            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"),
                TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("[dim]{task.fields[text]}"), console=errors,
            )  # fmt: skip
            self._progress.start()
            self._task = self._progress.add_task(stage, total=total, text="")
            self._stage = stage
        assert self._progress is not None and self._task is not None
        self._progress.update(self._task, completed=done, total=total, text=text)

    def stop(self) -> None:
        """Leave the last bar as it stands."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise DFlashError("training needs PyTorch: pip install 'dflash-cpp[train]'") from error


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device is {name!r}; use cpu, cuda or auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but PyTorch sees none here")
    return name


def _check(args: argparse.Namespace) -> None:
    for name, low in (("tokens", 1), ("sequences", 1), ("max_answer", 16), ("cache_gb", 0.001), ("rate", 0.001)):
        if not getattr(args, name) >= low:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(args, name)}; use {low} or more")
    for name, low in (("minutes", 0.0), ("blocks", 1.0), ("block_size", 3), ("draft_vocab", 0)):
        value = getattr(args, name)
        if value is not None and not value >= low:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; use {low:g} or more")


def run_train(args: argparse.Namespace) -> int:
    """Run the stages that are not done yet, then write checkpoint and GGUF."""
    from dflash_cpp.convert import OUT_TYPES
    from dflash_cpp.train.pipeline import Recipe, Run

    _check(args)
    if args.outtype not in OUT_TYPES:
        raise ValueError(f"--outtype is {args.outtype!r}; use one of {', '.join(OUT_TYPES)}")
    if args.until == "training":
        _require_torch()
    device = _device(args.device) if args.until == "training" else ""
    changes: dict[str, Any] = {part: False for part in args.without}
    changes |= {k: v for k in ("block_size", "draft_vocab") if (v := getattr(args, k)) is not None}
    target = models.resolve(args.target, lambda line: errors.print(line, style="dim"))
    recipe = Recipe(
        target=str(target), tokens=args.tokens, config=args.config, changes=changes, seed=args.seed,
        prompts=tuple(map(str, args.prompts)), teacher=args.teacher, cache_gb=args.cache_gb,
        sequences=args.sequences, max_answer=args.max_answer,
    )  # fmt: skip
    bars = _Bars()
    try:
        run = Run(args.out, recipe, bars)
        if args.start_from:
            run.unpack(args.start_from)
        run.write_answers()
        if args.until == "answers":
            return 0
        run.compute_features()
        if args.until == "features":
            return 0
        blocks = args.blocks or math.inf
        minutes = args.minutes if args.minutes is not None else (math.inf if args.blocks else 60.0)
        from dflash_cpp.train.trainer import TrainOptions

        options = TrainOptions(
            matrix_rate=args.rate * TrainOptions.matrix_rate, other_rate=args.rate * TrainOptions.other_rate
        )
        trainer = run.train(minutes=minutes, blocks=blocks, device=device, options=options)
    finally:
        bars.stop()
    checkpoint, path = run.export(args.outtype)
    if args.pack:
        run.pack(args.pack)
    spent = f"{trainer.blocks:,} blocks in {trainer.seconds / 60:.0f} min"
    print(f"{spent}, best held-out acceptance length {trainer.best:.3f}")
    print(f"{checkpoint}\n{path}")
    return 0


def run_eval(args: argparse.Namespace) -> int:
    """Measure a run's drafter on texts that it did not learn from."""
    _require_torch()
    from dflash_cpp.train.eval_sets import KINDS
    from dflash_cpp.train.evaluate import evaluate
    from dflash_cpp.train.measure import engine_acceptance, prepare
    from dflash_cpp.train.pipeline import Run

    bars = _Bars()
    try:
        run = Run.open(args.out, bars)
        student = run.student()
        store = prepare(run, humaneval=args.humaneval, max_answer=args.max_answer, report=bars)
        reports = []
        for temperature in (0.0, 0.7):
            for kind in KINDS:

                def tell(done: int, total: int, stage: str = f"{kind} at T {temperature}") -> None:
                    bars(stage, {"done": done, "total": total})

                reports.append(evaluate(student, store, kind, temperature, progress=tell))
        engine = engine_acceptance(run, store, args.width, bars) if args.engine else {}
    finally:
        bars.stop()
    if args.json:
        print(json.dumps({"reports": [report.to_dict() for report in reports], "engine": engine}))
        return 0
    _print_reports(reports)
    for kind, tau in engine.items():
        output.print(f"engine, {kind}, greedy, width {args.width}: {tau:.3f} tokens per verification")
    return 0


def _print_reports(reports: list[Report]) -> None:
    table = Table("text", "T", "tokens", *(f"tau, width {w}" for w in reports[0].fresh), "by position", box=None)
    for report in reports:
        widest = list(report.fresh.values())[-1]
        positions = [a / r if r else 0.0 for a, r in zip(widest.accepted, widest.reached, strict=True)]
        table.add_row(report.kind, f"{report.temperature:g}", str(report.tokens),
                      *(f"{c.tau:.3f}" for c in report.fresh.values()),
                      " ".join(f"{p:.2f}" for p in positions))  # fmt: skip
    output.print(table)
    offsets = list(reports[0].continued)
    table = Table("accepted of 4", "T", "fresh", *(f"+{o}" for o in offsets), "", box=None)
    for report in reports:
        for name, counts in (("continued", report.continued), ("revealed", report.revealed)):
            table.add_row(report.kind, f"{report.temperature:g}", f"{report.fresh_4.tau - 1:.2f}",
                          *(f"{counts[o].tau - 1:.2f}" for o in offsets), name)  # fmt: skip
    output.print(table)
    table = Table("true token among the candidates", "T", "by position", box=None)
    for report in reports:
        table.add_row(report.kind, f"{report.temperature:g}", " ".join(f"{r:.2f}" for r in report.recall))
    output.print(table)
