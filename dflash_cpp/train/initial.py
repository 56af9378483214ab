"""A drafter that starts from its target's last layers learns in minutes what takes hours from random weights.

Its layers take the weights of the target's last layers; `fc` passes the deepest tap through, so that keys and
values of the injected context are at first about those that the target's own layers compute.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from dflash_cpp.train.model import Layer
from dflash_cpp.train.student import Student


class _TargetLayers:
    """Dequantised weights of a target's layers, as far as they have the drafter's shapes."""

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture = str(self._value("general.architecture"))
        self.layers = self.number("block_count")
        self.heads = self.number("attention.head_count")
        self.kv_heads = self.number("attention.head_count_kv") or self.heads

    def _value(self, key: str) -> object:
        field = self._reader.get_field(key)
        return field.contents() if field else None

    def number(self, key: str) -> int:
        value = self._value(f"{self.architecture}.{key}")
        return value if isinstance(value, int) else 0

    def weight(self, layer: int, name: str) -> Tensor | None:
        tensor = self._tensors.get(f"blk.{layer}.{name}.weight")
        if tensor is None:
            return None
        return torch.from_numpy(
            np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        )

    def rotary(self, layer: int, name: str, heads: int) -> Tensor | None:
        """A projection to queries or keys, in the order of halves: llama's GGUFs interleave the pairs."""
        weight = self.weight(layer, name)
        if weight is None or self.architecture != "llama":
            return weight
        pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
        return pairs.transpose(1, 2).reshape(weight.shape)


def _take(parameter: Tensor, weight: Tensor | None) -> bool:
    if weight is None or weight.shape != parameter.shape:
        return False
    with torch.no_grad():
        parameter.copy_(weight)
    return True


def start_from_target(student: Student, target: Path) -> int:
    """Copy what fits; returns how many of the drafter's tensors now hold weights of the target."""
    source, config, model = _TargetLayers(target), student.config, student.model
    first = source.layers - len(model.layers)
    if first < 0:
        return 0

    def shared(weight: Tensor | None) -> Tensor | None:
        """Keys or values of all the drafter's heads, where several of the target's share one."""
        if weight is None or config.kv_heads % source.kv_heads or weight.shape[0] % source.kv_heads:
            return weight
        heads = weight.reshape(source.kv_heads, -1, weight.shape[1])
        return torch.repeat_interleave(heads, config.kv_heads // source.kv_heads, dim=0).flatten(0, 1)

    taken = 0
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        n, attention, mlp = first + i, layer.self_attn, layer.mlp
        taken += sum(
            _take(parameter.weight, weight)
            for parameter, weight in (
                (layer.input_layernorm, source.weight(n, "attn_norm")),
                (attention.q_proj, source.rotary(n, "attn_q", source.heads)),
                (attention.k_proj, shared(source.rotary(n, "attn_k", source.kv_heads))),
                (attention.v_proj, shared(source.weight(n, "attn_v"))),
                (attention.o_proj, source.weight(n, "attn_output")),
                (layer.post_attention_layernorm, source.weight(n, "ffn_norm")),
                (mlp.gate_proj, source.weight(n, "ffn_gate")),
                (mlp.up_proj, source.weight(n, "ffn_up")),
                (mlp.down_proj, source.weight(n, "ffn_down")),
            )
        )
    spread = student.spread[-config.hidden :]
    with torch.no_grad():
        model.fc.weight.mul_(0.05)
        model.fc.weight[:, -config.hidden :] += torch.diag(spread / spread.median())
    taken += _take(model.hidden_norm.weight, source.weight(source.layers - 1, "attn_norm"))
    return taken
