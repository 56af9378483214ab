"""Lossless speculative decoding for GGUF models.

>>> import dflash_cpp
>>> dflash_cpp.generate("def reverse(s):", max_tokens=32).text  # doctest: +SKIP

`generate` is one call; `LLM` keeps a model loaded; `NgramMap` is the k4v table that both use.
"""

from dflash_cpp._core import NgramMap, Proposal, llama_tag
from dflash_cpp._core import version as __version__
from dflash_cpp.errors import BusyError, ContextOverflowError, DFlashError, ModelError, NgramMapError
from dflash_cpp.llm import LLM, generate
from dflash_cpp.results import Chunk, Completion, Stats, TimelineEvent

__all__ = [
    "LLM",
    "BusyError",
    "Chunk",
    "Completion",
    "ContextOverflowError",
    "DFlashError",
    "ModelError",
    "NgramMap",
    "NgramMapError",
    "Proposal",
    "Stats",
    "TimelineEvent",
    "__version__",
    "generate",
    "llama_tag",
]
