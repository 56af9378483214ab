"""What the drafter is taught: the target's own next-token distribution, and which candidate follows which."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 512
"""Rows whose logits exist at once: their size stays within the CPU's cache."""


class _SoftCrossEntropy(torch.autograd.Function):
    """Loss, gradient and top candidates in one sweep over the logits, which are never kept."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, classes: Tensor, probabilities: Tensor, weights: Tensor, k: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        losses, scores, candidates, gradients = [], [], [], []
        for h, c, q, w in zip(
            *(torch.split(t, CHUNK) for t in (hidden, classes, probabilities, weights)), strict=True
        ):
            logits = (h.to(head.dtype) @ head.T).float()
            top = logits.topk(k, dim=-1)
            scores.append(top.values)
            candidates.append(top.indices)
            target_logits = logits.gather(1, c)
            high = top.values.amax(1, keepdim=True)
            p = logits.sub_(high).exp_()
            total = p.sum(1, keepdim=True)
            mass = q.sum(1)
            losses.append((mass * (total.log() + high)[:, 0] - (q * target_logits).sum(1)) * w)
            p.mul_(w[:, None] * mass[:, None] / total)
            p.scatter_add_(1, c, -q * w[:, None])
            gradients.append(p.to(head.dtype) @ head)
        ctx.save_for_backward(torch.cat(gradients))
        loss = torch.cat(losses).sum()
        top_scores, top_candidates = torch.cat(scores), torch.cat(candidates)
        ctx.mark_non_differentiable(top_scores, top_candidates)
        return loss, top_scores, top_candidates

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * outputs[0], None, None, None, None, None


def soft_cross_entropy(
    hidden: Tensor, head: Tensor, classes: Tensor, probabilities: Tensor, weights: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy against soft targets, summed over rows with weights.

    hidden [S, D]; head [V, D], frozen; classes [S, C] with their probabilities [S, C] (0: ignored); weights [S].
    Returns the loss and the k best logits [S, k] with their classes [S, k], without gradient.
    """
    return _SoftCrossEntropy.apply(hidden, head, classes, probabilities, weights, k)  # type: ignore[no-any-return, no-untyped-call]


def selector_loss(
    scores: Tensor, candidates: Tensor, classes: Tensor, probabilities: Tensor, weights: Tensor
) -> Tensor:
    """Cross-entropy over the candidates [S, K] with scores [S, K], targets as in `soft_cross_entropy`.

    A target outside of the candidates cannot be chosen and counts nothing.
    """
    hit = candidates[:, :, None] == classes[:, None, :]
    target = (hit * probabilities[:, None, :]).sum(-1)
    log_p = scores.log_softmax(-1)
    return -((target * log_p).sum(-1) * weights).sum()
