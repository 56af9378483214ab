"""The exceptions of dflash_cpp.

`DFlashError` is the base of all of them. Option values out of range are plain `ValueError`.
"""

from dflash_cpp._core import BusyError, ContextOverflowError, DFlashError, ModelError, NgramMapError

__all__ = ["BusyError", "ContextOverflowError", "DFlashError", "ModelError", "NgramMapError"]
