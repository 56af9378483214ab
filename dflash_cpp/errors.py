"""The exceptions of dflash_cpp.

`DFlashError` is the base of all of them. Option values out of range are plain `ValueError`.
"""

from dflash_cpp._core import (
    BusyError,
    ContextOverflowError,
    DFlashError,
    IncompatibleDrafterError,
    ModelError,
    NgramMapError,
)


class CheckpointError(DFlashError):
    """A drafter checkpoint whose files, keys or tensors are missing, unknown, misshapen or damaged."""


__all__ = [
    "BusyError",
    "CheckpointError",
    "ContextOverflowError",
    "DFlashError",
    "IncompatibleDrafterError",
    "ModelError",
    "NgramMapError",
]
