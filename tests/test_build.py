"""Finding, checking and patching the llama.cpp sources: each failure is one message with its remedy."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")


class Sandbox:
    """A copy of third_party/llama.cpp with a pin on a small archive of our own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "third_party"
        self.home.mkdir()
        (self.home / "patches").mkdir()
        (self.home / "download").mkdir()
        shutil.copy(ROOT / "third_party/llama.cpp/fetch.cmake", self.home)
        self.archive = self.home / "download" / "pinned-1.tar.gz"
        with tarfile.open(self.archive, "w:gz") as tar:
            for name, text in {
                "pinned-1/llama.cpp/include/llama.h": "int version = 1;\n",
                "pinned-1/other/secret.txt": "not to be unpacked\n",
            }.items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
        self.pin(self.sha256())

    def sha256(self) -> str:
        import hashlib

        return hashlib.sha256(self.archive.read_bytes()).hexdigest()

    def pin(self, sha256: str) -> None:
        (self.home / "pin.cmake").write_text(
            'set(LLAMA_CPP_PIN_TAG "b1")\nset(LLAMA_CPP_PIN_PACKAGE "no-such-package-anywhere")\n'
            'set(LLAMA_CPP_PIN_VERSION "1")\nset(LLAMA_CPP_PIN_ARCHIVE "pinned-1.tar.gz")\n'
            f'set(LLAMA_CPP_PIN_SHA256 "{sha256}")\n'
        )

    def patch(self, before: str, after: str) -> None:
        (self.home / "patches" / "0001-change.patch").write_text(
            f"--- a/include/llama.h\n+++ b/include/llama.h\n@@ -1 +1 @@\n-{before}\n+{after}\n"
        )

    def run(self, *definitions: str) -> subprocess.CompletedProcess[str]:
        script = self.home / "run.cmake"
        script.write_text(
            f'include("{self.home}/fetch.cmake")\nllama_cpp_sources(out)\nmessage(STATUS "got ${{out}}")\n'
        )
        environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
        command = ["cmake", f"-DPython_EXECUTABLE={sys.executable}", *definitions, "-P", str(script)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.home)

    def header(self) -> str:
        return (self.home / "source/include/llama.h").read_text()


@pytest.fixture()
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_archive_is_checked_and_only_its_llama_folder_unpacked(sandbox: Sandbox) -> None:
    result = sandbox.run()
    assert result.returncode == 0, result.stderr
    assert sandbox.header() == "int version = 1;\n"
    assert not list(sandbox.home.rglob("secret.txt"))
    assert not (sandbox.home / "source.partial").exists()


def test_unpacked_sources_are_used_again(sandbox: Sandbox) -> None:
    sandbox.run()
    sandbox.archive.unlink()
    assert sandbox.run().returncode == 0


WITHOUT = {"git": [], "patch": ["-DGIT_EXECUTABLE="], "python": ["-DGIT_EXECUTABLE=", "-DPATCH_EXECUTABLE="]}
"""What CMake is told so that a tool has to do it."""


def definitions_for(tool: str) -> list[str]:
    """For a run of CMake that applies patches with this tool; skips where it is not here."""
    if tool == "python":
        pytest.importorskip("patch_ng")
    elif shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    return WITHOUT[tool]


@pytest.mark.parametrize("tool", WITHOUT)
def test_patches_are_applied_and_a_changed_patch_is_applied_anew(sandbox: Sandbox, tool: str) -> None:
    definitions = definitions_for(tool)
    sandbox.patch("int version = 1;", "int version = 2;")
    assert sandbox.run(*definitions).returncode == 0
    assert sandbox.header() == "int version = 2;\n"
    sandbox.patch("int version = 1;", "int version = 3;")
    assert sandbox.run(*definitions).returncode == 0
    assert sandbox.header() == "int version = 3;\n"


@pytest.mark.parametrize("tool", WITHOUT)
def test_patch_that_does_not_apply_names_the_remedy(sandbox: Sandbox, tool: str) -> None:
    definitions = definitions_for(tool)
    sandbox.patch("int something_else;", "int version = 2;")
    result = sandbox.run(*definitions)
    assert result.returncode != 0
    assert "does not apply" in result.stderr and "Remedy" in result.stderr
    assert not (sandbox.home / "source").exists()


def test_wrong_hash_names_the_remedy(sandbox: Sandbox) -> None:
    sandbox.pin("0" * 64)
    result = sandbox.run()
    assert result.returncode != 0
    assert "is not the pinned release" in result.stderr and "Remedy" in result.stderr
    assert not (sandbox.home / "source").exists()


def test_no_network_names_the_remedy(sandbox: Sandbox) -> None:
    sandbox.archive.unlink()
    result = sandbox.run()
    assert result.returncode != 0
    assert "could not fetch" in result.stderr and "-DLLAMA_CPP_DIR" in result.stderr


def test_users_checkout_is_used_and_never_changed(sandbox: Sandbox, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "include").mkdir(parents=True)
    header = checkout / "include/llama.h"
    header.write_text("int version = 1;\n")
    assert sandbox.run(f"-DLLAMA_CPP_DIR={checkout}").returncode == 0
    sandbox.patch("int version = 1;", "int version = 2;")
    result = sandbox.run(f"-DLLAMA_CPP_DIR={checkout}")
    assert result.returncode != 0 and "lacks" in result.stderr and "git apply" in result.stderr
    assert header.read_text() == "int version = 1;\n"
    header.write_text("int version = 2;\n")
    assert sandbox.run(f"-DLLAMA_CPP_DIR={checkout}").returncode == 0
    result = sandbox.run(f"-DLLAMA_CPP_DIR={tmp_path}")
    assert result.returncode != 0 and "is not a llama.cpp checkout" in result.stderr


def test_gcc_amx_trap_is_closed() -> None:
    """Whatever -march says, our flags leave no AMX code to be miscompiled."""
    compiler = shutil.which("g++")
    if compiler is None or os.uname().machine != "x86_64":
        pytest.skip("needs g++ on x86-64")
    flags = ["-march=sapphirerapids", "-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"]
    result = subprocess.run(
        [compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True, check=True
    )
    assert "__AMX" not in result.stdout
    assert "-mno-amx-tile;-mno-amx-int8;-mno-amx-bf16" in (ROOT / "CMakeLists.txt").read_text()


def test_nothing_of_llama_cpp_is_tracked() -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    tracked = subprocess.run(
        ["git", "ls-files", "third_party"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    assert all(name.endswith((".cmake", ".md", ".patch")) for name in tracked), tracked


def test_extension_needs_no_library_that_a_system_may_lack() -> None:
    from dflash_cpp import _core

    if shutil.which("ldd") is None:
        pytest.skip("needs ldd")
    needed = subprocess.run(["ldd", str(_core.__file__)], capture_output=True, text=True).stdout
    for library in ("libssl", "libcrypto", "libgomp", "libcurl", "libllama", "libggml"):
        assert library not in needed
