"""Lossless speculative decoding for GGUF models.

>>> import dflash_cpp
>>> dflash_cpp.generate("def reverse(s):", max_tokens=32).text  # doctest: +SKIP

`generate` is one call; `LLM` keeps a model loaded; `NgramMap` is the k4v table that both use.
"""

try:
    import dflash_cpp._core  # noqa: F401
except ImportError as _error:
    raise ImportError(
        f"dflash_cpp has no compiled core beside {__file__} ({_error}); run `pip install .`, and start Python "
        "outside of the source folder"
    ) from _error

from dflash_cpp._core import NgramMap, Proposal, llama_tag
from dflash_cpp._core import version as __version__
from dflash_cpp.errors import (
    BusyError,
    CheckpointError,
    ContextOverflowError,
    DFlashError,
    IncompatibleDrafterError,
    ModelError,
    NgramMapError,
)
from dflash_cpp.llm import LLM, generate
from dflash_cpp.results import Chunk, Completion, Stats, TimelineEvent

__all__ = [
    "LLM",
    "BusyError",
    "CheckpointError",
    "Chunk",
    "Completion",
    "ContextOverflowError",
    "DFlashError",
    "IncompatibleDrafterError",
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
