"""The command `dflash-cpp bench`: arguments and output."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from dflash_cpp import bench, models
from dflash_cpp.bench import pictures
from dflash_cpp.bench.second_device import second_device
from dflash_cpp.llm import LLM

Load = Callable[[bool], LLM]
"""Loads the model of the command line, with its drafter or without."""

CURVE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is not about the model."""
    what = parser.add_argument_group("what is measured")
    what.add_argument("--workload", action="append", metavar="NAME",
                      help=f"{', '.join(bench.WORKLOADS)}; may be repeated (edit and prose)")  # fmt: skip
    what.add_argument("--prompts", type=Path, metavar="FILE", help='your own: JSONL with "prompt" or "messages"')
    what.add_argument("--limit", type=int, metavar="N", help="take the first N prompts of each workload")
    what.add_argument("--repetitions", type=int, default=3, metavar="N", help="rounds per prompt (3)")
    what.add_argument("--max-tokens", "-n", type=int, default=128, metavar="N", help="tokens per prompt (128)")
    what.add_argument("--modes", metavar="LIST",
                      help="plain, or k4v, drafter, wN (a fixed width) and ahead joined by +, as in w5+k4v+ahead, "
                           "with commas between modes; static: all that can be set by hand, against auto "
                           f"({','.join(bench.MODES)})")  # fmt: skip
    what.add_argument("--base", default="plain", metavar="MODE", help="what ratios are taken to (plain)")
    what.add_argument("--pace", metavar="TIMES",
                      help="target=60,drafter=18: a verification and a drafter's pass take that many "
                           "milliseconds at least, as on a machine whose parts do not compete")  # fmt: skip
    what.add_argument("--second-device", action="store_true",
                      help="the drafter in another process over RPC, each on a core of its own")  # fmt: skip
    what.add_argument("--parts", action="store_true",
                      help="with --drafter: time a step's passes in it and alone, and its overhead")  # fmt: skip
    what.add_argument("--curve", action="store_true",
                      help="measure what a verification costs by its rows, and what width auto takes")  # fmt: skip
    what.add_argument("--servers", action="store_true",
                      help="llama-server instead: plain, ours and the pin's drafting, side by side")  # fmt: skip
    what.add_argument("--server", action="append", metavar="NAME=ARGS", default=[],
                      help="with --servers: one more, by its llama-server arguments")  # fmt: skip
    what.add_argument("--clients", type=int, default=1, metavar="N", help="with --servers: who asks at once (1)")
    out = parser.add_argument_group("output")
    out.add_argument("--details", action="store_true", help="say what each source drafted and how it fared")
    out.add_argument("--picture", type=Path, metavar="FILE", help="draw the ratios (.png, .svg or .pdf)")
    out.add_argument("--timeline", type=Path, metavar="FILE", help="draw who worked when, for the last prompt")
    out.add_argument("--json", action="store_true", help="print everything measured as JSON")


def parse_pace(text: str | None) -> tuple[float, float]:
    """Return milliseconds of the target and the drafter from "target=60,drafter=18"; ValueError otherwise."""
    pace = {"target": 0.0, "drafter": 0.0}
    for part in text.split(",") if text else []:
        name, _, value = part.partition("=")
        try:
            milliseconds = float(value)
        except ValueError:
            milliseconds = -1.0
        if name not in pace or not 0 < milliseconds < 60_000:
            raise ValueError(f"--pace is '{text}'; write target=60,drafter=18 (milliseconds)")
        pace[name] = milliseconds
    return pace["target"], pace["drafter"]


def run_bench(args: argparse.Namespace, load: Load, errors: Console, output: Console) -> int:
    """Measure what the command line asks for and print it."""
    if not output.is_terminal:
        output.width = max(output.width, 160)  # a file has no edge to wrap at
    if args.repetitions < 1 or (args.limit is not None and args.limit < 1):
        raise ValueError("--repetitions and --limit take 1 or more")
    for path in (args.picture, args.timeline):
        if path:
            pictures.check(path)
    sets: dict[str, list[bench.BenchPrompt]] = {}
    for name in args.workload or ([] if args.prompts else ["edit", "prose"]):
        if name not in bench.WORKLOADS:
            raise ValueError(f"unknown workload '{name}'; use one of {', '.join(bench.WORKLOADS)}")
        sets[name] = bench.WORKLOADS[name]()
    if args.prompts:
        sets[args.prompts.name] = bench.load_prompts(args.prompts)
    if args.servers:
        return _servers(args, sets, errors, output)
    if args.parts:
        return _parts(args, [item for prompts in sets.values() for item in prompts[: args.limit]], load, output)
    if args.curve:
        return _curve(args, load, output)
    pace = parse_pace(args.pace)
    has_drafter = args.drafter != "none" and (args.drafter != "auto" or models.shipped_drafter(args.model))
    modes = _modes(args, bool(has_drafter))
    if args.base not in ("plain", *(mode.name for mode in modes)):
        raise ValueError(f"--base is '{args.base}'; use one of the modes measured")
    with _devices(args):
        pool = bench.ModePool(load, pace=pace, outcomes=args.ahead_outcomes)
        try:
            reports = _measure(args, pool, sets, modes, errors)
        finally:
            pool.close()  # before its devices go
    note = f"(paced: verification {pace[0]:g} ms, drafter's pass {pace[1]:g} ms)" if any(pace) else ""
    if args.picture:
        pictures.draw_ratios(reports, args.picture, note)
    if args.timeline:
        last = next(reversed(reports.values())).results[-1]
        timelines = {mode: stats.timeline for mode, stats in last.stats.items() if mode != "plain"}
        pictures.draw_timeline(timelines, args.timeline, note=note)
    if args.json:
        print(json.dumps({name: run.to_dict() for name, run in reports.items()}))
        return 0
    if note:
        output.print(note)
    output.print(_table(reports, args.base))
    if args.details:
        output.print(_details(reports))
    for run in reports.values():
        for r in run.results:
            for mode, verdict in r.divergence.items():
                if verdict:
                    output.print(f"{r.name}: {mode} {verdict}")
    return 0


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


def _measure(
    args: argparse.Namespace, pool: bench.ModePool, sets: dict[str, list[bench.BenchPrompt]],
    modes: list[bench.Mode], errors: Console,
) -> dict[str, bench.Run]:  # fmt: skip
    reports: dict[str, bench.Run] = {}
    for name, prompts in sets.items():
        chosen = prompts[: args.limit]
        with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
            task = progress.add_task(name, total=len(chosen))

            def advance(_: object, progress: Progress = progress, task: TaskID = task) -> None:
                progress.advance(task)

            reports[name] = bench.measure(
                pool, args.model, chosen, modes, max_tokens=args.max_tokens, repetitions=args.repetitions,
                on_result=advance,
            )  # fmt: skip
    return reports


def _modes(args: argparse.Namespace, has_drafter: bool) -> list[bench.Mode]:
    given = {"static": bench.STATIC_MODES, None: bench.MODES}
    names = given[args.modes] if args.modes in given else args.modes.split(",")
    modes = [bench.parse_mode(name) for name in names]
    if args.modes and args.modes != "static" and not has_drafter and any(mode.drafter for mode in modes):
        raise ValueError("--modes asks for a drafter and there is none; give --drafter")
    return [mode for mode in modes if has_drafter or not mode.drafter]


def _servers(
    args: argparse.Namespace, sets: dict[str, list[bench.BenchPrompt]], errors: Console, output: Console
) -> int:
    from dflash_cpp.bench import servers

    if args.clients < 1:
        raise ValueError("--clients takes 1 or more")
    drafter = models.shipped_drafter(args.model) if args.drafter == "auto" else args.drafter
    compared = servers.arguments_of(None if drafter in (None, "none") else str(drafter))
    for text in args.server:
        name, equals, arguments = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--server is '{text}'; write NAME=ARGS")
        compared[name] = shlex.split(arguments)
    if args.base not in compared:
        raise ValueError(f"--base is '{args.base}'; use one of {', '.join(compared)}")
    chosen = {name: prompts[: args.limit] for name, prompts in sets.items()}
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        n_rounds = [len(p) if args.clients == 1 else min(args.repetitions, len(p)) for p in chosen.values()]
        task = progress.add_task("servers", total=sum(n_rounds))
        reports = servers.measure(
            args.model, compared, chosen, clients=args.clients, max_tokens=args.max_tokens,
            rounds=args.repetitions, base=args.base, on_result=lambda: progress.advance(task),
        )  # fmt: skip
    if args.json:
        print(json.dumps({name: asdict(run) for name, run in reports.items()}))
        return 0
    table = Table("workload", "server", "tokens/s", f"ratio to {args.base}", "95% interval", "accepted/drafted",
                  "other texts", box=None)  # fmt: skip
    for workload, run in reports.items():
        for name in run.servers:
            summary = run.summary(name, args.base)
            accepted, drafted = run.acceptance[name]
            table.add_row(workload, name, f"{summary['tokens_per_second']:.1f}", f"{summary['ratio']:.3f}",
                          f"{summary['low']:.3f} - {summary['high']:.3f}", f"{accepted}/{drafted}",
                          str(run.parted[name]))  # fmt: skip
    output.print(table)
    return 0


def _table(reports: dict[str, bench.Run], base: str) -> Table:
    table = Table(
        "workload", "mode", "tokens/s", f"ratio to {base}", "95% interval", "tokens/verification", "target idle",
        box=None,
    )  # fmt: skip
    for name, run in reports.items():
        for mode in run.modes:
            summary = run.summary(mode, base)
            lengths = [r.acceptance_length[mode] for r in run.results]
            idle = [r.stats[mode].target_idle_share for r in run.results]
            table.add_row(name, mode, f"{summary['tokens_per_second']:.1f}", f"{summary['ratio']:.3f}",
                          f"{summary['low']:.3f} - {summary['high']:.3f}", f"{sum(lengths) / len(lengths):.2f}",
                          f"{sum(idle) / len(idle):.1%}")  # fmt: skip
    return table


def _details(reports: dict[str, bench.Run]) -> Table:
    """What each source did, summed over a workload's prompts (last repetition)."""
    table = Table(
        "workload", "mode", "source", "steps", "drafts", "width", "accepted/draft", "by position",
        "expected tokens/s", "realised", "ahead hits", box=None,
    )  # fmt: skip
    for name, run in reports.items():
        for mode in run.modes:
            stats = [r.stats[mode] for r in run.results]
            hits = sum(s.ahead["hits"] for s in stats)
            launched = sum(s.ahead["launched"] for s in stats)
            for source in stats[0].choices:
                steps = [s.choices[source] for s in stats if s.choices[source]["steps"]]
                if not steps:
                    continue
                n_steps = sum(step["steps"] for step in steps)
                mine = [s.sources[source] for s in stats if source in s.sources]
                drafts = sum(m["proposals"] for m in mine)
                accepted = sum(m["accepted"] for m in mine)
                width = sum(m["proposed"] for m in mine) / max(1, drafts)
                longest: list[float] = max((m["acceptance_by_position"] for m in mine), key=len, default=[])
                positions = []
                for i in range(min(len(longest), 5)):
                    seen = [
                        (m["acceptance_by_position"][i], m["offered_by_position"][i])
                        for m in mine
                        if len(m["acceptance_by_position"]) > i
                    ]
                    positions.append(f"{sum(a * n for a, n in seen) / max(1, sum(n for _, n in seen)):.2f}")
                weighted = [
                    sum(step["steps"] * step[key] for step in steps) / n_steps
                    for key in ("expected_tokens_per_second", "realised_tokens_per_second")
                ]
                table.add_row(
                    name, mode, source, f"{n_steps:.0f}", str(drafts), f"{width:.1f}",
                    f"{accepted / max(1, drafts):.2f}",
                    " ".join(positions), f"{weighted[0]:.1f}", f"{weighted[1]:.1f}",
                    f"{hits} of {launched}" if source == "ahead" else "",
                )  # fmt: skip
    return table


def _curve(args: argparse.Namespace, load: Load, output: Console) -> int:
    """Time verifications by rows, and show which width promises most for some acceptances."""
    with load(False) as llm:
        llm.generate([5] * 64, max_tokens=1)  # rows have something to attend to
        target = llm._open_target()
        rows = {n: target.measure_us(n, max(7, 5 * args.repetitions)) / 1e3 for n in CURVE_ROWS}
    # Expected tokens of width w at acceptance a, over what its rows cost.
    best: dict[str, int] = {}
    for a in (0.3, 0.5, 0.7, 0.9):
        rates = {n - 1: sum(a**i for i in range(n)) / ms for n, ms in rows.items()}
        best[f"{a:.1f}"] = max(rates, key=rates.__getitem__)
    if args.json:
        print(json.dumps({"model": args.model, "verification_ms": rows, "best_width": best}))
        return 0
    table = Table("rows", "ms", "of one row", "", box=None)
    for n, ms in rows.items():
        table.add_row(str(n), f"{ms:.2f}", f"{ms / rows[1]:.2f}", "#" * round(8 * ms / rows[1]))
    output.print(table)
    output.print("best width by acceptance: " + ", ".join(f"{a}: {w}" for a, w in best.items()))
    return 0


def _parts(args: argparse.Namespace, prompts: list[bench.BenchPrompt], load: Load, output: Console) -> int:
    from dflash_cpp.bench.parts import measure_parts

    if args.width == "auto":
        args.width = 5  # parts are those of drafting, paying or not
    args.ahead = "off"
    with load(True) as llm:
        rows = [measure_parts(llm, item.prompt, max_tokens=args.max_tokens) for item in prompts]
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    table = Table("prompt", "width", "draft", "verify", "inject", "draft alone", "verify alone", "step / alone",
                  "overhead", box=None)  # fmt: skip
    for item, row in zip(prompts, rows, strict=True):
        times = (row.draft, row.verify, row.inject, row.draft_alone, row.verify_alone)
        table.add_row(item.name, str(row.width), *(f"{t:.2f} ms" for t in times), f"{row.ratio:.3f}",
                      f"{row.overhead:.2%}")  # fmt: skip
    output.print(table)
    return 0
