"""Tiny random models, written with the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz ."


def write_tiny_llama(
    path: Path, *, architecture: str = "llama", n_vocab: int = 0, seed: int = 0, scale: float = 1.0,
    vocabulary_only: bool = False, pooling_type: int | None = None, chat_template: str | None = None,
    letters: str = LETTERS,
) -> Path:  # fmt: skip
    """Write a random two-layer llama: 3 control tokens, then `letters`, doubled where `n_vocab` asks for more.

    The hidden size is 32; `scale` stretches the output head, and with it the logits.
    """
    hidden, layers, heads, feed_forward = 32, 2, 2, 64
    n_vocab = n_vocab or 3 + len(letters)
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_vocab_size(n_vocab)
    if pooling_type is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling_type))
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    _add_tokenizer(writer, n_vocab, letters)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    if not vocabulary_only:
        writer.add_tensor("token_embd.weight", matrix(n_vocab, hidden) * 4)
        writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
        writer.add_tensor("output.weight", matrix(n_vocab, hidden) * np.float32(scale))
        for layer in range(layers):
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                writer.add_tensor(f"blk.{layer}.{name}.weight", matrix(hidden, hidden))
            for name in ("attn_norm", "ffn_norm"):
                writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(hidden, np.float32))
            writer.add_tensor(f"blk.{layer}.ffn_gate.weight", matrix(feed_forward, hidden))
            writer.add_tensor(f"blk.{layer}.ffn_up.weight", matrix(feed_forward, hidden))
            writer.add_tensor(f"blk.{layer}.ffn_down.weight", matrix(hidden, feed_forward))
    return _finish(writer, path)


def write_tiny_mamba(path: Path, *, n_vocab: int = 3 + len(LETTERS), seed: int = 0) -> Path:
    """Write a random two-layer Mamba over the same tokens: its state cannot be cut, only saved and restored."""
    hidden, inner, state, rank, kernel = 32, 64, 8, 4, 4
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_block_count(2)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(n_vocab)
    _add_tokenizer(writer, n_vocab)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    writer.add_tensor("token_embd.weight", matrix(n_vocab, hidden) * 4)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for layer in range(2):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(hidden, np.float32))
        writer.add_tensor(f"blk.{layer}.ssm_in.weight", matrix(2 * inner, hidden))
        writer.add_tensor(f"blk.{layer}.ssm_conv1d.weight", matrix(inner, kernel))
        writer.add_tensor(f"blk.{layer}.ssm_conv1d.bias", np.zeros(inner, np.float32))
        writer.add_tensor(f"blk.{layer}.ssm_x.weight", matrix(rank + 2 * state, inner))
        writer.add_tensor(f"blk.{layer}.ssm_dt.weight", matrix(inner, rank))
        writer.add_tensor(f"blk.{layer}.ssm_dt.bias", np.zeros(inner, np.float32))
        writer.add_tensor(f"blk.{layer}.ssm_a", -np.abs(matrix(inner, state)))
        writer.add_tensor(f"blk.{layer}.ssm_d", np.ones(inner, np.float32))
        writer.add_tensor(f"blk.{layer}.ssm_out.weight", matrix(hidden, inner))
    return _finish(writer, path)


def _add_tokenizer(writer: gguf.GGUFWriter, n_vocab: int, letters: str = LETTERS) -> None:
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(letters[i % len(letters)] * (1 + i // len(letters)) for i in range(n_vocab - 3)),
    ]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.NORMAL] * (n_vocab - 3)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([t.replace(" ", "\u2581") for t in tokens])
    writer.add_token_scores([-float(i) for i in range(n_vocab)])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
