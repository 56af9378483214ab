"""The command `dflash-cpp bench`: what its subcommands print."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict

from rich.progress import Progress
from rich.table import Table

from dflash_cpp.bench import compare, modes, pictures, record, runner, tune
from dflash_cpp.bench.arguments import fill_context, parse_drafters, workloads_of
from dflash_cpp.bench.modes import DRAFTER, Mode, ModePool
from dflash_cpp.bench.run import Context, run, verification_ms
from dflash_cpp.bench.workloads import Item

SLOWER = 1
"""Exit code of `bench compare` where something got slower or wrong."""


def run_bench(args: argparse.Namespace, context: Context) -> int:
    """Do what the command line asks for."""
    if not context.output.is_terminal:
        context.output.width = max(context.output.width, 160)  # a file has no edge to wrap at
    if getattr(args, "repetitions", 1) < 1:
        raise ValueError("--repetitions takes 1 or more")
    commands = {"run": run, "compare": _compare, "tune": _tune, "serve": _serve, "servers": _servers,
                "parts": _parts, "curve": _curve}  # fmt: skip
    return commands[args.bench_command](args, context)


# -- compare, tune ----------------------------------------------------------------------------------------------


def _compare(args: argparse.Namespace, context: Context) -> int:
    if not 0 <= args.tolerance < 1:
        raise ValueError("--tolerance takes 0 to 1")
    first, second = record.load_result(args.first), record.load_result(args.second)
    changes = compare.compare(first, second, tolerance=args.tolerance, absolute=args.absolute)
    if args.json:
        print(json.dumps([asdict(change) for change in changes]))
    else:
        for line in compare.differences(first, second):
            context.errors.print(f"not the same: {line}", style="dim")
        table = Table("workload", "mode", "B / A", "95% interval", "prompts", "", box=None)
        for change in changes:
            c = change.change
            table.add_row(change.workload, change.mode, f"{c.value:.3f}" if c.n else "-",
                          f"{c.low:.3f} - {c.high:.3f}" if c.n else "", str(c.n), change.verdict)  # fmt: skip
        context.output.print(table)
    return SLOWER if any(change.verdict in ("slower", "wrong") for change in changes) else 0


def _tune(args: argparse.Namespace, context: Context) -> int:
    sets = workloads_of(args)
    drafters = parse_drafters([args.drafter], args.model)
    items = [item for items in sets.values() for item in items]
    fill_context(args, sets)
    pool = ModePool(context.load, drafters, outcomes=args.ahead_outcomes)
    with ExitStack() as stack:
        stack.callback(pool.close)
        worker = runner.Runner(pool, pool.base(), [modes.PLAIN], max_tokens=args.max_tokens)
        progress = stack.enter_context(
            Progress(console=context.errors, transient=True, disable=not context.errors.is_terminal)
        )
        task = progress.add_task("tuning", total=1)

        def measure_round(field: Sequence[Mode], item: Item, shift: int) -> record.Round:
            worker.modes = list(field)
            measured = worker.round(item, shift)
            progress.advance(task)
            return measured

        ranked = tune.tune(
            measure_round, items, with_drafter=DRAFTER in drafters, repetitions=args.repetitions,
            on_stage=lambda stage, total: progress.reset(task, description=stage, total=total),
        )  # fmt: skip
    advice = tune.advice(ranked, args.model, None if args.drafter == "auto" else args.drafter)
    if args.json:
        print(json.dumps({"final": [asdict(standing) for standing in ranked], "advice": advice}))
        return 0
    table = Table("setting", "times plain", "95% interval", "seconds", "fastest in", box=None)
    for s in ranked:
        table.add_row(s.mode.name, f"{s.ratio.value:.3f}", f"{s.ratio.low:.3f} - {s.ratio.high:.3f}",
                      f"{s.seconds:.2f}", f"{s.best:.0%}")  # fmt: skip
    context.output.print(table)
    for line in advice:
        context.output.print(line)
    return 0


# -- servers ----------------------------------------------------------------------------------------------------


def _serve(args: argparse.Namespace, context: Context) -> int:
    from dflash_cpp.bench import client

    if args.clients < 1:
        raise ValueError("--clients takes 1 or more")
    sets = workloads_of(args)
    servers = {}
    for text in args.url:
        name, equals, url = text.partition("=")
        if not equals or not name.isidentifier():
            name, url = text, text
        opened = client.connect(url, args.api_key)
        servers[name] = (opened, args.served_model or client.first_model(opened))
    if len(servers) < len(args.url):
        raise ValueError("--url: two servers have one name; write NAME=URL")
    n_turns = sum(len(item.turns) for items in sets.values() for item in items) * len(servers)
    with Progress(console=context.errors, transient=True, disable=not context.errors.is_terminal) as progress:
        task = progress.add_task("asking", total=n_turns)
        reports = client.measure(
            servers, sets, clients=args.clients, max_tokens=args.max_tokens, on_turn=lambda: progress.advance(task)
        )
    if args.json:
        print(json.dumps({w: {n: r.to_dict() for n, r in by_name.items()} for w, by_name in reports.items()}))
        return 0
    base = next(iter(servers))
    table = Table("workload", "server", "first token", "tokens/s each", "in all", f"ratio to {base}",
                  "95% interval", "answers", "that loop", "other texts", box=None)  # fmt: skip
    for workload, by_name in reports.items():
        for name, got in by_name.items():
            paired = client.ratio(got, by_name[base])
            others = sum(a.text != b.text for a, b in zip(got.requests, by_name[base].requests, strict=True))
            table.add_row(workload, name, f"{got.first_seconds:.2f} s", f"{got.speed:.1f}",
                          f"{got.tokens_per_second:.1f}", f"{paired.value:.3f}" if paired.n else "-",
                          f"{paired.low:.3f} - {paired.high:.3f}" if paired.n else "", str(len(got.requests)),
                          str(got.n_loops), str(others))  # fmt: skip
    context.output.print(table)
    return 0


def _servers(args: argparse.Namespace, context: Context) -> int:
    from dflash_cpp.bench import servers

    if args.clients < 1:
        raise ValueError("--clients takes 1 or more")
    sets = workloads_of(args)
    drafter = parse_drafters(args.drafter, args.model).get(DRAFTER)
    compared = servers.arguments_of(drafter)
    for text in args.server:
        name, equals, arguments = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--server is '{text}'; write NAME=ARGS")
        compared[name] = shlex.split(arguments)
    if args.base not in compared:
        raise ValueError(f"--base is '{args.base}'; use one of {', '.join(compared)}")
    asked = {name: [turn for item in items for turn in item.standalone()] for name, items in sets.items()}
    with Progress(console=context.errors, transient=True, disable=not context.errors.is_terminal) as progress:
        n_rounds = [len(p) if args.clients == 1 else min(args.repetitions, len(p)) for p in asked.values()]
        task = progress.add_task("servers", total=sum(n_rounds))
        reports = servers.measure(
            args.model, compared, asked, clients=args.clients, max_tokens=args.max_tokens,
            rounds=args.repetitions, base=args.base, on_result=lambda: progress.advance(task),
        )  # fmt: skip
    if args.json:
        print(json.dumps({name: asdict(measured) for name, measured in reports.items()}))
        return 0
    table = Table("workload", "server", "tokens/s", f"ratio to {args.base}", "95% interval", "accepted/drafted",
                  "other texts", box=None)  # fmt: skip
    for workload, measured in reports.items():
        for name in measured.servers:
            ratio = measured.ratio(name, args.base)
            accepted, drafted = measured.acceptance[name]
            table.add_row(workload, name, f"{measured.speed(name):.1f}", f"{ratio.value:.3f}",
                          f"{ratio.low:.3f} - {ratio.high:.3f}", f"{accepted}/{drafted}",
                          str(measured.parted[name]))  # fmt: skip
    context.output.print(table)
    return 0


# -- passes -----------------------------------------------------------------------------------------------------


def _curve(args: argparse.Namespace, context: Context) -> int:
    """Time verifications by rows, and show which width promises most for some acceptances."""
    if args.picture:
        pictures.check(args.picture)
    args.n_ctx = args.n_ctx or 4096
    with context.load(None) as llm:
        rows = verification_ms(llm, max(7, 5 * args.repetitions))
    # Expected tokens of width w at acceptance a, over what its rows cost.
    best: dict[str, int] = {}
    for a in (0.3, 0.5, 0.7, 0.9):
        rates = {n - 1: sum(a**i for i in range(n)) / ms for n, ms in rows.items()}
        best[f"{a:.1f}"] = max(rates, key=rates.__getitem__)
    if args.picture:
        pictures.draw_curve(rows, args.picture)
    if args.json:
        print(json.dumps({"model": args.model, "verification_ms": rows, "best_width": best}))
        return 0
    table = Table("rows", "ms", "of one row", "", box=None)
    for n, ms in rows.items():
        table.add_row(str(n), f"{ms:.2f}", f"{ms / rows[1]:.2f}", "#" * round(8 * ms / rows[1]))
    context.output.print(table)
    context.output.print("best width by acceptance: " + ", ".join(f"{a}: {w}" for a, w in best.items()))
    return 0


def _parts(args: argparse.Namespace, context: Context) -> int:
    from dflash_cpp.bench.parts import measure_parts

    sets = workloads_of(args)
    turns = [turn for items in sets.values() for item in items for turn in item.standalone()]
    drafter = parse_drafters(args.drafter, args.model).get(DRAFTER)
    args.width, args.ahead = args.drafter_width, "off"  # the parts of drafting, paying or not
    fill_context(args, sets)
    with context.load(drafter) as llm:
        rows = [measure_parts(llm, turn.prompt, max_tokens=args.max_tokens) for turn in turns]
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    table = Table("prompt", "width", "draft", "verify", "inject", "draft alone", "verify alone", "step / alone",
                  "overhead", box=None)  # fmt: skip
    for turn, row in zip(turns, rows, strict=True):
        times = (row.draft, row.verify, row.inject, row.draft_alone, row.verify_alone)
        table.add_row(turn.name, str(row.width), *(f"{t:.2f} ms" for t in times), f"{row.ratio:.3f}",
                      f"{row.overhead:.2%}")  # fmt: skip
    context.output.print(table)
    return 0
