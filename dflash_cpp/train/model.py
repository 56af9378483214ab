"""The DFlash 2 drafter as a PyTorch module, for training.

Parameters carry the names of public checkpoints. Two things differ inside and are undone by `to_checkpoint`: the
features come divided by their spread per channel (folded into `fc`), and the selector's codebooks have rows for
the draft vocabulary alone.

Shapes: T texts of a batch, L context tokens, A anchors per text, n rows of a block, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_cpp.train.config import DrafterConfig
from dflash_cpp.train.kernels import convolve, rms_norm, rotate


class RMSNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return rms_norm(x, self.weight, self.eps)


class DynamicConv(nn.Module):
    """Two-tap dynamic convolution before and after a sublayer, coefficients from the sublayer's input.

    out[t, c] = sum over taps s of (base[s, c] + d[t, s, group(c)]) * y[t - s, c]; left of the block is zero.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.kernel, self.group = config.conv_kernel, config.conv_group
        self.groups = config.hidden // config.conv_group
        self.base_kernel = nn.Parameter(torch.zeros(2, self.kernel, config.hidden))
        self.kernel_projection = nn.Linear(config.hidden, 2 * self.kernel * self.groups, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0  # at first every convolution passes its input through
        nn.init.zeros_(self.kernel_projection.weight)

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Dynamic parts [T, A, n, taps, groups] before and after the sublayer, from its input [T, A, n, D]."""
        both = self.kernel_projection(x).reshape(*x.shape[:-1], 2, self.kernel, self.groups)
        return both[..., 0, :, :], both[..., 1, :, :]

    def apply_taps(self, y: Tensor, dynamic: Tensor, side: int) -> Tensor:
        """Convolve y [T, A, n, D] along the block; side 0 is before the sublayer, 1 after it."""
        out = convolve(y.flatten(0, 1), dynamic.flatten(0, 1), self.base_kernel[side])
        return out.view(y.shape)


class Attention(nn.Module):
    """Block rows attend to the injected context before their anchor and to all rows of their block."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        d, q, kv = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(d, q, bias=False)
        self.k_proj = nn.Linear(d, kv, bias=False)
        self.v_proj = nn.Linear(d, kv, bias=False)
        self.o_proj = nn.Linear(q, d, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def _keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim)))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        return rotate(k, cos[..., None, :], sin[..., None, :]), v

    def forward(self, x: Tensor, context: Tensor, rope: Rope, hidden_keys: Tensor) -> Tensor:
        """X [T, A, n, D], context [T, L, D], hidden_keys [T, A, L] true where a key is out of sight."""
        T, A, n, _ = x.shape
        L = context.shape[1]
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.head_dim)))
        q = rotate(q, rope.block_cos[..., None, :], rope.block_sin[..., None, :]) * self.head_dim**-0.5
        k_ctx, v_ctx = self._keys_values(context, rope.context_cos, rope.context_sin)
        k_blk, v_blk = self._keys_values(x, rope.block_cos, rope.block_sin)
        repeat = self.heads // self.kv_heads
        if repeat > 1:
            k_ctx, v_ctx, k_blk, v_blk = (t.repeat_interleave(repeat, -2) for t in (k_ctx, v_ctx, k_blk, v_blk))
        q_flat = q.reshape(T, A * n, self.heads, self.head_dim).transpose(1, 2)
        to_context = (q_flat @ k_ctx.permute(0, 2, 3, 1)).unflatten(2, (A, n))  # [T, H, A, n, L]
        to_context = to_context.masked_fill(hidden_keys[:, None, :, None, :], float("-inf"))
        q_blk = q.permute(0, 3, 1, 2, 4)  # [T, H, A, n, d]
        to_block = q_blk @ k_blk.permute(0, 3, 1, 4, 2)
        weights = torch.cat([to_context, to_block], dim=-1).softmax(-1)
        on_context, on_block = torch.split(weights, [L, n], dim=-1)
        from_context = on_context.flatten(2, 3) @ v_ctx.transpose(1, 2)
        from_block = on_block @ v_blk.permute(0, 3, 1, 2, 4)
        y = from_context.reshape(from_block.shape) + from_block  # [T, H, A, n, d]
        out: Tensor = self.o_proj(y.permute(0, 2, 3, 1, 4).reshape(T, A, n, -1))
        return out


class Mlp(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.down_proj = nn.Linear(config.feed_forward, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each between the two sides of its dynamic convolution."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.rms_norm_eps)
        self.mlp = Mlp(config)
        self.attention_conv = DynamicConv(config)
        self.mlp_conv = DynamicConv(config)
        self.convolution = config.convolution

    def forward(self, x: Tensor, context: Tensor, rope: Rope, hidden_keys: Tensor) -> Tensor:
        """[T, A, n, D] to [T, A, n, D]."""
        y = self.input_layernorm(x)
        if not self.convolution:
            x = x + self.self_attn(y, context, rope, hidden_keys)
            plain: Tensor = x + self.mlp(self.post_attention_layernorm(x))
            return plain
        taps = self.attention_conv.coefficients(y)
        y = self.self_attn(self.attention_conv.apply_taps(y, taps[0], 0), context, rope, hidden_keys)
        x = x + self.attention_conv.apply_taps(y, taps[1], 1)
        y = self.post_attention_layernorm(x)
        taps = self.mlp_conv.coefficients(y)
        y = self.mlp(self.mlp_conv.apply_taps(y, taps[0], 0))
        return x + self.mlp_conv.apply_taps(y, taps[1], 1)


class Selector(nn.Module):
    """Scores a candidate by its predecessor: <A[a] * (H h), B[b]>, codebooks over the draft vocabulary."""

    def __init__(self, config: DrafterConfig, draft_vocab: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(draft_vocab, config.rank) * 0.5)
        self.successor_codebook = nn.Parameter(torch.randn(draft_vocab, config.rank) * 0.02)
        self.hidden_projection = nn.Linear(config.hidden, config.rank, bias=False)

    def forward(self, hidden: Tensor, predecessors: Tensor, candidates: Tensor) -> Tensor:
        """Hidden [S, D], predecessors [S] (-1: outside the draft vocabulary), candidates [S, K] to [S, K]."""
        a = F.embedding(predecessors.clamp(min=0), self.predecessor_codebook)
        a = a * (predecessors >= 0).unsqueeze(-1)
        b = F.embedding(candidates, self.successor_codebook)
        return torch.einsum("sr,skr->sk", a * self.hidden_projection(hidden).float(), b)


@dataclass
class Rope:
    """Cosines and sines: context [T, L, head_dim / 2], block [T, A, n, head_dim / 2]."""

    context_cos: Tensor
    context_sin: Tensor
    block_cos: Tensor
    block_sin: Tensor


class DraftModel(nn.Module):
    """The whole drafter. Embedding and output head are the target's, frozen, and handed in."""

    def __init__(self, config: DrafterConfig, draft_vocab: int) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.taps) * config.hidden, config.hidden, bias=False)
        self.hidden_norm = RMSNorm(config.hidden, config.rms_norm_eps)
        self.norm = RMSNorm(config.hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.candidate_selector = Selector(config, draft_vocab)
        half = config.head_dim // 2
        frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("frequencies", frequencies, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.weight.abs().sum() > 0:
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            # Small at first, so that the residual stream starts as the embeddings.
            nn.init.normal_(layer.self_attn.o_proj.weight, std=0.3 * config.hidden**-0.5)
            nn.init.normal_(layer.mlp.down_proj.weight, std=0.3 * config.feed_forward**-0.5)

    def rope(self, n_context: int, positions: Tensor, dtype: torch.dtype) -> Rope:
        """Positions [T, A, n] of the block rows; the context's are 0 to n_context."""
        assert isinstance(self.frequencies, Tensor)
        context = torch.arange(n_context, device=positions.device)[None, :, None] * self.frequencies
        block = positions[..., None] * self.frequencies
        parts = (context.cos(), context.sin(), block.cos(), block.sin())
        return Rope(*(part.to(dtype) for part in parts))

    def forward(self, features: Tensor, embedded: Tensor, anchors: Tensor) -> Tensor:
        """Final hidden states [T, A, n, D] of blocks.

        features [T, L, taps * D], divided by their spread; embedded [T, A, n, D], token embeddings of the block
        rows; anchors [T, A], positions of the blocks' first rows.
        """
        n, n_context = embedded.shape[2], features.shape[1]
        positions = anchors[..., None] + torch.arange(n, device=anchors.device)
        context = self.hidden_norm(self.fc(features))
        rope = self.rope(n_context, positions, context.dtype)
        hidden_keys = torch.arange(n_context, device=anchors.device) >= anchors[..., None]
        x = embedded
        for layer in self.layers:
            x = layer(x, context, rope, hidden_keys)
        out: Tensor = self.norm(x)
        return out
