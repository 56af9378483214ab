"""Random drafter checkpoints, written with NumPy alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cpp.convert import convert
from dflash_cpp.convert.names import tensors
from dflash_cpp.convert.safetensors_file import write_safetensors
from dflash_cpp.convert.to_gguf import shape_of


def config_of(*, hidden: int, vocab: int, version: int = 2, **changes: Any) -> dict[str, Any]:
    """Config of a small two-layer drafter; `changes` go into dflash_config."""
    inner: dict[str, Any] = {"block_size": 8, "mask_token_id": 0, "target_layer_ids": [0]}
    if version == 2:
        inner |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4}
    return {
        "architectures": ["DFlash2DraftModel" if version == 2 else "DFlashDraftModel"],
        "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": vocab, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 8192, "dflash_config": inner | changes,
    }  # fmt: skip


def write_checkpoint(folder: Path, config: dict[str, Any], *, seed: int = 0) -> dict[str, np.ndarray]:
    """Write a checkpoint of random weights; return its tensors."""
    random = np.random.default_rng(seed)
    arrays = {}
    for tensor in tensors(shape_of(config)):
        if tensor.hf.endswith("norm.weight"):
            array = np.ones(tensor.shape, np.float32)
        else:
            array = (random.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])).astype(np.float32)
        arrays[tensor.hf] = array
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", arrays)
    (folder / "config.json").write_text(json.dumps(config))
    return arrays


def write_drafter(folder: Path, target: Path, *, outtype: str = "f32", seed: int = 0, **config: Any) -> Path:
    """Write a random drafter's GGUF for a target."""
    write_checkpoint(folder / "hf", config_of(**config), seed=seed)
    return convert(folder / "hf", target, folder / "drafter.gguf", outtype=outtype)
