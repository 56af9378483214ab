"""The drafter in training, with all that it takes to compute a loss or a draft."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_cpp.convert.safetensors_file import write_safetensors
from dflash_cpp.train.config import DrafterConfig
from dflash_cpp.train.data import Batch
from dflash_cpp.train.loss import CHUNK, selector_loss, soft_cross_entropy
from dflash_cpp.train.model import DraftModel
from dflash_cpp.train.teacher_weights import TeacherWeights

SHARPEN = 2.0
"""Exponent of the target's probabilities as a lesson: a greedy text follows their peak, not their spread."""

SELECTOR_WEIGHT = 0.5


def compute_type(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies matrices of it; float32 on CPUs, which else emulate it at an eighth."""
    if device.type != "cpu":
        return torch.bfloat16
    if platform.machine().lower() in ("x86_64", "amd64"):
        native = torch.cpu._is_avx512_bf16_supported()  # AMX machines have these instructions, too
    else:
        native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


@dataclass
class Losses:
    """Of one batch, per learned row: cross-entropies in nats, and the share of rows whose best is right."""

    total: Tensor
    unary: float
    selector: float
    accuracy: float


@dataclass
class Candidates:
    """What a pass says of N blocks of n - 1 masked positions: top-K classes of the draft vocabulary.

    classes [N, n - 1, K], unary scores [N, n - 1, K], projected hidden states [N, n - 1, rank].
    """

    classes: Tensor
    unary: Tensor
    projected: Tensor


class Student:
    """A DraftModel with its draft vocabulary, the spread of its features, and the target's frozen ends.

    Parameters
    ----------
    config
        Sizes.
    draft_tokens
        [draft vocabulary] ids of the target's tokens that are drafted, ascending.
    spread
        [taps * D] standard deviation of each feature.
    weights
        The target's embedding, head and norm.
    device
        "cpu" or "cuda".
    """

    def __init__(
        self, config: DrafterConfig, draft_tokens: Sequence[int] | npt.NDArray[np.int64],
        spread: npt.NDArray[np.float32], weights: TeacherWeights, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.config, self.device = config, torch.device(device)
        self.target_layers = weights.n_layers
        self.draft_tokens = torch.as_tensor(np.asarray(draft_tokens, dtype=np.int64), device=self.device)
        self.class_of = torch.full((config.vocab,), -1, dtype=torch.int64, device=self.device)
        self.class_of[self.draft_tokens] = torch.arange(len(self.draft_tokens), device=self.device)
        self.spread = torch.as_tensor(spread, device=self.device)
        self.model = DraftModel(config, len(self.draft_tokens)).to(self.device)
        with torch.no_grad():
            self.model.norm.weight.copy_(torch.from_numpy(weights.norm.copy()))
        self.type = compute_type(self.device)
        self.embedding = torch.tensor(weights.embedding).to(self.device, self.type)
        self.head = torch.tensor(weights.head).to(self.device, self.type)[self.draft_tokens].contiguous()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.type == torch.bfloat16)

    def hidden(self, batch: Batch) -> Tensor:
        """Final hidden states [T, A, n, D]."""
        features = batch.features.to(self.device)
        features = (features * (1.0 / self.spread).to(features.dtype)).to(self.type)
        embedded = self.embedding[batch.tokens.to(self.device)]
        with self._autocast():
            out: Tensor = self.model(features, embedded, batch.anchors.to(self.device))
        return out

    def losses(self, batch: Batch) -> Losses:
        """Compute the loss of a batch, graph attached."""
        rows = batch.rows.to(self.device)
        hidden = self.hidden(batch).flatten(0, 2)[rows]
        probabilities = batch.probabilities.to(self.device) ** SHARPEN
        probabilities = probabilities / probabilities.sum(1, keepdim=True)
        classes = self.class_of[batch.classes.to(self.device)]
        probabilities = probabilities * (classes >= 0)
        classes = classes.clamp(min=0)
        weights = torch.full((len(rows),), 1.0 / max(len(rows), 1), device=self.device)
        k = self.config.top_k
        unary, scores, candidates = soft_cross_entropy(hidden, self.head, classes, probabilities, weights, k)
        labels = self.class_of[batch.labels.to(self.device)]
        if not self.config.selector:
            right = (candidates[:, 0] == labels).float().mean().item()
            return Losses(unary, unary.item(), math.nan, right)
        predecessors = self.class_of[batch.predecessors.to(self.device)]
        with self._autocast():
            pair = self.model.candidate_selector(hidden, predecessors, candidates)
        scores = scores + pair.float()
        chosen = selector_loss(scores, candidates, classes, probabilities, weights)
        best = candidates.gather(1, scores.argmax(1, keepdim=True))[:, 0]
        right = (best == labels).float().mean().item()
        return Losses(unary + SELECTOR_WEIGHT * chosen, unary.item(), chosen.item(), right)

    @torch.no_grad()
    def candidates(self, batch: Batch) -> Candidates:
        """Top candidates of every position after the anchor, for all T * A blocks."""
        hidden = self.hidden(batch)[:, :, 1:].flatten(0, 1)
        rows = hidden.flatten(0, 1)
        tops = [
            (h.to(self.head.dtype) @ self.head.T).float().topk(self.config.top_k, dim=-1)
            for h in torch.split(rows, CHUNK)
        ]
        shape = (*hidden.shape[:2], self.config.top_k)
        classes = torch.cat([top.indices for top in tops]).view(shape)
        unary = torch.cat([top.values for top in tops]).view(shape)
        projected = self.model.candidate_selector.hidden_projection(hidden.float())
        return Candidates(classes, unary, projected)

    @torch.no_grad()
    def scores(self, found: Candidates, position: int, predecessors: Tensor) -> Tensor:
        """Scores [N, K] of the candidates at a position (0: the first after the anchor).

        predecessors [N] classes; -1, a token outside of the draft vocabulary, has no say in it.
        """
        unary = found.unary[:, position]
        if not self.config.selector:
            return unary
        selector = self.model.candidate_selector
        a = selector.predecessor_codebook[predecessors.clamp(min=0)] * (predecessors >= 0).unsqueeze(-1)
        b = selector.successor_codebook[found.classes[:, position]]
        return unary + torch.einsum("nr,nkr->nk", a * found.projected[:, position], b)

    # -- leaving and coming back ------------------------------------------------------------------------------

    def write_checkpoint(self, folder: Path, about: dict[str, Any] | None = None) -> None:
        """Write the checkpoint that the reference package and `convert` read: float32, full codebooks."""
        import json

        arrays: dict[str, npt.NDArray[np.float32]] = {}
        for name, parameter in self.model.named_parameters():
            array = parameter.detach().float().cpu().numpy()
            if name == "fc.weight":
                array = array / self.spread.cpu().numpy()
            elif name.endswith("_codebook"):
                full = np.zeros((self.config.vocab, self.config.rank), dtype=np.float32)
                if self.config.selector:
                    full[self.draft_tokens.cpu().numpy()] = array
                array = full
            arrays[name] = np.ascontiguousarray(array, dtype=np.float32)
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / "model.safetensors", arrays)
        config = self.config.checkpoint_config(self.target_layers) | ({"dflash_training": about} if about else {})
        partial = folder / "config.json.partial"
        partial.write_text(json.dumps(config, indent=1) + "\n")
        partial.replace(folder / "config.json")
