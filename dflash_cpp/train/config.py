"""Sizes of the drafter to train, and how it learns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_cpp import _core
from dflash_cpp.errors import IncompatibleDrafterError


@dataclass(frozen=True)
class DrafterConfig:
    """A DFlash 2 drafter's sizes. Hidden size and vocabulary are the target's.

    `draft_vocab` most frequent tokens are drafted (0: all); `convolution` and `selector` can be left out to see
    what they are worth.
    """

    hidden: int
    vocab: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    block_size: int
    taps: tuple[int, ...]
    """Target layers whose input is read."""
    mask_token: int
    rank: int = 64
    top_k: int = 16
    conv_kernel: int = 2
    conv_group: int = 16
    draft_vocab: int = 8192
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    context: int = 8192
    convolution: bool = True
    selector: bool = True

    def checkpoint_config(self, target_layers: int) -> dict[str, Any]:
        """Make the checkpoint's config.json: a Qwen3-shaped config with `dflash_config`."""
        return {
            "architectures": ["DFlash2DraftModel"],
            "model_type": "qwen3",
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.layers,
            "num_target_layers": target_layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "dflash_config": {
                "block_size": self.block_size,
                "mask_token_id": self.mask_token,
                "target_layer_ids": [tap - 1 for tap in self.taps],
                "conv_kernel_size": self.conv_kernel,
                "conv_group_size": self.conv_group,
                "selector_rank": self.rank,
                "selector_top_k": self.top_k,
            },
        }

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON takes them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> DrafterConfig:
        """Undo `to_dict`."""
        return cls(**(fields | {"taps": tuple(fields["taps"])}))


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "n_taps": 2, "feed_forward": 2.0, "rank": 8, "block_size": 8, "top_k": 4},
    "small": {"layers": 2, "n_taps": 4, "feed_forward": 8 / 3, "rank": 64, "block_size": 12},
    "base": {"layers": 3, "n_taps": 4, "feed_forward": 8 / 3, "rank": 64, "block_size": 12},
    "large": {"layers": 5, "n_taps": 5, "feed_forward": 8 / 3, "rank": 256, "block_size": 16},
}
"""Sizes by name; `feed_forward` is a multiple of the hidden size."""


def default_taps(n_layers: int, n_taps: int) -> tuple[int, ...]:
    """Spread `n_taps` layers evenly, the deepest the last one: its input knows most of the next token."""
    first, last = min(max(1, n_layers // 6), n_layers - 1), n_layers - 1
    steps = max(n_taps - 1, 1)
    return tuple(sorted({round(first + (last - first) * i / steps) for i in range(n_taps)} | {last}))


def mask_token_of(file: _core.GgufFile, token_types: npt.NDArray[np.int32], used: set[int]) -> int:
    """Choose a token that marks what to fill in: a control token that no text uses, else the last unused one."""
    control = [i for i, kind in enumerate(token_types) if kind == 3 and i not in used]
    if control:
        return control[-1]
    for token in range(file.vocab_size - 1, -1, -1):
        if token not in used:
            return token
    raise IncompatibleDrafterError("every token of the target's vocabulary is in use; none can mark a mask")


def config_for(name: str, file: _core.GgufFile, mask_token: int, **changes: Any) -> DrafterConfig:
    """The named size for a target.

    Raises
    ------
    ValueError
        There is no such size.
    """
    if name not in SIZES:
        raise ValueError(f"config is {name!r}; use one of {', '.join(SIZES)}")
    size = dict(SIZES[name])
    n_taps, multiple = size.pop("n_taps"), size.pop("feed_forward")
    architecture, metadata = file.architecture, file.metadata

    def number(key: str) -> int:
        value = metadata.get(f"{architecture}.{key}")
        if not isinstance(value, int):
            raise IncompatibleDrafterError(f"{file.path} does not say its {key}")
        return value

    hidden, n_layers = number("embedding_length"), number("block_count")
    head_dim = 64 if hidden % 64 == 0 else 16
    heads = max(1, hidden // head_dim)
    top_k = size.get("top_k", 16)
    while top_k * (top_k + 1) > hidden:
        top_k //= 2
    config = DrafterConfig(
        hidden=hidden, vocab=file.vocab_size, heads=heads, kv_heads=heads, head_dim=head_dim,
        feed_forward=round(hidden * multiple / 32) * 32, taps=default_taps(n_layers, n_taps),
        mask_token=mask_token, **(size | {"top_k": top_k}),
    )  # fmt: skip
    return replace(config, **changes)
