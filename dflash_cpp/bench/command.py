"""The command `dflash-cpp bench`: arguments and output of its subcommands."""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
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
from rich.table import Table

from dflash_cpp import chat, models
from dflash_cpp.bench import compare, environment, modes, pictures, record, report, runner, tune, workloads
from dflash_cpp.bench.modes import DRAFTER, Mode, ModePool
from dflash_cpp.bench.second_device import second_device
from dflash_cpp.bench.workloads import Item
from dflash_cpp.llm import LLM
from dflash_cpp.plan import header_only

AddArguments = Callable[[argparse.ArgumentParser], None]

CURVE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
MAX_ROWS = 64
"""Of a verification: there is room to measure the largest behind the longest prompt."""
SLOWER = 1
"""Exit code of `bench compare` where something got slower or wrong."""


@dataclass(frozen=True)
class Context:
    """What the command line gives the subcommands: how to load the model with a drafter, and where to write."""

    load: Callable[[str | None], LLM]
    errors: Console
    output: Console


# -- arguments --------------------------------------------------------------------------------------------------


def add_bench_commands(parser: argparse.ArgumentParser, add_context_arguments: AddArguments) -> None:
    """Add the subcommands."""
    commands = parser.add_subparsers(
        dest="bench_command", required=True, metavar="WHAT", parser_class=type(parser)
    )

    run = commands.add_parser("run", help="measure modes against plain decoding, paired")
    _add_prompt_arguments(run)
    run.add_argument("--repetitions", type=int, default=3, metavar="N", help="rounds per prompt (3)")
    run.add_argument("--modes", metavar="LIST",
                     help="plain, auto, or k4v, drafter (or another's name), wN (a fixed width) and ahead joined "
                          "by +, as in w5+k4v+ahead; upstream:TYPES[@WIDTH] for llama.cpp's own; with commas "
                          "between modes. static: all that can be set by hand; all: what docs/results.md compares "
                          f"({','.join(modes.MODES)})")  # fmt: skip
    run.add_argument("--base", default="plain", metavar="MODE", help="what printed ratios are taken to (plain)")
    run.add_argument("--pace", metavar="TIMES",
                     help="target=60,drafter=18: a verification and a drafter's pass take that many "
                          "milliseconds at least, as on a machine whose parts do not compete")  # fmt: skip
    run.add_argument("--second-device", action="store_true",
                     help="the drafter in another process over RPC, each on a core of its own")  # fmt: skip
    out = run.add_argument_group("output")
    out.add_argument("--out", type=Path, metavar="FOLDER",
                     help="keep everything there: results.json, report.md, pictures; a run that was interrupted "
                          "goes on where it was")  # fmt: skip
    out.add_argument("--details", action="store_true", help="say what each source drafted and how it fared")
    out.add_argument("--picture", type=Path, metavar="FILE", help="draw the ratios (.png, .svg or .pdf)")
    out.add_argument("--timeline", type=Path, metavar="FILE", help="draw who worked when, for the first prompt")
    out.add_argument("--json", action="store_true", help="print everything measured as JSON")
    _add_models(run, add_context_arguments)

    comparing = commands.add_parser("compare", help="two runs: did it get faster or slower?")
    comparing.add_argument("first", type=Path, metavar="A.json", help="results.json of a run")
    comparing.add_argument("second", type=Path, metavar="B.json", help="of another one, of the same prompts")
    comparing.add_argument("--tolerance", type=float, default=0.02, metavar="X",
                           help="a change of the median by less is none (0.02)")  # fmt: skip
    comparing.add_argument("--absolute", action="store_true",
                           help="compare tokens/s, not each run's ratios to its own plain")  # fmt: skip
    comparing.add_argument("--json", action="store_true", help="print the changes as JSON")

    tuning = commands.add_parser("tune", help="find the fastest setting for your prompts")
    tuning.add_argument("model", metavar="MODEL", help="a GGUF's path, smollm2, or hf:user/repo/file.gguf")
    tuning.add_argument("drafter", nargs="?", default="auto", metavar="DRAFTER", help="its drafter (auto)")
    _add_prompt_arguments(tuning)
    tuning.add_argument("--repetitions", type=int, default=3, metavar="N", help="rounds of the final (3)")
    tuning.add_argument("--json", action="store_true", help="print the final as JSON")
    _add_context(tuning, add_context_arguments)

    serve = commands.add_parser("serve", help="drive an OpenAI-compatible server with N clients")
    serve.add_argument("--url", action="append", required=True, metavar="[NAME=]URL",
                       help="of the server; again for another one, to compare with the first")  # fmt: skip
    serve.add_argument("--api-key", metavar="KEY", help="what the servers want")
    serve.add_argument("--served-model", metavar="NAME", help="the model to ask for (the first that is offered)")
    serve.add_argument("--clients", type=int, default=1, metavar="N", help="who asks at once (1)")
    _add_prompt_arguments(serve)
    serve.add_argument("--json", action="store_true", help="print every request as JSON")

    servers = commands.add_parser("servers", help="llama-server: plain, ours and the pin's drafting, side by side")
    _add_prompt_arguments(servers)
    servers.add_argument("--repetitions", type=int, default=3, metavar="N", help="rounds, of several clients (3)")
    servers.add_argument("--base", default="plain", metavar="NAME", help="what ratios are taken to (plain)")
    servers.add_argument("--server", action="append", metavar="NAME=ARGS", default=[],
                         help="one more, by its llama-server arguments")  # fmt: skip
    servers.add_argument("--clients", type=int, default=1, metavar="N", help="who asks at once (1)")
    servers.add_argument("--json", action="store_true", help="print everything measured as JSON")
    _add_models(servers, add_context_arguments)

    parts = commands.add_parser("parts", help="a step's passes, in it and alone, and its overhead")
    _add_prompt_arguments(parts)
    parts.add_argument("--drafter-width", type=int, default=5, metavar="N", help="tokens it is asked for (5)")
    parts.add_argument("--json", action="store_true", help="print JSON")
    _add_models(parts, add_context_arguments)

    curve = commands.add_parser("curve", help="what a verification costs by its rows, and what width that favours")
    curve.add_argument("--repetitions", type=int, default=3, metavar="N", help="times 5 passes (3)")
    curve.add_argument("--picture", type=Path, metavar="FILE", help="draw it (.png, .svg or .pdf)")
    curve.add_argument("--json", action="store_true", help="print JSON")
    _add_models(curve, add_context_arguments)


def _add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("prompts")
    what.add_argument("--workload", action="append", metavar="NAME",
                      help=f"{', '.join(workloads.WORKLOADS)}; all: those that need no network; "
                           "may be repeated (edit and prose)")  # fmt: skip
    what.add_argument("--prompts", type=Path, metavar="FILE",
                      help='your own: JSONL with "prompt", "messages" or "turns"; chat logs too')  # fmt: skip
    what.add_argument("--limit", type=int, metavar="N", help="take the first N prompts or sessions of each")
    what.add_argument("--max-tokens", "-n", type=int, default=128, metavar="N", help="tokens per answer (128)")


def _add_models(parser: argparse.ArgumentParser, add_context_arguments: AddArguments) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", "-m", default="smollm2", metavar="MODEL",
                       help="a GGUF's path, smollm2 (default), or hf:user/repo/file.gguf")  # fmt: skip
    group.add_argument("--drafter", "-d", action="append", metavar="[NAME=]FILE",
                       help="a DFlash drafter, a smaller GGUF of the vocabulary, auto or none (auto); again, with "
                            "a name for its modes, for another one")  # fmt: skip
    _add_context(parser, add_context_arguments)


def _add_context(parser: argparse.ArgumentParser, add_context_arguments: AddArguments) -> None:
    add_context_arguments(parser)
    # The context: as large as the prompts need. How drafts are made is the modes' affair.
    parser.set_defaults(n_ctx=None, width="auto", ahead="auto")


# -- what is asked ----------------------------------------------------------------------------------------------


def _workloads(args: argparse.Namespace) -> dict[str, list[Item]]:
    if args.limit is not None and args.limit < 1:
        raise ValueError("--limit takes 1 or more")
    if args.max_tokens < 1:
        raise ValueError("--max-tokens takes 1 or more")
    names = args.workload or ([] if args.prompts else ["edit", "prose"])
    names = [name for given in names for name in (workloads.LOCAL if given == "all" else [given])]
    found = {name: workloads.load_workload(name) for name in names}
    if args.prompts:
        found[args.prompts.name] = workloads.load_items(args.prompts)
    return {name: items[: args.limit] for name, items in found.items()}


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


def parse_drafters(texts: Sequence[str] | None, model: str) -> dict[str, str]:
    """Return [name] path of the drafters given as FILE, NAME=FILE, auto or none; None is auto.

    Raises
    ------
    ValueError
        Two have one name, or a name is also a part of a mode's.
    """
    found: dict[str, str] = {}
    for text in texts or ["auto"]:
        name, equals, path = text.partition("=")
        if not equals or not name.isidentifier():
            name, path = DRAFTER, text
        if path == "none":
            continue
        if path == "auto":
            shipped = models.shipped_drafter(model)
            if not shipped:
                continue
            path = str(shipped)
        if name in found or name in ("plain", "auto", "k4v", "ahead"):
            raise ValueError(f"--drafter {text}: the name '{name}' is taken; give NAME=FILE with another one")
        found[name] = str(models.resolve(path))
    return found


def context_size(items: Iterable[Item], model: str, max_tokens: int) -> int:
    """Tokens that the longest prompt and its answer need, rounded up; 4096 at least, or all that the model has."""
    target = header_only(str(models.resolve(model)), 512)
    needed = 0
    for item in items:
        answer = item.max_tokens or max_tokens
        for index in range(len(item.turns)):
            # Earlier answers, where they come in, are as long as they may be.
            answers = answer * (1 + (index if item.history else 0))
            needed = max(needed, answers + len(chat.prompt_tokens(target, item.prompt(index, [""] * index))))
    rounded = max(4096, -(-(needed + MAX_ROWS) // 512) * 512)  # room to measure the largest verification
    most = target.n_ctx_train
    return most if needed <= most < rounded else rounded


# -- run --------------------------------------------------------------------------------------------------------


def run_bench(args: argparse.Namespace, context: Context) -> int:
    """Do what the command line asks for."""
    if not context.output.is_terminal:
        context.output.width = max(context.output.width, 160)  # a file has no edge to wrap at
    if getattr(args, "repetitions", 1) < 1:
        raise ValueError("--repetitions takes 1 or more")
    commands = {"run": _run, "compare": _compare, "tune": _tune, "serve": _serve, "servers": _servers,
                "parts": _parts, "curve": _curve}  # fmt: skip
    return commands[args.bench_command](args, context)


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


def _fill_context(args: argparse.Namespace, sets: Mapping[str, Sequence[Item]]) -> None:
    if args.n_ctx is None:
        items = (item for items in sets.values() for item in items)
        args.n_ctx = context_size(items, args.model, args.max_tokens)


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


def _run(args: argparse.Namespace, context: Context) -> int:
    for path in (args.picture, args.timeline):
        if path:
            pictures.check(path)
    sets = _workloads(args)
    pace = parse_pace(args.pace)
    drafters = parse_drafters(args.drafter, args.model)
    chosen = modes.parse_modes(args.modes, list(drafters))
    chosen = [modes.PLAIN, *(mode for mode in chosen if mode != modes.PLAIN)]
    if args.base not in [mode.name for mode in chosen]:
        raise ValueError(f"--base is '{args.base}'; use one of the modes measured")
    with _devices(args):
        _fill_context(args, sets)
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
    note = f"(paced: verification {pace[0]:g} ms, drafter's pass {pace[1]:g} ms)" if any(pace) else ""
    if args.picture:
        pictures.draw_ratios(result, args.picture, note)
    if args.timeline:
        shown = {mode: events for mode, events in result.timelines.items() if mode != "plain"}
        pictures.draw_timeline(shown, args.timeline, note)
    if args.json:
        print(json.dumps(result.to_dict()))
        return 0
    if note:
        context.output.print(note)
    context.output.print(report.summary_table(result, args.base))
    if args.details:
        context.output.print(report.details_table(result))
    for line in report.divergences(result):
        context.output.print(line)
    return 0


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
            curve = _verification_ms(pool.base(), 15) if args.out else {}
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
    sets = _workloads(args)
    drafters = parse_drafters([args.drafter], args.model)
    items = [item for items in sets.values() for item in items]
    _fill_context(args, sets)
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
    sets = _workloads(args)
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
    sets = _workloads(args)
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
        print(json.dumps({name: asdict(run) for name, run in reports.items()}))
        return 0
    table = Table("workload", "server", "tokens/s", f"ratio to {args.base}", "95% interval", "accepted/drafted",
                  "other texts", box=None)  # fmt: skip
    for workload, run in reports.items():
        for name in run.servers:
            ratio = run.ratio(name, args.base)
            accepted, drafted = run.acceptance[name]
            table.add_row(workload, name, f"{run.speed(name):.1f}", f"{ratio.value:.3f}",
                          f"{ratio.low:.3f} - {ratio.high:.3f}", f"{accepted}/{drafted}",
                          str(run.parted[name]))  # fmt: skip
    context.output.print(table)
    return 0


# -- passes -----------------------------------------------------------------------------------------------------


def _verification_ms(llm: LLM, repetitions: int) -> dict[int, float]:
    """Milliseconds of a verification by its rows."""
    llm.reset()
    llm.generate([5] * 64, max_tokens=1)  # rows have something to attend to
    target = llm._open_target()
    return {n: target.measure_us(n, repetitions) / 1e3 for n in CURVE_ROWS}


def _curve(args: argparse.Namespace, context: Context) -> int:
    """Time verifications by rows, and show which width promises most for some acceptances."""
    if args.picture:
        pictures.check(args.picture)
    args.n_ctx = args.n_ctx or 4096
    with context.load(None) as llm:
        rows = _verification_ms(llm, max(7, 5 * args.repetitions))
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

    sets = _workloads(args)
    turns = [turn for items in sets.values() for item in items for turn in item.standalone()]
    drafter = parse_drafters(args.drafter, args.model).get(DRAFTER)
    args.width, args.ahead = args.drafter_width, "off"  # the parts of drafting, paying or not
    _fill_context(args, sets)
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
