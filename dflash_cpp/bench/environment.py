"""Where a run was measured: machine, build, models. And what a drafter adds in memory."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dflash_cpp
from dflash_cpp import _core, models
from dflash_cpp.errors import DFlashError
from dflash_cpp.plan import plan


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, system, and ggml's devices."""
    return {
        "processor": _proc_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _proc_value("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "devices": [asdict_device(device) for device in _core.devices()],
    }


def build() -> dict[str, str]:
    """Versions, the compiled core by its SHA-256, and the instruction sets that ggml uses here."""
    return {
        "dflash_cpp": dflash_cpp.__version__,
        "llama_cpp": _core.llama_tag,
        "core_sha256": file_identity(_core.__file__)["sha256"],
        "system_info": _core.system_info(),
    }


def asdict_device(device: _core.Device) -> dict[str, Any]:
    """A device's name, what it is, and its memory in bytes."""
    return {"name": device.name, "description": device.description, "memory": device.memory_total}


def _proc_value(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def file_identity(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A file's name, size and SHA-256."""
    file = Path(path)
    with file.open("rb") as opened:
        digest = hashlib.sha256()
        while block := opened.read(1 << 20):
            digest.update(block)
    return {"name": file.name, "bytes": file.stat().st_size, "sha256": digest.hexdigest()}


# -- memory -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryAdded:
    """Bytes that a drafter adds to its target.

    Attributes
    ----------
    planned, planned_host
        By `dflash_cpp.plan`, which reads headers alone: weights, KV cache and buffers, and what the host holds.
    measured
        Of a process's memory with the drafter, less without; of mapped model files what is in use.
    device
        The same of the devices' own memory; None where there is no such device, and all is in `measured`.
    """

    planned: int
    planned_host: int
    measured: int
    device: int | None

    def to_dict(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


_CHILD = """
import json, sys
from dflash_cpp.bench.environment import _used
print(json.dumps(_used(**json.loads(sys.argv[1]))))
"""


def resident_bytes() -> int:
    """Bytes of this process in memory, mapped files included; 0 where the system does not tell."""
    found = _proc_value("/proc/self/status", "VmRSS")
    return int(found.split()[0]) * 1024 if found else 0


def _device_used() -> int | None:
    own = [device for device in _core.devices() if device.is_gpu]
    return sum(device.memory_total - device.memory_free for device in own) if own else None


def _used(model: str, drafter: str | None, options: Mapping[str, Any]) -> tuple[int, int | None]:
    """Load, read a prompt of a whole batch and decode; what that took, in a process of its own."""
    before, device_before = resident_bytes(), _device_used()
    with_blocks = drafter is not None and _core.Drafter.is_drafter_file(drafter)
    with dflash_cpp.LLM(model, drafter=drafter, ngram=False, width=4 if drafter else "auto",
                        ahead="on" if with_blocks else "auto", **options) as llm:  # fmt: skip
        n_prompt = min(llm.n_ctx - 40, 1100)
        llm.generate([5] * n_prompt, max_tokens=32)
        used, device = resident_bytes(), _device_used()
    return used - before, None if device is None or device_before is None else device - device_before


def memory_added(model: str, drafter: str, **options: Any) -> MemoryAdded:
    """Measure what a drafter adds, in two processes of their own, and plan it.

    Parameters
    ----------
    model, drafter
        As `LLM` takes them.
    options
        Of `LLM`: n_ctx, type_k, type_v, n_gpu_layers and the like.

    Raises
    ------
    DFlashError
        A process failed.
    """

    def used(with_drafter: str | None) -> tuple[int, int | None]:
        arguments = json.dumps({"model": model, "drafter": with_drafter, "options": options})
        command = [sys.executable, "-c", _CHILD, arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            reason = done.stderr.strip().splitlines()
            raise DFlashError(f"cannot measure memory: {reason[-1] if reason else 'the process died'}")
        total, device = json.loads(done.stdout.splitlines()[-1])
        return int(total), device

    known = {key: options[key] for key in ("n_ctx", "n_batch", "type_k", "type_v") if key in options}
    parts = plan(models.resolve(model), models.resolve(drafter), **known).parts
    (total, device), (total_with, device_with) = used(None), used(drafter)
    added = None if device is None or device_with is None else device_with - device
    return MemoryAdded(parts[-1].total, parts[-1].host, total_with - total, added)
