"""Random drafters of the reference package, and a random target that exists as an HF model and as a GGUF."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel
from tiny_models import LETTERS
from transformers import Qwen3Config, Qwen3ForCausalLM

N_LAYERS = 6


@dataclass
class Target:
    """The same random weights twice."""

    model: Qwen3ForCausalLM
    path: Path
    config: Qwen3Config


def random_target(folder: Path, *, hidden: int, n_vocab: int = 96, seed: int = 0) -> Target:
    """Make a random Qwen3 of six layers; write it as an F32 GGUF."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=n_vocab, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=N_LAYERS,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=1024,
        rms_norm_eps=1e-6, tie_word_embeddings=False, rope_theta=10000.0,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                # Wide enough that the text does not fall into a loop at once.
                parameter.normal_(0.0, 1.6 / parameter.shape[-1] ** 0.5)
            elif name.endswith("norm.weight"):
                parameter.normal_(1.0, 0.1)
    path = folder / f"target-{hidden}.gguf"
    _write_target(path, model, config)
    return Target(model, path, config)


def _write_target(path: Path, model: Qwen3ForCausalLM, config: Qwen3Config) -> None:
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name("random target")
    writer.add_context_length(1024)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    words = ["<unk>", "<s>", "</s>"]
    words += [LETTERS[i % len(LETTERS)] * (1 + i // len(LETTERS)) for i in range(config.vocab_size - 3)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([w.replace(" ", "\u2581") for w in words])
    writer.add_token_scores([-float(i) for i in range(config.vocab_size)])
    writer.add_token_types([gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2]
                           + [gguf.TokenType.NORMAL] * (config.vocab_size - 3))  # fmt: skip
    writer.add_bos_token_id(1)
    writer.add_unk_token_id(0)
    # No end of text: generations run to their full length, as the reference's do without stop tokens.
    writer.add_add_bos_token(False)
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    parts = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for i in range(config.num_hidden_layers):
        names |= {f"model.layers.{i}.{hf}.weight": f"blk.{i}.{name}.weight" for hf, name in parts.items()}
    state = model.state_dict()
    for hf, name in names.items():
        writer.add_tensor(name, state[hf].float().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_drafter(folder: Path, target: Target, *, version: int = 2, seed: int = 1, **changes: Any) -> Any:
    """Make a random drafter of the reference package; save it as a checkpoint in `folder`; return the model."""
    torch.manual_seed(seed)
    hidden = target.config.hidden_size
    inner: dict[str, Any] = {
        "block_size": 8, "mask_token_id": target.config.vocab_size - 1, "target_layer_ids": [0, 2, 4],
    }  # fmt: skip
    if version == 2:
        inner |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4}
    outer = {k: changes.pop(k) for k in list(changes) if k in ("sliding_window", "layer_types", "is_causal")}
    inner |= changes
    config = Qwen3Config(
        vocab_size=target.config.vocab_size, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, rms_norm_eps=1e-6,
        tie_word_embeddings=False, rope_theta=10000.0, use_sliding_window="sliding_window" in outer, **outer,
    )  # fmt: skip
    config.dflash_config = inner
    config.num_target_layers = target.config.num_hidden_layers
    kind = DFlash2DraftModel if version == 2 else DFlashDraftModel
    model = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.normal_(1.0, 0.1)
            elif "base_kernel" in name:
                parameter.normal_(0.0, 0.3)
                parameter[:, 0] += 1.0
            elif "codebook" in name:
                parameter.normal_(0.0, 1.0)
            else:
                parameter.normal_(0.0, 1.0 / parameter.shape[-1] ** 0.5)
    config.architectures = [kind.__name__]
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return model
