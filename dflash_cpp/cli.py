"""The command `dflash-cpp`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import dflash_cpp
from dflash_cpp import _core, models, patch, server
from dflash_cpp._core import NgramMap
from dflash_cpp.bench.arguments import add_bench_commands
from dflash_cpp.bench.command import run_bench
from dflash_cpp.bench.run import Context, measured
from dflash_cpp.errors import DFlashError
from dflash_cpp.llm import LLM, Ahead
from dflash_cpp.results import Chunk, Completion, Stats
from dflash_cpp.train.command import add_eval_arguments, add_train_arguments, run_eval, run_train

if TYPE_CHECKING:
    from collections.abc import Iterator

USER_ERROR = 2
TRAIN_EVAL = "train-eval"
"""What `train eval` is called inside: argparse would take `eval` for train's target."""
INTERRUPTED = 130

errors = Console(stderr=True, highlight=False, soft_wrap=True)
output = Console(highlight=False, soft_wrap=True)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as one `error:` line."""

    def error(self, message: str) -> NoReturn:
        _fail(f"{message} (see {self.prog} --help)")


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(USER_ERROR)


# -- arguments ----------------------------------------------------------------------------------------------


def _width(text: str) -> int | str:
    return text if text == "auto" else int(text)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", "-m", default="smollm2", metavar="MODEL",
                       help="a GGUF's path, smollm2 (default), or hf:user/repo/file.gguf")  # fmt: skip
    group.add_argument("--drafter", "-d", default="auto", metavar="FILE",
                       help="a DFlash drafter, a smaller GGUF of the vocabulary, or none (auto)")  # fmt: skip
    group.add_argument("--width", type=_width, default="auto", metavar="N",
                       help="tokens the drafter is asked for; auto (default): what pays here")  # fmt: skip
    group.add_argument("--ahead", default="auto", metavar="WHEN",
                       help="draft while the model verifies: auto (default: as it pays), on or off")  # fmt: skip
    _add_context_arguments(parser)


def _add_context_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("context and devices")
    group.add_argument("--ahead-outcomes", type=int, default=4, metavar="N",
                       help="outcomes that an ahead pass drafts for (4)")  # fmt: skip
    group.add_argument("--drafter-device", metavar="DEVICE",
                       help="where the drafter runs: CUDA1, CPU, rpc:HOST:PORT")  # fmt: skip
    group.add_argument("--drafter-threads", type=int, metavar="N", help="its CPU threads (the model's)")
    group.add_argument("--n-ctx", type=int, default=4096, metavar="N", help="tokens the context holds (4096)")
    group.add_argument("--n-gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU (-1: all)")
    group.add_argument("--n-threads", type=int, metavar="N", help="CPU threads (one per core)")
    group.add_argument("--type-k", default="f16", metavar="TYPE", help="KV cache type of keys (f16)")
    group.add_argument("--type-v", default="f16", metavar="TYPE", help="KV cache type of values (f16)")
    group.add_argument("--flash-attention", default="auto", metavar="WHEN", help="auto, on or off (auto)")


def _add_table_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("k4v table")
    group.add_argument("--no-ngram", action="store_true", help="decode without the k4v table")
    group.add_argument("--table", type=Path, metavar="FILE",
                       help="load the table from FILE where it exists, save it there at the end")  # fmt: skip
    group.add_argument("--table-n", type=int, default=12, metavar="N", help="tokens of its longest key (12)")
    group.add_argument("--table-m", type=int, default=48, metavar="N", help="tokens of its longest value (48)")


def _add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("generation")
    group.add_argument(
        "--max-tokens", "-n", type=int, default=256, metavar="N", help="most tokens to generate (256)"
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default): greedy")
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same text")
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="0: off")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1: off")
    group.add_argument("--min-p", type=float, default=0.0, metavar="P", help="0: off")
    group.add_argument("--typical-p", type=float, default=1.0, metavar="P", help="1: off")
    group.add_argument("--repeat-penalty", type=float, default=1.0, metavar="X", help="1: off")
    group.add_argument("--frequency-penalty", type=float, default=0.0, metavar="X", help="0: off")
    group.add_argument("--presence-penalty", type=float, default=0.0, metavar="X", help="0: off")
    group.add_argument("--sampling", default="coupled", metavar="RULE",
                       help="coupled (same seed, same text) or rejection (accepts most)")  # fmt: skip
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before TEXT (may be repeated)")
    group.add_argument("--grammar", type=Path, metavar="FILE", help="a GBNF grammar to follow")
    group.add_argument("--json-schema", type=Path, metavar="FILE", help="a JSON schema to follow")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="dflash-cpp", description="Lossless speculative decoding for GGUF models.")
    parser.add_argument("--version", action="version",
                        version=f"dflash-cpp {dflash_cpp.__version__} (llama.cpp {_core.llama_tag})")  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    generate = commands.add_parser("generate", help="answer one prompt")
    generate.add_argument("prompt", help="the prompt; - reads it from standard input")
    generate.add_argument("--raw", action="store_true",
                          help="continue the text as it stands, without the model's chat template")  # fmt: skip
    generate.add_argument("--json", action="store_true", help="print the completion and its statistics as JSON")
    generate.add_argument("--stats", action="store_true", help="print the statistics to standard error")
    chat = commands.add_parser("chat", help="talk to the model; the k4v table learns along")
    chat.add_argument("--system", metavar="TEXT", help="a system message")
    chat.add_argument("--json", action="store_true", help="print one JSON object per answer")
    for command in (generate, chat):
        _add_model_arguments(command)
        _add_table_arguments(command)
        _add_sampling_arguments(command)

    tokenize = commands.add_parser("tokenize", help="show the token ids of a text")
    tokenize.add_argument("text", help="the text; - reads it from standard input")
    tokenize.add_argument(
        "--no-special", action="store_true", help="take control tokens as plain text, add no BOS"
    )
    tokenize.add_argument("--json", action="store_true", help="print a JSON list")
    tokenize.add_argument("--model", "-m", default="smollm2", metavar="MODEL", help="as for generate")

    inspect = commands.add_parser("inspect", help="say what a GGUF file is, without loading it")
    inspect.add_argument("file", help="a GGUF's path, smollm2, or hf:user/repo/file.gguf")
    inspect.add_argument("--json", action="store_true", help="print all metadata and tensors as JSON")

    listing = commands.add_parser("models", help="list the built-in models and where they are")
    listing.add_argument("--json", action="store_true", help="print a JSON list")

    convert = commands.add_parser("convert", help="drafter checkpoint to GGUF, or back with --to-hf")
    convert.add_argument("source", help="the checkpoint's folder; with --to-hf the drafter's GGUF")
    convert.add_argument("--target", metavar="FILE", help="the target's GGUF, whose tokenizer is copied")
    convert.add_argument(
        "--out", "-o", required=True, metavar="PATH", help="the GGUF to write; with --to-hf a folder"
    )
    convert.add_argument(
        "--outtype", default="f16", metavar="TYPE", help="f32, f16 (default), bf16, q8_0, q4_0, ..."
    )
    convert.add_argument("--to-hf", action="store_true", help="GGUF to checkpoint")

    plan = commands.add_parser("plan", help="add up the memory that a target and a drafter take, loading neither")
    plan.add_argument("target", help="a GGUF's path, smollm2, or hf:user/repo/file.gguf")
    plan.add_argument("drafter", nargs="?", help="a drafter's path")
    plan.add_argument("--ctx", type=int, default=4096, metavar="N", help="tokens the context holds (4096)")
    plan.add_argument("--device-memory", metavar="SIZE", help="what there is, as in 24G")
    plan.add_argument("--type-k", default="f16", metavar="TYPE", help="KV cache type of keys (f16)")
    plan.add_argument("--type-v", default="f16", metavar="TYPE", help="KV cache type of values (f16)")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")

    serve = commands.add_parser(
        "serve", help="run llama-server with this drafting",
        description="Run llama-server with draft-dflash-parallel, on 127.0.0.1:8080 unless told otherwise.",
        usage="dflash-cpp serve [MODEL] [--drafter FILE] [any llama-server argument]",
        epilog="`dflash-cpp serve MODEL --help` shows llama-server's own arguments.",
    )  # fmt: skip
    serve.add_argument(
        "model", metavar="MODEL", help="a GGUF's path, hf:user/repo/file.gguf, or smollm2 (default)"
    )
    serve.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...",
                       help="--drafter FILE (auto; none: the table alone); what llama-server takes")  # fmt: skip

    patching = commands.add_parser(
        "patch", help="write one patch that brings this drafting to a llama.cpp checkout"
    )
    patching.add_argument("--out", "-o", default="dflash-parallel.patch", metavar="FILE",
                          help="where to (dflash-parallel.patch)")  # fmt: skip

    bench = commands.add_parser("bench", help="measure ways to decode on your own prompts; compare, tune")
    add_bench_commands(bench, _add_context_arguments)

    checking = commands.add_parser(
        "device-check", help="check all of it on this machine: kernels, tokens of every mode, speed; minutes"
    )
    checking.add_argument("--model", "-m", default="smollm2", metavar="MODEL", help="as for generate")
    checking.add_argument("--drafter", "-d", default="auto", metavar="FILE", help="as for generate")
    checking.add_argument("--out", "-o", type=Path, default=Path("device-check"), metavar="FOLDER",
                          help="where report and pictures go (device-check)")  # fmt: skip
    checking.add_argument("--json", action="store_true", help="print the checks as JSON")

    training = commands.add_parser("train", help="train a DFlash 2 drafter for a target; `train eval` measures it")
    add_train_arguments(training)
    evaluation = commands.add_parser(TRAIN_EVAL, prog="dflash-cpp train eval")
    add_eval_arguments(evaluation)
    return parser


# -- progress -----------------------------------------------------------------------------------------------


class _Bars:
    """Progress of loading and reading on standard error, shown only where someone watches."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def report(self, line: str) -> None:
        if errors.is_terminal:
            errors.print(line, style="dim")

    def __call__(self, stage: str, done: int, total: int) -> None:
        # A bar for a prompt that is read in one pass would only flicker.
        if not errors.is_terminal or (stage == "prefill" and total < 1024):
            return
        if self._progress is None or stage != self._stage:
            self.stop()
            what = "loading the model" if stage == "load" else "reading the prompt"
            self._progress = Progress(
                TextColumn("[dim]{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
                TimeElapsedColumn(), console=errors, transient=True,
            )  # fmt: skip
            self._progress.start()
            self._task = self._progress.add_task(what, total=total)
            self._stage = stage
        if self._task is not None:
            self._progress.update(self._task, completed=done)
        if done >= total:
            self.stop()

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._stage = ""


# -- helpers ------------------------------------------------------------------------------------------------


def _read_text(argument: str) -> str:
    return sys.stdin.read() if argument == "-" else argument


def _read_file(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def _load_llm(args: argparse.Namespace, ngram: NgramMap | bool, bars: _Bars, drafter: str | None = None) -> LLM:
    ahead: Ahead = "auto" if drafter == "none" else args.ahead
    drafter = drafter or args.drafter
    try:
        return LLM(
            args.model,
            drafter=None if drafter == "none" else drafter,
            width=args.width,
            ahead=ahead,
            ahead_outcomes=args.ahead_outcomes,
            drafter_device=args.drafter_device,
            drafter_threads=args.drafter_threads,
            ngram=ngram,
            n_ctx=args.n_ctx,
            n_gpu_layers=args.n_gpu_layers,
            n_threads=args.n_threads,
            type_k=args.type_k,
            type_v=args.type_v,
            flash_attention=args.flash_attention,
            progress=bars,
            report=bars.report,
        )
    finally:
        bars.stop()


@contextmanager
def _table(args: argparse.Namespace) -> Iterator[NgramMap | bool]:
    """Give the k4v table, from --table where given; what it learned is saved even after Ctrl-C."""
    if args.no_ngram:
        if args.table:
            raise ValueError("--no-ngram and --table are both given; use one")
        yield False
        return
    if args.table and args.table.exists():
        table = NgramMap.load(str(args.table))
    else:
        table = NgramMap(args.table_n, args.table_m, min(3, args.table_n))
    try:
        yield table
    finally:
        if args.table:
            table.save(str(args.table))


def _sampling(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "typical_p": args.typical_p,
        "repeat_penalty": args.repeat_penalty,
        "frequency_penalty": args.frequency_penalty,
        "presence_penalty": args.presence_penalty,
        "sampling": args.sampling,
        "stop": args.stop,
        "grammar": _read_file(args.grammar),
        "json_schema": _read_file(args.json_schema),
    }


def _write_live(chunks: Iterator[Chunk]) -> Completion:
    """Print a stream as it comes; return the whole of it."""
    texts: list[str] = []
    tokens: list[int] = []
    last: Chunk | None = None
    for last in chunks:
        sys.stdout.write(last.text)
        sys.stdout.flush()
        texts.append(last.text)
        tokens.extend(last.tokens)
    sys.stdout.write("\n")
    assert last is not None and last.finish_reason is not None and last.stats is not None
    return Completion("".join(texts), tokens, last.finish_reason, last.stats)


def _stats_line(stats: Stats) -> str:
    sources = ", ".join(
        f"{name}: {source['accepted']} of {source['proposed']} proposed tokens accepted"
        for name, source in stats.sources.items()
        if source["proposals"]
    )
    return (
        f"{stats.completion_tokens} tokens, {stats.tokens_per_second:.1f} tokens/s, "
        f"{stats.acceptance_length:.2f} tokens per verification ({sources or 'nothing drafted'}), "
        f"prompt of {stats.prompt_tokens} read in {stats.prefill_seconds:.2f} s"
    )


def _human_bytes(n: int) -> str:
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"


# -- commands -----------------------------------------------------------------------------------------------


def _run_generate(args: argparse.Namespace) -> int:
    bars = _Bars()
    prompt = _read_text(args.prompt)
    with _table(args) as table, _load_llm(args, table, bars) as llm:
        as_chat = llm.chat_template and not args.raw
        messages = [{"role": "user", "content": prompt}] if as_chat else prompt
        if args.json:
            completion = llm.generate(messages, **_sampling(args))
            print(json.dumps(completion.to_dict(), ensure_ascii=False))
        else:
            completion = _write_live(llm.stream(messages, **_sampling(args)))
        if args.stats:
            print(_stats_line(completion.stats), file=sys.stderr)
    return 0


def _run_chat(args: argparse.Namespace) -> int:
    bars = _Bars()
    messages: list[dict[str, str]] = [{"role": "system", "content": args.system}] if args.system else []
    interactive = sys.stdin.isatty()
    with _table(args) as table, _load_llm(args, table, bars) as llm:
        if interactive:
            errors.print(f"{llm.description}; /stats, /reset, /quit or Ctrl-D", style="dim")
        completion: Completion | None = None
        while True:
            try:
                line = input("> " if interactive else "")
            except EOFError:
                return 0
            if line == "/quit":
                return 0
            if line == "/reset":
                del messages[1 if args.system else 0 :]
                continue
            if line == "/stats":
                print(_stats_line(completion.stats) if completion else "nothing generated yet", file=sys.stderr)
                continue
            if not line.strip():
                continue
            messages.append({"role": "user", "content": line})
            try:
                if args.json:
                    completion = llm.chat(messages, **_sampling(args))
                    print(json.dumps(completion.to_dict(), ensure_ascii=False), flush=True)
                else:
                    completion = _write_live(llm.stream(messages, **_sampling(args)))
            except KeyboardInterrupt:
                # Ctrl-C ends the answer, not the talk.
                if not interactive:
                    raise
                messages.pop()
                print(file=sys.stderr)
                continue
            messages.append({"role": "assistant", "content": completion.text})


def _run_tokenize(args: argparse.Namespace) -> int:
    bars = _Bars()
    args.n_ctx, args.n_gpu_layers, args.n_threads = 256, 0, 1
    args.drafter, args.width, args.ahead, args.ahead_outcomes = "none", "auto", "auto", 4
    args.drafter_device = args.drafter_threads = None
    args.type_k = args.type_v = "f16"
    args.flash_attention = "auto"
    with _load_llm(args, False, bars) as llm:
        tokens = llm.tokenize(_read_text(args.text), special=not args.no_special)
        if args.json:
            print(json.dumps(tokens))
        else:
            for token in tokens:
                print(f"{token}\t{llm.detokenize([token])!r}")
    return 0


def _run_inspect(args: argparse.Namespace) -> int:
    file = _core.GgufFile(str(models.resolve(args.file, _Bars().report)))
    if args.json:
        tensors = [{"name": t.name, "shape": t.shape, "type": t.type, "bytes": t.bytes} for t in file.tensors]
        print(json.dumps({"path": file.path, "file_bytes": file.file_bytes, "tensor_bytes": file.tensor_bytes,
                          "metadata": file.metadata, "tensors": tensors}, ensure_ascii=False))  # fmt: skip
        return 0
    metadata, arch = file.metadata, file.architecture
    types: dict[str, int] = {}
    for tensor in file.tensors:
        types[tensor.type] = types.get(tensor.type, 0) + tensor.bytes
    try:
        file.require_language_model()
        kind = "a language model: usable as model="
    except DFlashError as error:
        kind = str(error).removeprefix(file.path).strip()
    table = Table(show_header=False, box=None)
    if arch == "dflash":
        kind = "a DFlash 2 drafter" if "dflash.selector_rank" in metadata else "a DFlash drafter"
        kind += ": usable as drafter="
    rows = [
        ("file", f"{file.path} ({_human_bytes(file.file_bytes)})"),
        ("kind", kind),
        ("name", metadata.get("general.name", "-")),
        ("architecture", arch or "-"),
        ("layers", metadata.get(f"{arch}.block_count", "-")),
        ("hidden size", metadata.get(f"{arch}.embedding_length", "-")),
        ("trained context", metadata.get(f"{arch}.context_length", "-")),
        ("vocabulary", file.vocab_size or "-"),
        ("chat template", "yes" if metadata.get("tokenizer.chat_template") else "no"),
        ("licence", metadata.get("general.license", "-")),
        (
            "tensors",
            f"{len(file.tensors)}: " + ", ".join(f"{t} {_human_bytes(n)}" for t, n in sorted(types.items())),
        ),
    ]
    if arch == "dflash":
        block = metadata.get("dflash.block_size", 16)
        taps = _integers(metadata.get("dflash.target_layers"))
        rank, top_k = metadata.get("dflash.selector_rank"), metadata.get("dflash.selector_top_k")
        hidden = metadata.get("dflash.embedding_length")
        rows[7:7] = [
            ("block size", f"{block}: widths 1 to {int(str(block)) - 1}"),
            ("tap layers", ", ".join(map(str, taps))),
            ("selector", f"rank {rank}, {top_k} candidates" if rank else "none"),
            (
                "fits targets",
                f"hidden size {hidden}, {file.vocab_size} tokens, over {max(taps, default=0)} layers",
            ),
        ]
    for name, value in rows:
        table.add_row(name, str(value))
    output.print(table)
    return 0


def _integers(value: object) -> list[int]:
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []


def _run_convert(args: argparse.Namespace) -> int:
    from dflash_cpp.convert import convert, to_hf

    def say(line: str) -> None:
        errors.print(line, style="dim")

    if args.to_hf:
        folder = to_hf(args.source, args.out)
        print(folder)
        return 0
    if not args.target:
        raise ValueError("--target is missing; name the target's GGUF, its tokenizer is copied")
    target = models.resolve(args.target, _Bars().report)
    path = convert(args.source, target, args.out, outtype=args.outtype, report=say)
    print(f"{path} ({_human_bytes(path.stat().st_size)})")
    return 0


def _run_plan(args: argparse.Namespace) -> int:
    from dflash_cpp import plan as planning

    target = models.resolve(args.target, _Bars().report)
    drafter = models.resolve(args.drafter, _Bars().report) if args.drafter else None
    device_memory = planning.parse_size(args.device_memory) if args.device_memory else None
    plan = planning.plan(
        target, drafter, n_ctx=args.ctx, type_k=args.type_k, type_v=args.type_v, device_memory=device_memory
    )
    if args.json:
        print(json.dumps(asdict(plan)))
        return 0
    table = Table("", "weights", "context", "compute", "in all", "and on the host", box=None)
    for part in plan.parts:
        sizes = (part.weights, part.context, part.compute, part.total, part.host)
        table.add_row(part.name, *(_human_bytes(n) for n in sizes))
    table.add_row("in all", "", "", "", _human_bytes(plan.total), _human_bytes(sum(p.host for p in plan.parts)))
    output.print(table)
    if plan.fits is not None:
        output.print(
            f"{'fits into' if plan.fits else 'does not fit into'} {_human_bytes(plan.device_memory or 0)}"
        )
    for line in plan.advice:
        output.print(f"try {line}")
    return 0


def _run_models(args: argparse.Namespace) -> int:
    rows = [
        {"name": m.name, "description": m.description, "licence": m.licence, "source": f"{m.package}=={m.version}",
         "cached": models.is_cached(m)}
        for m in models.BUILT_IN.values()
    ]  # fmt: skip
    if args.json:
        print(json.dumps(rows))
        return 0
    table = Table("name", "what", "licence", "from", "cached", box=None)
    for row in rows:
        table.add_row(str(row["name"]), str(row["description"]), str(row["licence"]), str(row["source"]),
                      "yes" if row["cached"] else "no")  # fmt: skip
    output.print(table)
    output.print(f"cache folder: {models.cache_dir()}", style="dim")
    return 0


def _run_serve(args: argparse.Namespace) -> int:
    own = _Parser(prog="dflash-cpp serve", add_help=False, allow_abbrev=False)
    own.add_argument("--drafter", default="auto")
    found, rest = own.parse_known_args(args.arguments)
    words = server.command(args.model, None if found.drafter == "none" else found.drafter, rest)
    sys.stdout.flush()
    os.execv(words[0], words)


def _run_patch(args: argparse.Namespace) -> int:
    path = patch.write(args.out)
    print(f"{path}: git apply it to a llama.cpp checkout at tag {_core.llama_tag}")
    return 0


def _bench_context(args: argparse.Namespace) -> Context:
    def load(drafter: str | None) -> LLM:
        return _load_llm(args, False, _Bars(), drafter or "none")

    return Context(load, errors, output)


def _run_bench(args: argparse.Namespace) -> int:
    return run_bench(args, _bench_context(args))


def _run_device_check(args: argparse.Namespace) -> int:
    from dflash_cpp import device_check

    words = device_check.bench_arguments(args.model, args.drafter, args.out)
    asked = parse(words)
    checks = [*device_check.check_devices(), *device_check.check_modes(measured(asked, _bench_context(asked)))]
    failed = any(check.ok is False for check in checks)
    if args.json:
        print(json.dumps([asdict(check) for check in checks]))
        return 1 if failed else 0
    table = Table("", "", "", box=None, show_header=False)
    for check in checks:
        table.add_row({True: "ok", False: "FAILED", None: "-"}[check.ok], check.what, check.detail)
    output.print(table)
    output.print(f"report: {args.out / 'report.md'}")
    return 1 if failed else 0


_COMMANDS = {
    "generate": _run_generate,
    "chat": _run_chat,
    "tokenize": _run_tokenize,
    "inspect": _run_inspect,
    "models": _run_models,
    "convert": _run_convert,
    "plan": _run_plan,
    "serve": _run_serve,
    "patch": _run_patch,
    "bench": _run_bench,
    "device-check": _run_device_check,
    "train": run_train,
    TRAIN_EVAL: run_eval,
}


HELP = (["-h"], ["--help"])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a command line; a wrong one exits with 2."""
    words = list(argv)
    if words[:2] == ["train", "eval"]:
        words[:2] = [TRAIN_EVAL]
    if words[:1] == ["serve"] and (not words[1:] or words[1].startswith("-")) and words[1:] not in HELP:
        words.insert(1, "smollm2")
    return _parser().parse_args(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. A user's mistake is one `error:` line and exit code 2."""
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        return _COMMANDS[args.command](args)
    except (DFlashError, ValueError) as error:
        _fail(" ".join(str(error).split()))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as in `| head`; Python must not complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
