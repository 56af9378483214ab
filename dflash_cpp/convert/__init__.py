"""Drafters between their two homes: Hugging Face checkpoints and GGUF files."""

from dflash_cpp.convert.to_gguf import OUT_TYPES, convert
from dflash_cpp.convert.to_hf import to_hf

__all__ = ["OUT_TYPES", "convert", "to_hf"]
