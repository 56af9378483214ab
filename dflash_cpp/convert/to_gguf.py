"""A DFlash or DFlash 2 checkpoint to GGUF, with the tokenizer of the target's GGUF.

A user needs the drafter's checkpoint and the target's GGUF, not the target's checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from dflash_cpp import _core
from dflash_cpp.convert.names import (
    ARCHITECTURES,
    DrafterShape,
    TensorName,
    checkpoint_name,
    draft_integer,
    draft_number,
    draft_value,
    tensors,
)
from dflash_cpp.convert.safetensors_file import SafetensorsFile
from dflash_cpp.errors import CheckpointError, IncompatibleDrafterError, ModelError

DIRECT_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
}
"""Types that are written here; the others go through llama.cpp's quantiser."""

OUT_TYPES = (*DIRECT_TYPES, "q8_0", "q6_k", "q5_k_m", "q5_0", "q5_1", "q4_k_m", "q4_k_s", "q4_0", "q4_1")

JSON_NAMES: dict[type, str] = {dict: "an object", list: "a list"}

Report = Callable[[str], None]

ReducedHead = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Draft tokens [n] and the head's rows for them [n, hidden]."""

Stored = dict[str, tuple[SafetensorsFile, str]]
"""For each tensor's plain name, the file that holds it and its name there."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check `config.json`; CheckpointError where it is absent, damaged or of another architecture."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; name the checkpoint's folder") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    names = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(names, list) or not names or str(names[0]) not in ARCHITECTURES:
        raise CheckpointError(f"{path} is of architecture {names}; expected one of {', '.join(ARCHITECTURES)}")
    for name, kind in (("dflash_config", dict), ("rope_parameters", dict), ("layer_types", list)):
        if config.get(name) is not None and not isinstance(config[name], kind):
            raise CheckpointError(f"{path}: {name} is {config[name]!r}; expected {JSON_NAMES[kind]}")
    return dict(config)


def shape_of(config: dict[str, Any]) -> DrafterShape:
    """Read the drafter's sizes from its config; CheckpointError names the key that is missing or impossible."""
    version = ARCHITECTURES[config["architectures"][0]]

    def size(name: str, default: int | None = None) -> int:
        return draft_integer(config, name, default)

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    taps = draft_value(config, "target_layer_ids")
    if not isinstance(taps, list) or not taps or not all(type(t) is int and t >= 0 for t in taps):
        raise CheckpointError(f"config.json: target_layer_ids is {taps!r}; expected a list of layer numbers")
    if size("block_size", 16) < 2:
        raise CheckpointError("config.json: block_size is 1; a block needs the anchor and at least one mask")
    if draft_integer(config, "mask_token_id", least=0) >= size("vocab_size"):
        raise CheckpointError("config.json: mask_token_id lies outside the vocabulary")
    if config.get("attention_bias"):
        raise CheckpointError("config.json: attention_bias is true; llama.cpp's drafter has no bias")
    shape = DrafterShape(
        version=version,
        hidden=hidden,
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", hidden // heads),
        feed_forward=size("intermediate_size"),
        vocab=size("vocab_size"),
        n_taps=len(taps),
        conv_kernel=size("conv_kernel_size") if version == 2 else 0,
        conv_group=size("conv_group_size") if version == 2 else 0,
        rank=size("selector_rank") if version == 2 else 0,
        top_k=size("selector_top_k") if version == 2 else 0,
    )
    if version == 2 and hidden % shape.conv_group != 0:
        raise CheckpointError(
            f"config.json: conv_group_size {shape.conv_group} does not divide hidden_size {hidden}"
        )
    if version == 2 and shape.top_k * (shape.top_k + 1) > hidden:
        raise CheckpointError(
            f"config.json: selector_top_k {shape.top_k} is too large for hidden_size {hidden}: "
            "llama.cpp needs hidden_size >= top_k * (top_k + 1)"
        )
    return shape


def _expected_tensors(stored: Stored, shape: DrafterShape) -> list[TensorName]:
    if shape.layers > len(stored):  # before a list of that length is made
        raise CheckpointError(f"config.json: num_hidden_layers is {shape.layers}, the tensors are {len(stored)}")
    expected = list(tensors(shape))
    names = {t.hf for t in expected}
    if missing := sorted(names - stored.keys()):
        raise CheckpointError(f"the checkpoint lacks {len(missing)} tensor(s): {', '.join(missing[:4])}")
    if extra := sorted(stored.keys() - names):
        raise CheckpointError(f"the checkpoint has {len(extra)} unknown tensor(s): {', '.join(extra[:4])}")
    for tensor in expected:
        file, name = stored[tensor.hf]
        found = file.shape(name)
        if found != tensor.shape:
            raise CheckpointError(f"tensor {tensor.hf} has shape {found}, expected {tensor.shape}")
    return expected


def _copy_tokenizer(writer: gguf.GGUFWriter, target: Path, vocab: int) -> None:
    """Copy every tokenizer.* value of the target's GGUF as it stands."""
    reader = gguf.GGUFReader(target)
    n_tokens = 0
    for field in reader.fields.values():
        if not field.name.startswith("tokenizer.") or field.name.endswith((".mask_token_id", "chat_template")):
            continue
        value_type = field.types[0]
        sub_type = field.types[-1] if value_type == gguf.GGUFValueType.ARRAY else None
        value = field.contents()
        if field.name == "tokenizer.ggml.tokens":
            n_tokens = len(value)
        writer.add_key_value(field.name, value, value_type, sub_type=sub_type)
    if n_tokens != vocab:
        raise IncompatibleDrafterError(f"the drafter's vocabulary is {vocab}, the target's {n_tokens}")


def _rope_theta(config: dict[str, Any]) -> float:
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    if not isinstance(rope, dict):
        raise CheckpointError(f"config.json: rope_parameters.full_attention is {rope!r}; expected an object")
    inner = draft_number({"rope_theta": rope.get("rope_theta")}, "rope_theta")
    return draft_number(config, "rope_theta") or inner or 10000.0


def _add_keys(writer: gguf.GGUFWriter, config: dict[str, Any], s: DrafterShape, target: _core.GgufFile) -> None:
    taps = [int(t) + 1 for t in draft_value(config, "target_layer_ids")]
    epsilon = draft_number(config, "rms_norm_eps")
    writer.add_context_length(draft_integer(config, "max_position_embeddings", 32768))
    writer.add_embedding_length(s.hidden)
    writer.add_block_count(s.layers)
    writer.add_feed_forward_length(s.feed_forward)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_rope_freq_base(_rope_theta(config))
    writer.add_layer_norm_rms_eps(1e-6 if epsilon is None else epsilon)
    writer.add_vocab_size(s.vocab)
    writer.add_uint32("dflash.block_size", draft_integer(config, "block_size", 16))
    writer.add_array("dflash.target_layers", taps)
    writer.add_uint32("tokenizer.ggml.mask_token_id", draft_integer(config, "mask_token_id", least=0))
    if s.version == 2:
        writer.add_uint32("dflash.conv_kernel_size", s.conv_kernel)
        writer.add_uint32("dflash.conv_group_size", s.conv_group)
        writer.add_uint32("dflash.selector_rank", s.rank)
        writer.add_uint32("dflash.selector_top_k", s.top_k)
    if (scale := draft_number(config, "output_multiplier")) is not None:
        writer.add_float32("dflash.logit_scale", scale)
    if softcap := draft_number(config, "final_logit_softcapping"):
        writer.add_float32("dflash.final_logit_softcapping", softcap)
    if (scale := draft_number(config, "input_embedding_scale")) is not None:
        writer.add_float32("dflash.embedding_scale", scale)
    layer_types = config.get("layer_types") or []
    sliding = [kind == "sliding_attention" for kind in layer_types]
    if any(sliding) and config.get("sliding_window"):
        if len(sliding) != s.layers:
            raise CheckpointError(f"config.json: layer_types names {len(sliding)} layers, there are {s.layers}")
        writer.add_sliding_window(draft_integer(config, "sliding_window"))
        writer.add_array("dflash.attention.sliding_window_pattern", sliding)
    causal = config.get("is_causal")
    if causal is not None:
        writer.add_causal_attention(bool(causal))
    if f"{target.architecture}.rope.dimension_sections" in target.metadata:
        # An M-RoPE target's drafter turns on the temporal dimension alone.
        writer.add_array("dflash.rope.dimension_sections", [s.head_dim // 2, 0, 0, 0])
    # For the way back: the checkpoint's config, whole.
    writer.add_string("dflash.source_config", json.dumps(config, sort_keys=True))


def convert(
    checkpoint: str | os.PathLike[str],
    target: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    outtype: str = "f16",
    tensor_types: Mapping[str, str] | None = None,
    draft_tokens: Sequence[int] | None = None,
    report: Report | None = None,
) -> Path:
    """Convert a drafter checkpoint to GGUF.

    Parameters
    ----------
    checkpoint
        Folder with config.json and *.safetensors of a DFlashDraftModel or DFlash2DraftModel.
    target
        The target's GGUF; its tokenizer is copied.
    out
        The GGUF to write; it appears whole or not at all.
    outtype
        One of `OUT_TYPES`. Norms and base kernels stay in float32.
    tensor_types
        Types of GGUF tensors that do not take `outtype`, by name, as in {"fc.weight": "f16"}; where `outtype` is a
        quantised one.
    draft_tokens
        Ids of the only tokens to draft, ascending (a reduced draft vocabulary): the GGUF then has an output head
        of its own with the target's rows for them, and the map `d2t`.
    report
        Called with a line per stage.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    CheckpointError
        A file, key or tensor is missing, unknown, misshapen or damaged; says which.
    IncompatibleDrafterError
        The drafter's sizes are not the target's.
    ModelError
        The target is no language model.
    ValueError
        An unknown outtype.
    """
    if outtype not in OUT_TYPES:
        raise ValueError(f"outtype is {outtype!r}; use one of {', '.join(OUT_TYPES)}")
    if tensor_types and outtype in DIRECT_TYPES:
        raise ValueError(f"tensor_types needs a quantised outtype, not {outtype}")
    report = report or (lambda _line: None)
    folder, destination = Path(checkpoint), Path(out)
    target_file = _core.GgufFile(os.fspath(target))
    target_file.require_language_model()
    config = read_config(folder)
    shape = shape_of(config)
    _check_target(target_file, config, shape)
    files = SafetensorsFile.open_all(folder)
    stored = {checkpoint_name(name): (file, name) for file in files for name in file.names()}
    expected = _expected_tensors(stored, shape)
    reduced = _reduced_head(Path(target_file.path), draft_tokens, shape) if draft_tokens is not None else None
    if not destination.parent.is_dir():
        raise CheckpointError(f"cannot write {destination}: there is no folder {destination.parent}")

    direct = DIRECT_TYPES.get(outtype)
    partial = destination.with_name(destination.name + f".partial.{os.getpid()}")
    try:
        report(f"writing {len(expected)} tensors")
        _write(partial, config, shape, target_file, stored, expected, direct or gguf.GGMLQuantizationType.F32,
               reduced)  # fmt: skip
        if direct is None:
            report(f"quantising to {outtype}")
            quantised = partial.with_name(partial.name + ".q")
            try:
                exceptions = [(f"^{re.escape(name)}$", kind) for name, kind in (tensor_types or {}).items()]
                _core.quantize(
                    os.fspath(partial), os.fspath(quantised), outtype, pure=True, tensor_types=exceptions
                )
                quantised.replace(partial)
            finally:
                quantised.unlink(missing_ok=True)
        partial.replace(destination)
    except OSError as error:
        raise CheckpointError(f"cannot write {destination}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return destination


def _check_target(target: _core.GgufFile, config: dict[str, Any], shape: DrafterShape) -> None:
    metadata, arch = target.metadata, target.architecture
    hidden = metadata.get(f"{arch}.embedding_length")
    if hidden != shape.hidden:
        raise IncompatibleDrafterError(f"the drafter's hidden size is {shape.hidden}, the target's {hidden}")
    layers = metadata.get(f"{arch}.block_count")
    taps = draft_value(config, "target_layer_ids")
    if not isinstance(layers, int):
        raise ModelError(f"{target.path} does not say how many layers it has")
    if max(taps) + 1 >= layers:
        raise IncompatibleDrafterError(f"the drafter taps layer {max(taps)}, the target has {layers} layers")


def _reduced_head(target: Path, draft_tokens: Sequence[int], shape: DrafterShape) -> ReducedHead:
    tokens = np.asarray(draft_tokens, dtype=np.int64)
    if (
        len(tokens) < max(shape.top_k, 1)
        or tokens[0] < 0
        or tokens[-1] >= shape.vocab
        or (np.diff(tokens) <= 0).any()
    ):
        raise ValueError(
            "draft_tokens must be ascending ids of the vocabulary, as many as the selector keeps or more"
        )
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    head = tensors.get("output.weight", tensors.get("token_embd.weight"))
    if head is None:
        raise ModelError(f"{target} has no output head")
    return tokens, np.asarray(gguf.quants.dequantize(head.data[tokens], head.tensor_type), dtype=np.float32)


def _write(
    path: Path,
    config: dict[str, Any],
    shape: DrafterShape,
    target: _core.GgufFile,
    stored: Stored,
    expected: list[TensorName],
    dtype: gguf.GGMLQuantizationType,
    reduced: ReducedHead | None,
) -> None:
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_type("model")
    writer.add_name(str(config.get("_name_or_path") or "DFlash drafter"))
    _add_keys(writer, config, shape, target)
    _copy_tokenizer(writer, Path(target.path), shape.vocab)
    for tensor in expected:
        file, name = stored[tensor.hf]
        data = file.read(name)
        kept = gguf.GGMLQuantizationType.F32 if tensor.keep_f32 else dtype
        if kept == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.gguf, np.ascontiguousarray(data))
        else:
            writer.add_tensor(tensor.gguf, gguf.quants.quantize(data, kept), raw_dtype=kept)
    if reduced is not None:
        tokens, head = reduced
        writer.add_tensor("output.weight", gguf.quants.quantize(head, dtype), raw_dtype=dtype)
        writer.add_tensor("d2t", tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
