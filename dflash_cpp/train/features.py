"""What the target computed over a set of texts, on disk: its features and its likeliest next tokens.

A `FeatureStore` is a folder of flat files, one row per token, and an index with a line per text. A text is in the
store once its line is; whatever an interrupted run left behind the last line is cut off on opening.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_cpp.errors import CheckpointError

TOP_K = 16
"""Next tokens kept per position: they hold nearly all of the probability."""


@dataclass(frozen=True)
class Text:
    """A text in the store: rows `start` to `start + length`, the first `n_prompt` of them the prompt's.

    `held_out` texts are for measuring, never for learning.
    """

    start: int
    length: int
    n_prompt: int
    kind: str
    temperature: float
    held_out: bool
    seed: int = 0
    """Of the noise that its answer was drawn with."""


class FeatureStore:
    """Rows of several texts: token ids, features (bfloat16 bits), likeliest next tokens, log probabilities.

    Parameters
    ----------
    folder
        Made where it is missing.
    tap_layers
        The target layers whose input is kept.
    hidden
        Hidden size of the target.

    Raises
    ------
    CheckpointError
        The folder holds a store of other layers or another hidden size, or is damaged.
    """

    def __init__(self, folder: Path, tap_layers: Sequence[int], hidden: int) -> None:
        self.folder = folder
        self.tap_layers = list(tap_layers)
        self.width = len(self.tap_layers) * hidden
        self._columns: dict[str, tuple[np.dtype[Any], int]] = {
            "tokens": (np.dtype("<i4"), 1),
            "features": (np.dtype("<u2"), self.width),
            "top_tokens": (np.dtype("<i4"), TOP_K),
            "top_log_probs": (np.dtype("<f2"), TOP_K),
        }
        folder.mkdir(parents=True, exist_ok=True)
        about = {"tap_layers": self.tap_layers, "hidden": hidden, "top_k": TOP_K}
        header = folder / "store.json"
        if header.exists():
            found = json.loads(header.read_text())
            if found != about:
                raise CheckpointError(f"{folder} holds features of another shape ({found}); use another folder")
        else:
            header.write_text(json.dumps(about))
        self.texts = self._read_index()
        self.n_rows = self.texts[-1].start + self.texts[-1].length if self.texts else 0
        self._trim()

    def _read_index(self) -> list[Text]:
        path = self.folder / "index.jsonl"
        if not path.exists():
            return []
        texts = []
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # written by halves
            texts.append(Text(**json.loads(line)))
        path.write_text("".join(json.dumps(asdict(text)) + "\n" for text in texts))
        return texts

    def _path(self, column: str) -> Path:
        return self.folder / f"{column}.bin"

    def _trim(self) -> None:
        for column, (dtype, width) in self._columns.items():
            path, size = self._path(column), self.n_rows * width * dtype.itemsize
            path.touch()
            if path.stat().st_size < size:
                raise CheckpointError(f"{path} is shorter than its index says; remove the folder {self.folder}")
            with path.open("r+b") as file:
                file.truncate(size)

    @property
    def n_bytes(self) -> int:
        """Bytes on disk."""
        return self.n_rows * sum(dtype.itemsize * width for dtype, width in self._columns.values())

    def append(
        self,
        tokens: Sequence[int],
        n_prompt: int,
        features: npt.NDArray[np.uint16],
        top_tokens: npt.NDArray[np.int32],
        top_log_probs: npt.NDArray[np.float32],
        *,
        kind: str,
        temperature: float,
        held_out: bool,
        seed: int = 0,
    ) -> None:
        """Add a text of n tokens; the predictions are those of its last m rows, the others become zero."""
        missing = len(tokens) - len(top_tokens)
        rows: dict[str, npt.NDArray[Any]] = {
            "tokens": np.asarray(tokens)[:, None],
            "features": features,
            "top_tokens": np.pad(top_tokens, ((missing, 0), (0, 0))),
            "top_log_probs": np.pad(np.maximum(top_log_probs, -6e4), ((missing, 0), (0, 0))),
        }
        for column, (dtype, width) in self._columns.items():
            assert rows[column].shape == (len(tokens), width)
            with self._path(column).open("ab") as file:
                file.write(np.ascontiguousarray(rows[column], dtype=dtype).tobytes())
        text = Text(self.n_rows, len(tokens), n_prompt, kind, temperature, held_out, seed)
        with (self.folder / "index.jsonl").open("a") as file:
            file.write(json.dumps(asdict(text)) + "\n")
        self.texts.append(text)
        self.n_rows += len(tokens)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """All rows, memory-mapped: `tokens` [rows], `features` [rows, taps * hidden], `top_*` [rows, TOP_K]."""
        mapped = {
            column: np.memmap(self._path(column), dtype=dtype, mode="r", shape=(self.n_rows, width))
            for column, (dtype, width) in self._columns.items()
        }
        return mapped | {"tokens": mapped["tokens"][:, 0]}

    def select(self, *, held_out: bool) -> Iterator[Text]:
        """The texts to measure on, or those to learn from."""
        return (text for text in self.texts if text.held_out == held_out)
