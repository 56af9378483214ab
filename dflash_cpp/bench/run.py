"""`dflash-cpp bench run`: measure, keep every round, report."""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dflash_cpp import models
from dflash_cpp.bench import environment, modes, pictures, record, report, runner
from dflash_cpp.bench.arguments import fill_context, parse_drafters, parse_pace, workloads_of
from dflash_cpp.bench.modes import Mode, ModePool
from dflash_cpp.bench.second_device import second_device
from dflash_cpp.bench.workloads import Item
from dflash_cpp.llm import LLM

CURVE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)


@dataclass(frozen=True)
class Context:
    """What the command line gives the subcommands: how to load the model with a drafter, and where to write."""

    load: Callable[[str | None], LLM]
    errors: Console
    output: Console


@contextmanager
def _devices(args: argparse.Namespace) -> Iterator[None]:
    """With --second-device: the drafter behind a server, and one thread for the target."""
    if not args.second_device:
        yield
        return
    if args.drafter_device:
        raise ValueError("--second-device and --drafter-device are both given; use one")
    with second_device() as name:
        args.drafter_device, args.n_threads = name, 1
        yield


def _settings(
    args: argparse.Namespace, sets: Mapping[str, Sequence[Item]], chosen: Sequence[Mode], files: Sequence[Any]
) -> dict[str, Any]:
    """All that a measured round depends on, but the machine's load."""
    asked = repr({name: list(items) for name, items in sets.items()})
    return {
        "model": args.model, "drafters": args.drafter, "modes": [mode.name for mode in chosen], "base": "plain",
        "max_tokens": args.max_tokens, "repetitions": args.repetitions, "pace": args.pace,
        "second_device": args.second_device, "n_ctx": args.n_ctx, "n_gpu_layers": args.n_gpu_layers,
        "n_threads": args.n_threads, "drafter_threads": args.drafter_threads,
        "drafter_device": args.drafter_device, "ahead_outcomes": args.ahead_outcomes,
        "type_k": args.type_k, "type_v": args.type_v,
        "flash_attention": args.flash_attention,
        "workloads": {name: [item.name for item in items] for name, items in sets.items()},
        "prompts_sha256": hashlib.sha256(asked.encode()).hexdigest(), "files": files,
        "build": environment.build(),
    }  # fmt: skip


class _LiveView:
    """Progress, and the table of what is measured so far, where somebody watches."""

    def __init__(self, console: Console, total: int, settings: Mapping[str, Any]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), console=console,
        )  # fmt: skip
        self._task = self._progress.add_task("measuring", total=total)
        self._result = record.BenchResult(dict(settings), {}, {})
        self._rounds: dict[tuple[str, str], list[record.Round]] = {}
        self._turns: dict[tuple[str, str], list[record.TurnResult]] = {}
        self.live = Live(self._progress, console=console, transient=True, refresh_per_second=4) \
            if console.is_terminal else None  # fmt: skip

    def advance(self) -> None:
        self._progress.advance(self._task)

    def show(self, name: str, item: Item, measured: record.Round) -> None:
        """Take in a round and draw the table anew."""
        if not self.live:
            return
        rounds = self._rounds.setdefault((name, item.name), [])
        rounds.append(measured)
        self._turns[name, item.name] = runner.join_rounds(item, rounds)
        self._progress.update(self._task, description=f"{name}: {item.name}")
        mine = [turn for key, turns in self._turns.items() if key[0] == name for turn in turns]
        self._result.workloads = {name: mine}
        self.live.update(Group(self._progress, report.summary_table(self._result)))


def run(args: argparse.Namespace, context: Context) -> int:
    """Measure and print."""
    result = measured(args, context)
    if args.json:
        print(json.dumps(result.to_dict()))
        return 0
    if note := _note(args):
        context.output.print(note)
    context.output.print(report.summary_table(result, args.base))
    if args.details:
        context.output.print(report.details_table(result))
    for line in report.divergences(result):
        context.output.print(line)
    return 0


def _note(args: argparse.Namespace) -> str:
    pace = parse_pace(args.pace)
    return f"(paced: verification {pace[0]:g} ms, drafter's pass {pace[1]:g} ms)" if any(pace) else ""


def measured(args: argparse.Namespace, context: Context) -> record.BenchResult:
    """Measure what the command line asks for, keep it in --out, and draw the pictures.

    Raises
    ------
    ValueError, DFlashError
        The command line, a model, or llama.cpp.
    """
    for path in (args.picture, args.timeline):
        if path:
            pictures.check(path)
    sets = workloads_of(args)
    pace = parse_pace(args.pace)
    drafters = parse_drafters(args.drafter, args.model)
    chosen = modes.parse_modes(args.modes, list(drafters))
    chosen = [modes.PLAIN, *(mode for mode in chosen if mode != modes.PLAIN)]
    if args.base not in [mode.name for mode in chosen]:
        raise ValueError(f"--base is '{args.base}'; use one of the modes measured")
    with _devices(args):
        fill_context(args, sets)
        used = {mode.drafter for mode in chosen if mode.drafter}
        paths = [str(models.resolve(args.model)), *(path for name, path in drafters.items() if name in used)]
        files = [environment.file_identity(path) for path in paths]
        settings = _settings(args, sets, chosen, files)
        journal = record.Journal(args.out, settings) if args.out else None
        result, curve = _measure(args, context, sets, chosen, drafters, pace, settings, journal)
    if args.out:
        memory = {name: _memory_added(args, path) for name, path in drafters.items() if name in used}
        result.environment |= {
            "machine": environment.machine(), "build": settings["build"], "files": files,
            "memory": {name: asdict(added) for name, added in memory.items()},
            "command": f"dflash-cpp {shlex.join(sys.argv[1:])}",
        }  # fmt: skip
        record.save_text(args.out / "results.json", json.dumps(result.to_dict()))
        page = report.write(result, args.out, curve)
        context.errors.print(f"{page}, results.json beside it", style="dim")
    if args.picture:
        pictures.draw_ratios(result, args.picture, _note(args))
    if args.timeline:
        shown = {mode: events for mode, events in result.timelines.items() if mode != "plain"}
        pictures.draw_timeline(shown, args.timeline, _note(args))
    return result


def _measure(
    args: argparse.Namespace, context: Context, sets: Mapping[str, Sequence[Item]], chosen: Sequence[Mode],
    drafters: Mapping[str, str], pace: tuple[float, float], settings: Mapping[str, Any],
    journal: record.Journal | None,
) -> tuple[record.BenchResult, dict[int, float]]:  # fmt: skip
    """Measure what the journal does not hold yet."""
    n_turns = sum(len(item.turns) * (item.repetitions or args.repetitions)
                  for items in sets.values() for item in items)  # fmt: skip
    view = _LiveView(context.errors, n_turns, settings)
    pool = ModePool(
        context.load, drafters, pace=pace, outcomes=args.ahead_outcomes, n_gpu_layers=args.n_gpu_layers
    )
    kept_timelines = args.out / "timeline.json" if args.out else None

    def keep(name: str, item: Item, number: int, measured: record.Round) -> None:
        if journal:
            journal.add(name, item.name, number, measured)
            if kept_timelines and not kept_timelines.exists():
                raw = {mode: [asdict(event) for event in events] for mode, events in worker.timelines.items()}
                record.save_text(kept_timelines, json.dumps(raw))
        view.show(name, item, measured)

    try:
        with ExitStack() as stack:
            worker = runner.Runner(pool, pool.base(), chosen, max_tokens=args.max_tokens)
            for mode in chosen:
                pool(mode)  # a mode that cannot be is refused before anything is measured
            if view.live:
                stack.enter_context(view.live)
            measured = runner.measure(
                worker, sets, repetitions=args.repetitions, known=journal.rounds if journal else None,
                on_round=keep, on_turn=view.advance,
            )  # fmt: skip
            curve = verification_ms(pool.base(), 15) if args.out else {}
    except KeyboardInterrupt:
        if journal and journal.rounds:
            context.errors.print(f"{len(journal.rounds)} rounds are kept in {args.out}; run again to go on")
        raise
    finally:
        pool.close()  # before its devices go
    timelines = worker.timelines
    if not timelines and kept_timelines and kept_timelines.exists():
        timelines = record.timelines_of(record.read_json(kept_timelines))
    result = record.BenchResult(dict(settings), {"verification_ms": curve}, measured, timelines)
    return result, curve


def _memory_added(args: argparse.Namespace, drafter: str) -> environment.MemoryAdded:
    return environment.memory_added(
        args.model, drafter, n_ctx=args.n_ctx, n_gpu_layers=args.n_gpu_layers, type_k=args.type_k,
        type_v=args.type_v,
    )  # fmt: skip


def verification_ms(llm: LLM, repetitions: int) -> dict[int, float]:
    """Milliseconds of a verification by its rows."""
    llm.reset()
    llm.generate([5] * 64, max_tokens=1)  # rows have something to attend to
    target = llm._open_target()
    return {n: target.measure_us(n, repetitions) / 1e3 for n in CURVE_ROWS}
