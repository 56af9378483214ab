"""A drafter's GGUF back to the checkpoint that the reference, vLLM, SGLang and MLX load."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gguf
import numpy as np

from dflash_cpp import _core
from dflash_cpp.convert.names import tensors
from dflash_cpp.convert.safetensors_file import write_safetensors
from dflash_cpp.convert.to_gguf import shape_of
from dflash_cpp.errors import CheckpointError


def to_hf(drafter: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Write a drafter's GGUF as a Hugging Face checkpoint (config.json and model.safetensors, float32).

    Tensors of float32, float16 and bfloat16 GGUFs come back exactly; quantised ones as their dequantised values.

    Parameters
    ----------
    drafter
        A GGUF that `convert` wrote.
    out
        The folder to write; it is made where it is missing.

    Raises
    ------
    CheckpointError
        The file is no drafter of ours, lacks a tensor, or the folder cannot be written.
    ModelError
        The file is missing or damaged.
    """
    file = _core.GgufFile(os.fspath(drafter))
    source = file.metadata.get("dflash.source_config")
    if file.architecture != "dflash" or not isinstance(source, str):
        raise CheckpointError(f"{file.path} is no drafter that `dflash-cpp convert` wrote")
    config = json.loads(source)
    folder = Path(out)
    stored = {t.name: t for t in gguf.GGUFReader(file.path).tensors}
    arrays = {}
    for name in tensors(shape_of(config)):
        if name.gguf not in stored:
            raise CheckpointError(f"{file.path} lacks tensor {name.gguf}")
        tensor = stored[name.gguf]
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        arrays[name.hf] = np.asarray(data, dtype=np.float32).reshape(name.shape)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / "model.safetensors", arrays)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"cannot write {folder}: {error.strerror or error}") from error
    return folder
