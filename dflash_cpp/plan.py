"""What a target and its drafter will take, added up by llama.cpp itself from the headers, no weights loaded."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from dflash_cpp import _core

MAX_ROWS = 64
"""Rows of logits that a context keeps: those of the largest verification."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Part:
    """Bytes of one model: weights, context (KV cache) and compute buffers.

    `host` comes on top, in this machine's memory wherever the model is: its tokenizer, and rows of logits or
    features that are handed over.
    """

    name: str
    weights: int
    context: int
    compute: int
    host: int = 0

    @property
    def total(self) -> int:
        """What must fit on the model's device: all but `host`."""
        return self.weights + self.context + self.compute


@dataclass(frozen=True)
class MemoryPlan:
    """The parts, their sum, whether that fits, and what to lower where it does not.

    `advice` is empty where it fits, or where no memory size was given.
    """

    parts: list[Part]
    total: int
    device_memory: int | None = None
    fits: bool | None = None
    advice: list[str] = field(default_factory=list)


def parse_size(text: str) -> int:
    """Read a size like 24G, 512M or 1000000 (bytes); ValueError on anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) <= 0:
        raise ValueError(f"memory size is {text!r}; use a number with K, M, G or T, as in 24G")
    return int(float(match[1]) * UNITS[match[2].upper()])


def _part(name: str, use: _core.MemoryUse, host: int) -> Part:
    return Part(name, use.weights, use.context, use.compute, host)


def _tokenizer_bytes(path: str) -> int:
    """Of llama.cpp's tables: per token its text, hash entry and piece; per merge (about as many) two texts."""
    file = _core.GgufFile(path)
    return file.vocab_size * (136 + (104 if "tokenizer.ggml.merges" in file.metadata else 0))


def _drafter_host_bytes(path: str, drafter: _core.Drafter, n_batch: int) -> int:
    """Its tokenizer, and the features of a batch, once at the target and once waiting to be injected."""
    hidden = _core.GgufFile(path).metadata["dflash.embedding_length"]
    assert isinstance(hidden, int)
    return _tokenizer_bytes(path) + 2 * 4 * n_batch * len(drafter.tap_layers) * hidden


def header_only(
    path: str, n_ctx: int, n_batch: int = 512, type_k: str = "f16", type_v: str = "f16"
) -> _core.Target:
    """Open a model without its weights: it knows its sizes and its tokenizer, and cannot run."""
    return _core.Target(
        path, n_ctx=n_ctx, n_gpu_layers=-1, n_threads=1, n_batch=n_batch, type_k=type_k, type_v=type_v,
        flash_attention="auto", progress=None, plan_only=True,
    )  # fmt: skip


def _parts(target: str, drafter: str | None, n_ctx: int, n_batch: int, type_k: str, type_v: str) -> list[Part]:
    core = header_only(target, n_ctx, n_batch, type_k, type_v)
    logits = 4 * MAX_ROWS * core.vocab_size
    parts = [_part("target", core.memory, _tokenizer_bytes(target) + logits)]
    if drafter is not None:
        if _core.Drafter.is_drafter_file(drafter):
            attached = _core.Drafter(drafter, core, n_gpu_layers=-1, n_threads=1, device="", plan_only=True)
            parts.append(_part("drafter", attached.memory, _drafter_host_bytes(drafter, attached, n_batch)))
        else:
            small = header_only(drafter, n_ctx, n_batch)
            parts.append(_part("drafter", small.memory, _tokenizer_bytes(drafter) + logits))
    return parts


def plan(
    target: str | os.PathLike[str],
    drafter: str | os.PathLike[str] | None = None,
    *,
    n_ctx: int = 4096,
    n_batch: int = 512,
    type_k: str = "f16",
    type_v: str = "f16",
    device_memory: int | None = None,
) -> MemoryPlan:
    """Add up what a target, and its drafter, take at a context size.

    Parameters
    ----------
    target, drafter
        Paths of GGUF files; the drafter may be of either kind.
    n_ctx, n_batch, type_k, type_v
        As for `LLM`.
    device_memory
        Bytes that there are; the plan then says whether all of it fits and what to lower otherwise.

    Raises
    ------
    ModelError, IncompatibleDrafterError, ValueError
        As for `LLM`.
    """
    paths = os.fspath(target), os.fspath(drafter) if drafter is not None else None
    parts = _parts(*paths, n_ctx, n_batch, type_k, type_v)
    total = sum(part.total for part in parts)
    if device_memory is None:
        return MemoryPlan(parts, total)
    advice = [] if total <= device_memory else _advice(paths, parts, n_ctx, n_batch, type_k, device_memory)
    return MemoryPlan(parts, total, device_memory, total <= device_memory, advice)


def _advice(
    paths: tuple[str, str | None],
    parts: list[Part],
    n_ctx: int,
    n_batch: int,
    type_k: str,
    device_memory: int,
) -> list[str]:
    """Try what a user would lower, cheapest loss first; each line was computed, not guessed."""
    advice = []

    def total(ctx: int, kv: str) -> int:
        return sum(part.total for part in _parts(*paths, ctx, n_batch, kv, kv))

    if type_k == "f16":
        advice.append(f"KV cache in q8_0: {total(n_ctx, 'q8_0') / 2**30:.2f} GiB in all")
    smaller = n_ctx // 2
    while smaller >= 512 and total(smaller, type_k) > device_memory:
        smaller //= 2
    if smaller >= 512:
        advice.append(f"n_ctx {smaller}: {total(smaller, type_k) / 2**30:.2f} GiB in all")
    weights = sum(part.weights for part in parts)
    rest = sum(part.total for part in parts) - weights
    if weights + rest > device_memory and smaller < 512:
        room = max(0, device_memory - rest)
        advice.append(
            f"smaller weights: there is room for {room / 2**30:.2f} of {weights / 2**30:.2f} GiB; take a lower "
            "quantisation, or put fewer layers on the GPU (n_gpu_layers)"
        )
    return advice
