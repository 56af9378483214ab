"""Reading and writing .safetensors with NumPy alone, bfloat16 included.

The format is eight bytes of header length, a JSON header with dtype, shape and byte range of each tensor, and
the data. The `safetensors` package reads bfloat16 only through PyTorch, which a conversion should not need.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dflash_cpp.errors import CheckpointError

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

Array = npt.NDArray[np.float32]


class SafetensorsFile:
    """One .safetensors file, its header checked, its tensors read on demand as float32."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if size < 8 or length > size - 8:
                    raise CheckpointError(f"{path} is damaged or truncated: its header does not fit")
                header = json.loads(file.read(length))
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is damaged: its header is not JSON") from error
        self._data_start = 8 + length
        self._entries: dict[str, tuple[str, tuple[int, ...], int]] = {}
        if not isinstance(header, dict):
            raise CheckpointError(f"{path} is damaged: its header is no object")
        for name, entry in header.items():
            if name != "__metadata__":
                self._entries[name] = self._check_entry(name, entry, size)

    def _check_entry(self, name: str, entry: object, size: int) -> tuple[str, tuple[int, ...], int]:
        try:
            assert isinstance(entry, dict)
            dtype, shape, (begin, end) = (
                str(entry["dtype"]),
                tuple(map(int, entry["shape"])),
                entry["data_offsets"],
            )
            n_bytes = int(end) - int(begin)
            assert all(extent >= 0 for extent in shape)
        except (AssertionError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{self.path} is damaged: tensor {name} has no proper entry") from error
        if dtype not in _DTYPES:
            raise CheckpointError(f"{self.path}: tensor {name} is of type {dtype}; expected {', '.join(_DTYPES)}")
        count = 1
        for extent in shape:
            count *= extent
        if (
            int(begin) < 0
            or n_bytes != count * np.dtype(_DTYPES[dtype]).itemsize
            or self._data_start + int(end) > size
        ):
            raise CheckpointError(f"{self.path} is damaged or truncated: tensor {name} lies outside the file")
        return dtype, shape, int(begin)

    @classmethod
    def open_all(cls, folder: Path) -> list[SafetensorsFile]:
        """Open every .safetensors of a folder; CheckpointError where there is none."""
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise CheckpointError(f"{folder} holds no .safetensors file")
        return [cls(path) for path in paths]

    def names(self) -> list[str]:
        """Names of the tensors."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, slowest dimension first."""
        return self._entries[name][1]

    def read(self, name: str) -> Array:
        """Read a tensor as float32; exact for every type but float64."""
        dtype, shape, begin = self._entries[name]
        count = int(np.prod(shape, dtype=np.int64))
        raw = np.fromfile(self.path, dtype=_DTYPES[dtype], count=count, offset=self._data_start + begin)
        if dtype == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(raw, dtype=np.float32).reshape(shape)


def write_safetensors(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write float32 arrays; the file appears whole or not at all."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + f".partial.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array, dtype="<f4").tobytes())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
