"""Blocks to learn from, drawn from a feature store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_cpp.train.features import FeatureStore, Text
from dflash_cpp.train.loops import loop_start

BLOCK_LENGTHS = ((0.4, 0.5), (0.6, 0.3), (1.0, 0.2))
"""Shares of the full block length, how often each is drawn: inference computes only the rows that it offers."""

MAX_CONTEXT = 512
DECAY = 0.8
"""A position is learned from this often per position before it: the first ones decide a draft."""


@dataclass
class Batch:
    """T texts, A blocks in each, n rows a block; S rows to learn from. Token ids of the target's vocabulary.

    features [T, L, taps * D] undivided; block tokens [T, A, n]; anchors [T, A]; rows [S] index the T * A * n block
    rows; predecessors [S] the true token before each; classes [S, TOP_K] the target's likeliest tokens there with
    their probabilities [S, TOP_K]; labels [S] the text's own token.
    """

    features: Tensor
    tokens: Tensor
    anchors: Tensor
    rows: Tensor
    predecessors: Tensor
    classes: Tensor
    probabilities: Tensor
    labels: Tensor

    @property
    def n_blocks(self) -> int:
        """Blocks of the batch."""
        return self.anchors.numel()


class BlockSampler:
    """Draws batches of blocks from the texts to learn from.

    Parameters
    ----------
    store
        What the target computed.
    block_size, mask_token
        Of the drafter.
    n_texts, n_anchors
        Texts of a batch, blocks per text.
    max_reveal
        The most tokens after an anchor that may be given; in half of the batches some are, in each block as many.
    """

    def __init__(
        self, store: FeatureStore, block_size: int, mask_token: int, *, n_texts: int, n_anchors: int,
        max_reveal: int = 7, seed: int = 0,
    ) -> None:  # fmt: skip
        self._columns = store.columns()
        self._block_size, self._mask = block_size, mask_token
        self._n_texts, self._n_anchors, self._max_reveal = n_texts, n_anchors, max_reveal
        self.random = np.random.default_rng(seed)
        self.texts: list[tuple[Text, int]] = []  # with the length before it loops
        for text in store.select(held_out=False):
            end = usable_length(text, self._columns["tokens"])
            if end - text.n_prompt >= 4 and text.n_prompt >= 2:
                self.texts.append((text, end))
        if not self.texts:
            raise ValueError("there is no text to learn from; make more answers")
        weights = np.array([end - text.n_prompt for text, end in self.texts], dtype=np.float64)
        self._weights = weights / weights.sum()

    @property
    def n_anchors_in_all(self) -> int:
        """Places where a block can be anchored."""
        return sum(end - text.n_prompt for text, end in self.texts)

    def _choose_texts(self) -> list[tuple[Text, int]]:
        # Neighbours in length out of a larger draw: little of the context is padding.
        drawn = self.random.choice(len(self.texts), size=4 * self._n_texts, p=self._weights)
        chosen = sorted((self.texts[i] for i in drawn), key=lambda entry: entry[1])
        first = int(self.random.integers(0, len(chosen) - self._n_texts + 1))
        return chosen[first : first + self._n_texts]

    def draw(self) -> Batch:
        """One batch."""
        shares = np.array([share for _, share in BLOCK_LENGTHS])
        n = max(3, round(self._block_size * BLOCK_LENGTHS[self.random.choice(len(shares), p=shares)][0]))
        n, reveal = self._reveal(n)
        chosen, windows, anchors = self._choose_texts(), [], []
        for text, end in chosen:
            stop = end
            if end > MAX_CONTEXT:
                earliest = max(text.n_prompt + 4, MAX_CONTEXT)
                stop = int(self.random.integers(min(earliest, end), end + 1))
            begin = max(0, stop - MAX_CONTEXT)
            windows.append((text, begin, stop))
            low = max(text.n_prompt - 1 - begin, 1)
            places = np.arange(low, stop - begin - 1)
            again = len(places) < self._n_anchors
            anchors.append(self.random.choice(places, size=self._n_anchors, replace=again))
        reveals = np.full((self._n_texts, self._n_anchors), reveal)
        return assemble(
            self._columns, windows, np.stack(anchors), n, self._mask, reveals, self.random, decay=DECAY
        )

    def _reveal(self, n: int) -> tuple[int, int]:
        """Rows of a block of n - 1 masked ones and the tokens given before them, as far as it has room."""
        most = min(self._max_reveal, self._block_size - 2)
        reveal = int(self.random.integers(1, most + 1)) if most > 0 and self.random.random() < 0.5 else 0
        return min(n + reveal, self._block_size), reveal


def usable_length(text: Text, tokens: npt.NDArray[Any]) -> int:
    """Length of a text before its answer begins to loop."""
    answer = tokens[text.start + text.n_prompt : text.start + text.length]
    return text.n_prompt + loop_start(answer.tolist())


def assemble(
    columns: dict[str, npt.NDArray[Any]],
    windows: Sequence[tuple[Text, int, int]],
    anchors: npt.NDArray[np.int64],
    n: int,
    mask_token: int,
    reveals: npt.NDArray[np.int64],
    random: np.random.Generator | None,
    *,
    decay: float = 1.0,
) -> Batch:
    """Blocks of n rows at `anchors` [T, A] (counted from their window's begin) with `reveals` [T, A] given tokens.

    windows are (text, begin, stop), relative to the text; a masked row is kept with probability decay^(masked rows
    before it), all of them at decay 1.
    """
    T, A = anchors.shape
    longest = max(stop - begin for _, begin, stop in windows)
    width = columns["features"].shape[1]
    features = np.zeros((T, longest, width), dtype=np.uint16)
    tokens = np.full((T, longest + n), -1, dtype=np.int64)
    base = np.empty(T, dtype=np.int64)
    for t, (text, begin, stop) in enumerate(windows):
        there = slice(text.start + begin, text.start + stop)
        features[t, : stop - begin] = columns["features"][there]
        tokens[t, : stop - begin] = columns["tokens"][there]
        base[t] = text.start + begin
    offsets = np.arange(n)
    at = anchors[..., None] + offsets  # [T, A, n] positions in the window
    true = np.take_along_axis(tokens, at.reshape(T, -1), axis=1).reshape(T, A, n)
    given = offsets <= reveals[..., None]
    block = np.where(given & (true >= 0), true, mask_token)
    learn = ~given & (true >= 0)
    if random is not None and decay < 1.0:
        learn &= random.random(learn.shape) < decay ** np.maximum(offsets - 1 - reveals[..., None], 0)
    rows = np.flatnonzero(learn)
    previous = np.concatenate([true[..., :1], true[..., :-1]], axis=-1)  # the token before each row's
    source = (base[:, None, None] + at - 1).reshape(-1)[rows]  # the target row that predicts it
    return Batch(
        features=torch.from_numpy(features.view(np.int16)).view(torch.bfloat16),
        tokens=torch.from_numpy(block),
        anchors=torch.from_numpy(anchors),
        rows=torch.from_numpy(rows),
        predecessors=torch.from_numpy(previous.reshape(-1)[rows]),
        classes=torch.from_numpy(columns["top_tokens"][source].astype(np.int64)),
        probabilities=torch.from_numpy(np.exp(columns["top_log_probs"][source].astype(np.float32))),
        labels=torch.from_numpy(true.reshape(-1)[rows]),
    )
