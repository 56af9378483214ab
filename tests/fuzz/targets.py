"""What is fuzzed from Python: files that users hand to us. Each target takes any bytes.

A target returns where the input was taken or refused as it should be, and lets any other exception through; an
abort of the process is a find as well. `tests/fuzz/run.py` drives them with atheris, `tests/test_fuzz.py` with the
tracked corpus and variations of it.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tiny_drafters import config_of, write_checkpoint, write_drafter
from tiny_models import write_tiny_llama

import dflash_cpp
from dflash_cpp.bench.workloads import load_items
from dflash_cpp.convert import convert

CORPUS = Path(__file__).parent / "corpus"

REFUSED = (dflash_cpp.DFlashError, ValueError)

VALUES: list[Any] = [
    None, True, -1, 0, 1, 2, 3, 7, 10**6, 2**31, 2**63, -(2**70), 1e308, 0.5, "", "x", [], [0], [1, 1], [-1],
    [10**6], [[0]], {}, {"block_size": 4}, "DFlashDraftModel", ["DFlashDraftModel"],
]  # fmt: skip
"""What a key of a checkpoint's config may be changed to."""


@cache
def folder() -> Path:
    """The sound files, made once a process."""
    path = Path(tempfile.mkdtemp(prefix="dflash-fuzz-"))
    write_tiny_llama(path / "target.gguf")
    write_checkpoint(path / "sound", config_of(hidden=32, vocab=31))
    (path / "checkpoint").mkdir()
    write_drafter(path, path / "target.gguf", hidden=32, vocab=31)
    return path


@cache
def target() -> dflash_cpp.LLM:
    """The target of the drafters, without one."""
    return dflash_cpp.LLM(folder() / "target.gguf", n_ctx=64, n_threads=1, drafter=None, ngram=False)


def edits(data: bytes, length: int) -> Iterator[tuple[int, int]]:
    """Groups of four bytes as a place and what to put there."""
    for at in range(0, len(data) - 3, 4):
        yield int.from_bytes(data[at : at + 3], "little") % max(length, 1), data[at + 3]


def edited(sound: bytes, data: bytes, n_header: int) -> bytes:
    """The sound file with bytes of its header changed; with an odd number of bytes over, cut short."""
    result = bytearray(sound)
    for place, value in edits(data, n_header):
        result[place] = value
    if len(data) % 4 == 1:
        del result[data[-1] * len(result) // 256 :]
    return bytes(result)


def drafter_gguf(data: bytes) -> None:
    """A drafter's GGUF, its metadata and tensor table changed; what loads drafts."""
    sound = (folder() / "drafter.gguf").read_bytes()
    # Tensor data goes last; the few KB before it are what is parsed.
    header = sound.rindex(b"output_norm") if b"output_norm" in sound else len(sound) // 2
    path = folder() / "edited.gguf"
    path.write_bytes(edited(sound, data, min(len(sound), header + 256)))
    options: dict[str, Any] = {"n_ctx": 64, "n_threads": 1, "drafter": path, "ngram": False, "width": 3}
    with suppress(*REFUSED), dflash_cpp.LLM(folder() / "target.gguf", **options) as llm:
        llm.generate([3, 4, 5], max_tokens=8)


def checkpoint(data: bytes) -> None:
    """A checkpoint's config by keys, and its tensors' header by bytes."""
    sound, made = folder() / "sound", folder() / "checkpoint"
    config: dict[str, Any] = json.loads((sound / "config.json").read_text())
    half = len(data) // 2
    spots: list[tuple[dict[str, Any], str]] = [(config, key) for key in config]
    spots += [(config["dflash_config"], key) for key in config["dflash_config"]]
    for place, value in edits(data[:half], len(spots)):
        holder, key = spots[place]
        holder[key] = VALUES[value % len(VALUES)]
    (made / "config.json").write_text(json.dumps(config))
    tensors = (sound / "model.safetensors").read_bytes()
    n_header = 8 + int.from_bytes(tensors[:8], "little")
    (made / "model.safetensors").write_bytes(edited(tensors, data[half:], n_header))
    with suppress(*REFUSED):
        convert(made, folder() / "target.gguf", folder() / "converted.gguf", outtype="f32")


def bench_prompts(data: bytes) -> None:
    """A file of prompts; what is taken has turns of text or messages."""
    path = folder() / "prompts.jsonl"
    path.write_bytes(data)
    try:
        items = load_items(path)
    except REFUSED:
        return
    assert items and all(item.turns and isinstance(item.name, str) for item in items)
    assert len({item.name for item in items}) == len(items)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "bench_prompts": bench_prompts,
    "checkpoint": checkpoint,
    "drafter_gguf": drafter_gguf,
}


def corpus(name: str) -> list[bytes]:
    """The tracked inputs of a target, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def varied(data: bytes, seed: int) -> bytes:
    """One variation of an input, the same one every time."""
    rng, result = random.Random(seed), bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(result) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(result):
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(result):
            result[at] = rng.choice((0, 255, ord('"'), ord("["), ord("{"), ord("0")))
        elif kind == 2:
            result[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            del result[at : at + rng.randint(1, 8)]
    return bytes(result)
