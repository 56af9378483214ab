"""What the drafter borrows from its target: token embedding, output head, final norm; and rows to start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from dflash_cpp.errors import ModelError

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TeacherWeights:
    """Dequantised: embedding [vocab, hidden], head [vocab, hidden], final norm [hidden]."""

    embedding: Array
    head: Array
    norm: Array
    n_layers: int
    token_types: npt.NDArray[np.int32]
    """[vocab] as GGUF numbers them: 3 is a control token."""


def _tensor(reader: gguf.GGUFReader, name: str) -> Array | None:
    for tensor in reader.tensors:
        if tensor.name == name:
            return np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    return None


def read_weights(target: Path) -> TeacherWeights:
    """Read them from the target's GGUF.

    Raises
    ------
    ModelError
        The file lacks one of them.
    """
    reader = gguf.GGUFReader(target)
    embedding, norm = _tensor(reader, "token_embd.weight"), _tensor(reader, "output_norm.weight")
    if embedding is None or norm is None:
        raise ModelError(f"{target} has no token embedding or output norm; no drafter can be trained for it")
    head = _tensor(reader, "output.weight")
    field = reader.get_field("tokenizer.ggml.token_type")
    types = np.asarray(field.contents() if field else np.ones(len(embedding)), dtype=np.int32)
    n_layers = 1 + max(int(t.name.split(".")[1]) for t in reader.tensors if t.name.startswith("blk."))
    return TeacherWeights(embedding, embedding if head is None else head, norm, n_layers, types)
