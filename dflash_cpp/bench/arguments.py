"""The arguments of `dflash-cpp bench`, and what they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from dflash_cpp import chat, models
from dflash_cpp.bench import modes, workloads
from dflash_cpp.bench.modes import DRAFTER
from dflash_cpp.bench.workloads import Item
from dflash_cpp.plan import MAX_ROWS, header_only

AddArguments = Callable[[argparse.ArgumentParser], None]


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


def workloads_of(args: argparse.Namespace) -> dict[str, list[Item]]:
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


def fill_context(args: argparse.Namespace, sets: Mapping[str, Sequence[Item]]) -> None:
    if args.n_ctx is None:
        items = (item for items in sets.values() for item in items)
        args.n_ctx = context_size(items, args.model, args.max_tokens)
