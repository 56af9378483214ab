"""One patch that brings draft-dflash-parallel to a llama.cpp checkout: our hooks and our sources."""

from __future__ import annotations

import os
from pathlib import Path

import dflash_cpp
from dflash_cpp import _core

HOME = Path(__file__).parent / "data" / "llama_patch"
"""Patches and sources, as the build installs them."""

INSIDE = "common/dflash"
"""Where our sources lie in llama.cpp's tree."""

CMAKE = """\
# draft-dflash-parallel of dflash-cpp {version}, for llama.cpp {tag}
target_sources(${{TARGET}} PRIVATE
{sources})
target_include_directories(${{TARGET}} PRIVATE
    ${{CMAKE_CURRENT_SOURCE_DIR}}/dflash/include
    ${{CMAKE_CURRENT_SOURCE_DIR}}/dflash/src
    ${{PROJECT_SOURCE_DIR}}/src)
target_compile_definitions(${{TARGET}} PRIVATE
    DFLASH_PARALLEL
    DFLASH_VERSION="{version}"
    DFLASH_LLAMA_TAG="{tag}")
"""

HEAD = """\
dflash-cpp {version}: llama-server --spec-type draft-dflash-parallel

For llama.cpp {tag}, and no other: git apply FILE, then build as ever.
Our sources are MIT-licensed, as llama.cpp is.

"""


def self_contained() -> str:
    """Return the patch: the hooks first, then a new file for each of our sources."""
    sources = sorted(path for path in (HOME / "core").rglob("*") if path.is_file())
    names = [path.relative_to(HOME / "core").as_posix() for path in sources]
    compiled = "\n".join(f"    dflash/{name}" for name in names if name.endswith(".cpp"))
    version, tag = dflash_cpp.__version__, _core.llama_tag
    parts = [HEAD.format(version=version, tag=tag)]
    parts += [path.read_text(encoding="utf-8") for path in sorted((HOME / "patches").glob("*.patch"))]
    parts.append(_new_file("dflash.cmake", CMAKE.format(version=version, tag=tag, sources=compiled)))
    parts += [_new_file(name, path.read_text(encoding="utf-8")) for name, path in zip(names, sources, strict=True)]
    return "".join(parts)


def _new_file(name: str, text: str) -> str:
    lines = text.splitlines()
    added = "".join(f"+{line}\n" for line in lines)
    return f"--- /dev/null\n+++ b/{INSIDE}/{name}\n@@ -0,0 +1,{len(lines)} @@\n{added}"


def write(out: str | os.PathLike[str]) -> Path:
    """Write the patch to a file, whole or not at all.

    Raises
    ------
    ValueError
        The file cannot be written.
    """
    path = Path(out)
    partial = path.with_name(f"{path.name}.partial.{os.getpid()}")
    try:
        partial.write_text(self_contained(), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error
    return path
