"""Tensor and key names of a DFlash drafter, in the checkpoint and in the GGUF, in one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from dflash_cpp.errors import CheckpointError

ARCHITECTURES = {"DFlashDraftModel": 1, "DFlash2DraftModel": 2}

FLOAT32_LIMIT = 3.4e38


@dataclass(frozen=True)
class DrafterShape:
    """The sizes that fix every tensor's shape.

    `version` is 1 or 2; `n_taps` counts the target layers read; the convolution and selector sizes are 0 in
    version 1.
    """

    version: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    n_taps: int
    conv_kernel: int = 0
    conv_group: int = 0
    rank: int = 0
    top_k: int = 0


@dataclass(frozen=True)
class TensorName:
    """One tensor: its names and its shape, slowest dimension first."""

    hf: str
    gguf: str
    shape: tuple[int, ...]
    keep_f32: bool = False
    """Norms and base kernels are small and stay in float32."""


def tensors(s: DrafterShape) -> Iterator[TensorName]:
    """Every tensor that a drafter of this shape has, no more and no less."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    yield TensorName("fc.weight", "fc.weight", (s.hidden, s.n_taps * s.hidden))
    yield TensorName("hidden_norm.weight", "enc.output_norm.weight", (s.hidden,), True)
    yield TensorName("norm.weight", "output_norm.weight", (s.hidden,), True)
    for i in range(s.layers):
        hf, gguf = f"layers.{i}.", f"blk.{i}."
        yield TensorName(hf + "input_layernorm.weight", gguf + "attn_norm.weight", (s.hidden,), True)
        yield TensorName(hf + "self_attn.q_proj.weight", gguf + "attn_q.weight", (q, s.hidden))
        yield TensorName(hf + "self_attn.k_proj.weight", gguf + "attn_k.weight", (kv, s.hidden))
        yield TensorName(hf + "self_attn.v_proj.weight", gguf + "attn_v.weight", (kv, s.hidden))
        yield TensorName(hf + "self_attn.o_proj.weight", gguf + "attn_output.weight", (s.hidden, q))
        yield TensorName(hf + "self_attn.q_norm.weight", gguf + "attn_q_norm.weight", (s.head_dim,), True)
        yield TensorName(hf + "self_attn.k_norm.weight", gguf + "attn_k_norm.weight", (s.head_dim,), True)
        yield TensorName(hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", (s.hidden,), True)
        yield TensorName(hf + "mlp.gate_proj.weight", gguf + "ffn_gate.weight", (s.feed_forward, s.hidden))
        yield TensorName(hf + "mlp.up_proj.weight", gguf + "ffn_up.weight", (s.feed_forward, s.hidden))
        yield TensorName(hf + "mlp.down_proj.weight", gguf + "ffn_down.weight", (s.hidden, s.feed_forward))
        if s.version == 2:
            base = (2, s.conv_kernel, s.hidden)
            projection = (2 * s.conv_kernel * (s.hidden // s.conv_group), s.hidden)
            for hf_part, gguf_part in (("attention_conv", "attn_conv"), ("mlp_conv", "ffn_conv")):
                yield TensorName(hf + hf_part + ".base_kernel", gguf + gguf_part + "_base", base, True)
                yield TensorName(
                    hf + hf_part + ".kernel_projection.weight", gguf + gguf_part + "_proj.weight", projection
                )
    if s.version == 2:
        selector = "candidate_selector."
        yield TensorName(selector + "predecessor_codebook", "selector_predecessor.weight", (s.vocab, s.rank))
        yield TensorName(selector + "successor_codebook", "selector_successor.weight", (s.vocab, s.rank))
        yield TensorName(selector + "hidden_projection.weight", "selector_hidden.weight", (s.rank, s.hidden))


def checkpoint_name(name: str) -> str:
    """Name a stored tensor as `tensors` does: no "model." in front, codebooks without ".weight"."""
    name = name.removeprefix("model.")
    for codebook in ("predecessor_codebook", "successor_codebook"):
        if name == f"candidate_selector.{codebook}.weight":
            return f"candidate_selector.{codebook}"
    return name


def draft_value(config: dict[str, Any], name: str, default: Any = None) -> Any:
    """Read a key from `dflash_config`, else from the top of the config."""
    inner = config.get("dflash_config") or {}
    return inner.get(name, config.get(name, default))


def draft_integer(config: dict[str, Any], name: str, default: int | None = None, *, least: int = 1) -> int:
    """Read a whole number from `least` to 2^31 - 1; CheckpointError names the key and what it holds."""
    value = draft_value(config, name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        what = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise CheckpointError(f"config.json: {name} is {shorten(repr(value), 40)}; expected {what}")
    return value


def draft_number(config: dict[str, Any], name: str) -> float | None:
    """Read a number that float32 can hold; None where it is null or absent. CheckpointError as `draft_integer`."""
    value = draft_value(config, name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < FLOAT32_LIMIT:
        raise CheckpointError(f"config.json: {name} is {shorten(repr(value), 40)}; expected a number")
    return float(value)
