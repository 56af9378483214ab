"""Muon with the arithmetic that the processor has: PyTorch's multiplies in bfloat16, emulated on most CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic a x + b x^3 + c x^5, applied to the singular values (Jordan et al. 2024, "Muon")."""

N_ITERATIONS = 5


def orthogonalise(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest matrix whose singular values are about 1, by Newton-Schulz iterations in `dtype`."""
    a, b, c = COEFFICIENTS
    wide = matrix.shape[0] <= matrix.shape[1]
    x = (matrix if wide else matrix.T).to(dtype)
    x = x / x.norm().clamp(min=1e-7)  # then no singular value is above 1
    for _ in range(N_ITERATIONS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.T).to(matrix.dtype)


class Muon(torch.optim.Muon):
    """PyTorch's Muon (momentum 0.95, Nesterov), its steps as long as AdamW's ("match_rms_adamw").

    Parameters
    ----------
    params
        Matrices.
    dtype
        What the iterations are computed in.
    """

    def __init__(
        self, params: list[torch.nn.Parameter], *, lr: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every matrix that has a gradient."""
        loss = closure() if closure else None
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                mean = state["momentum_buffer"].lerp_(matrix.grad, 1.0 - momentum)
                direction = orthogonalise(matrix.grad.lerp(mean, momentum), self._dtype)
                matrix.mul_(1.0 - rate * group["weight_decay"])
                matrix.add_(direction, alpha=-rate * 0.2 * math.sqrt(max(matrix.shape)))
        return loss
