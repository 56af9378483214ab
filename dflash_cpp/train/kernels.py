"""Small operations with their own gradients: PyTorch's would pass over memory several times as often.

Each computes in the input's type and sums in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(torch.linalg.vecdot(wide, wide).unsqueeze(-1) / x.shape[-1] + eps)
        normal = (wide * scale).to(x.dtype)
        ctx.save_for_backward(normal, scale, weight)
        return normal * weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        normal, scale, weight = ctx.saved_tensors
        (g,) = gradients
        product = g * normal
        weight_gradient = product.sum(tuple(range(g.ndim - 1)), dtype=torch.float32)
        along = torch.linalg.vecdot(product.float(), weight).unsqueeze(-1) / g.shape[-1]
        x_gradient = torch.addcmul(g * weight.to(g.dtype), normal, along.to(g.dtype), value=-1)
        return x_gradient.mul_(scale.to(g.dtype)), weight_gradient, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square over the last dimension, then scale by the weight [D]."""
    return _RmsNorm.apply(x, weight, eps)  # type: ignore[no-any-return, no-untyped-call]


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        cos, sin = ctx.saved_tensors
        return _turn(gradients[0], cos, -sin), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    out = torch.empty_like(x)
    torch.mul(a, cos, out=out[..., :half]).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=out[..., half:]).addcmul_(a, sin)
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, halves paired (NeoX order). x [..., head_dim]; cos, sin [..., head_dim / 2]."""
    return _Rotate.apply(x, cos, sin)  # type: ignore[no-any-return, no-untyped-call]


def _taps(dynamic: Tensor, base: Tensor, groups: int) -> list[Tensor]:
    """Coefficients [rows, n, groups, group size] of each tap."""
    per_group = base.to(dynamic.dtype).unflatten(-1, (groups, -1))  # type: ignore[no-untyped-call]
    return [dynamic[:, :, tap, :, None] + per_group[tap] for tap in range(base.shape[0])]


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
        groups, n = dynamic.shape[-1], y.shape[1]
        y = y.view(*y.shape[:2], groups, -1)
        ctx.save_for_backward(y, dynamic, base)
        coefficients = _taps(dynamic, base, groups)
        out = coefficients[0].mul_(y)
        for tap in range(1, min(len(coefficients), n)):
            out[:, tap:].addcmul_(coefficients[tap][:, tap:], y[:, : n - tap])
        return out.flatten(2)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        y, dynamic, base = ctx.saved_tensors
        n = y.shape[1]
        g = gradients[0].reshape(y.shape)
        coefficients = _taps(dynamic, base, dynamic.shape[-1])
        dynamic_gradient = torch.zeros_like(dynamic)
        base_gradient = torch.zeros_like(base)
        y_gradient = coefficients[0].mul_(g)
        for tap in range(min(len(coefficients), n)):
            late, early = g[:, tap:], y[:, : n - tap]
            if tap > 0:
                y_gradient[:, : n - tap].addcmul_(coefficients[tap][:, tap:], late)
            product = late * early
            dynamic_gradient[:, tap:, tap] = product.sum(-1)
            base_gradient[tap] = product.sum((0, 1), dtype=torch.float32).flatten()
        return y_gradient.flatten(2), dynamic_gradient, base_gradient


def convolve(y: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
    """Sum over taps s of (base[s, c] + dynamic[t, s, group(c)]) * y[t - s, c]; left of the block is zero.

    y [blocks, n, D], dynamic [blocks, n, taps, groups], base [taps, D].
    """
    return _Convolve.apply(y.contiguous(), dynamic, base)  # type: ignore[no-any-return, no-untyped-call]
