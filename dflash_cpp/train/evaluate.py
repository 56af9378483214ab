"""How many drafted tokens a target would accept, on texts that it wrote itself.

A text is walked as decoding walks it: from an anchor to the token after the last accepted one. That is what the
engine does with the same text, so both give the same acceptance length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_cpp import _core
from dflash_cpp.train.data import assemble, usable_length
from dflash_cpp.train.features import FeatureStore, Text
from dflash_cpp.train.student import Candidates, Student

ANCHORS_AT_ONCE = 256
Array = npt.NDArray[Any]
Noise = Callable[[Array, Array], Array]
"""Gumbel noise of (positions [..., 1], tokens [..., K])."""


@dataclass
class Acceptance:
    """Counts over the steps of decoding at one width; `add` merges."""

    width: int
    steps: int = 0
    committed: int = 0
    reached: list[int] = field(default_factory=list)
    """Per position: steps that came to it, all before it accepted."""
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reached = self.reached or [0] * self.width
        self.accepted = self.accepted or [0] * self.width

    @property
    def tau(self) -> float:
        """Tokens committed per verification, bonus included."""
        return self.committed / self.steps if self.steps else 0.0

    def add_step(self, offered: int, accepted: int) -> None:
        """Count one verification."""
        self.steps += 1
        self.committed += accepted + 1
        for i in range(min(accepted + 1, offered)):
            self.reached[i] += 1
            self.accepted[i] += i < accepted

    def add(self, other: Acceptance) -> None:
        """Merge the counts of another of the same width."""
        self.steps += other.steps
        self.committed += other.committed
        self.reached = [a + b for a, b in zip(self.reached, other.reached, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; `by_position` is the acceptance of those that came to the position."""
        by_position = [a / r if r else 0.0 for a, r in zip(self.accepted, self.reached, strict=True)]
        return {"width": self.width, "steps": self.steps, "tau": self.tau, "by_position": by_position}


class TextDrafts:
    """Drafts at every anchor of one text, from one pass per 256 anchors.

    Anchors are the positions `first` to `last` - 1; `n` rows a block, `reveal` tokens given after each anchor.
    """

    def __init__(self, student: Student, columns: dict[str, Array], text: Text, n: int, reveal: int = 0) -> None:
        self.student, self.n, self.reveal = student, n, reveal
        end = usable_length(text, columns["tokens"])
        self.tokens = columns["tokens"][text.start : text.start + end].astype(np.int64)
        self.first, self.last = max(text.n_prompt - 1, 1), end - 1 - reveal
        self.anchors = np.arange(self.first, max(self.last, self.first))
        parts: list[Candidates] = []
        for begin in range(0, len(self.anchors), ANCHORS_AT_ONCE):
            anchors = self.anchors[begin : begin + ANCHORS_AT_ONCE]
            stop = int(anchors[-1]) + 1
            batch = assemble(
                columns, [(text, 0, end)], anchors[None], n, student.config.mask_token,
                np.full((1, len(anchors)), reveal), None,
            )  # fmt: skip
            batch.features = batch.features[:, :stop]  # nothing at or after the last anchor is seen
            parts.append(student.candidates(batch))
        self.found = Candidates(
            *(torch.cat([getattr(p, f) for p in parts]) for f in ("classes", "unary", "projected"))
        )

    def _class(self, tokens: Array) -> Tensor:
        return self.student.class_of[torch.from_numpy(tokens).to(self.student.device)]

    def token_at(self, offset: int) -> Array:
        """The text's token at `offset` past each anchor, -1 beyond its end."""
        at = self.anchors + offset
        return np.where(at < len(self.tokens), self.tokens[np.minimum(at, len(self.tokens) - 1)], -1)

    def walk(
        self, first: int, noise: Noise | None = None, temperature: float = 0.0, length: int | None = None
    ) -> Array:
        """Paths [anchors, length or n - first] from block position `first` on, the text's token before it.

        Greedy, or drawn at a temperature with the noise that the target draws with (coupled sampling).
        """
        before = self.token_at(first - 1)
        predecessors = self._class(np.maximum(before, 0))
        path = []
        for position in range(first - 1, min(first - 1 + (length or self.n), self.n - 1)):
            scores = self.student.scores(self.found, position, predecessors)
            classes = self.found.classes[:, position]
            if noise is not None:
                at = np.minimum(self.anchors + position + 1, len(self.tokens) - 1)
                tokens = self.student.draft_tokens[classes].cpu().numpy()
                drawn = torch.from_numpy(noise(at[:, None], tokens)).to(scores.device)
                scores = scores / temperature + drawn
            predecessors = classes.gather(1, scores.argmax(1, keepdim=True))[:, 0]
            path.append(self.student.draft_tokens[predecessors].cpu().numpy())
        return np.stack(path, axis=1)

    def accepted(self, paths: Array, first: int, width: int) -> Array:
        """Leading tokens [anchors] of the paths that are the text's, `width` at most."""
        truth = np.stack([self.token_at(first + i) for i in range(min(width, paths.shape[1]))], axis=1)
        right: Array = np.cumprod(paths[:, :width] == truth, axis=1).sum(1)
        return right

    def count(self, counts: Acceptance, first: int, noise: Noise | None = None, temperature: float = 0.0) -> None:
        """Add to `counts` the steps of decoding this text with the paths from block position `first` on."""
        if len(self.anchors):
            paths = self.walk(first, noise, temperature, counts.width)
            left = len(self.tokens) - self.anchors - first
            counts.add(decode_text(self.accepted(paths, first, counts.width), left, counts.width))


def decode_text(accepted: Array, n_tokens_left: Array, width: int) -> Acceptance:
    """Step through a text: accepted [anchors] at each anchor, tokens left after each anchor."""
    counts, at = Acceptance(width), 0
    while at < len(accepted):
        # As the engine: the draft never reaches past the last token that is wanted.
        offered = min(width, int(n_tokens_left[at]) - 1)
        got = min(int(accepted[at]), max(offered, 0))
        counts.add_step(max(offered, 0), got)
        at += got + 1
    return counts


def fresh_acceptance(student: Student, columns: dict[str, Array], texts: Sequence[Text], width: int) -> Acceptance:
    """Greedy acceptance of fresh drafts; a block has width + 1 rows, as in decoding."""
    counts = Acceptance(width)
    for text in texts:
        TextDrafts(student, columns, text, width + 1).count(counts, 1)
    return counts


def monitor(student: Student, store: FeatureStore, width: int = 5, limit: int = 24) -> Acceptance:
    """A quick look while training: greedy texts held out."""
    held_out = list(store.select(held_out=True))
    texts = [text for text in held_out if text.temperature == 0.0] or held_out
    return fresh_acceptance(student, store.columns(), texts[:limit], width)


SHOWN_POSITIONS = 4
"""Positions over which fresh drafts, continued lattices and revealed prefixes are compared."""


@dataclass
class Report:
    """Held-out acceptance on the texts of one kind at one temperature.

    `fresh` by width; `continued` and `revealed` by tokens past the anchor, four positions each, beside `fresh_4`;
    `recall` per position of a fresh block of 8: how often the true token is among the candidates.
    """

    kind: str
    temperature: float
    texts: int
    tokens: int
    fresh: dict[int, Acceptance]
    fresh_4: Acceptance
    continued: dict[int, Acceptance]
    revealed: dict[int, Acceptance]
    recall: list[float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""

        def by(counts: dict[int, Acceptance]) -> dict[str, Any]:
            return {str(key): value.to_dict() for key, value in counts.items()}

        return {
            "kind": self.kind, "temperature": self.temperature, "texts": self.texts, "tokens": self.tokens,
            "fresh": by(self.fresh), "fresh_4": self.fresh_4.to_dict(), "continued": by(self.continued),
            "revealed": by(self.revealed), "recall": self.recall,
        }  # fmt: skip


def _text_noise(text: Text, temperature: float) -> Noise | None:
    """The noise that the target drew this text with: keyed by its seed, the position and the token."""
    if temperature == 0.0:
        return None

    def noise(positions: Array, tokens: Array) -> Array:
        places = np.broadcast_to(positions, tokens.shape)
        flat = [
            _core.gumbel(text.seed, int(p), int(t)) for p, t in zip(places.ravel(), tokens.ravel(), strict=True)
        ]
        return np.array(flat, dtype=np.float32).reshape(tokens.shape)

    return noise


def evaluate(
    student: Student, store: FeatureStore, kind: str, temperature: float, *, widths: Sequence[int] = (3, 5, 7),
    offsets: Sequence[int] = (1, 2, 3, 4, 5, 6, 7), progress: Callable[[int, int], None] | None = None,
) -> Report:  # fmt: skip
    """Measure one kind's held-out texts of one temperature; `progress` is told (texts done, texts)."""
    columns = store.columns()
    texts = [t for t in store.select(held_out=True) if (t.kind, t.temperature) == (kind, temperature)]
    block, shown = student.config.block_size, SHOWN_POSITIONS
    report = Report(
        kind, temperature, len(texts), 0, {w: Acceptance(w) for w in widths if w < block}, Acceptance(shown),
        {o: Acceptance(shown) for o in offsets if o + shown < block},
        {o: Acceptance(shown) for o in offsets if o + shown < block}, [],
    )  # fmt: skip
    hits, seen = np.zeros(block), np.zeros(block)
    for number, text in enumerate(texts):
        noise = _text_noise(text, temperature)

        def drafts_of(n: int, reveal: int = 0, text: Text = text) -> TextDrafts:
            return TextDrafts(student, columns, text, n, reveal)

        for width, counts in report.fresh.items():
            drafts = drafts_of(width + 1)
            drafts.count(counts, 1, noise, temperature)
        report.tokens += len(drafts.tokens) - text.n_prompt
        drafts_of(shown + 1).count(report.fresh_4, 1, noise, temperature)
        whole = drafts_of(block)  # a lattice to be walked on is computed for the whole block
        for offset, counts in report.continued.items():
            whole.count(counts, offset + 1, noise, temperature)
        for offset, counts in report.revealed.items():
            drafts_of(offset + 1 + shown, offset).count(counts, offset + 1, noise, temperature)
        for position in range(1, drafts.n):
            truth = drafts.token_at(position)
            found = student.draft_tokens[drafts.found.classes[:, position - 1]].cpu().numpy() == truth[:, None]
            hits[position] += found.any(1)[truth >= 0].sum()
            seen[position] += (truth >= 0).sum()
        if progress:
            progress(number + 1, len(texts))
    report.recall = [float(h / s) for h, s in zip(hits, seen, strict=True) if s]
    return report
