"""The self-contained patch: it applies to the pinned sources, and llama-server builds from them alone."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from dflash_cpp import cli, patch, server

ROOT = Path(__file__).parents[1]
PIN = ROOT / "third_party" / "llama.cpp"


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned sources as they were released, with the patch applied by git."""
    archive = PIN / "download" / _pin("ARCHIVE")
    if not archive.is_file():
        pytest.skip("the build did not fetch the pinned sources")
    folder = tmp_path_factory.mktemp("pinned")
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if "/llama.cpp/" in m.name]
        tar.extractall(folder, members, filter="data")
    (checkout,) = folder.glob("*/llama.cpp")
    out = folder / "dflash-parallel.patch"
    assert cli.main(["patch", "--out", str(out)]) == 0
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder)}
    subprocess.run(["git", "apply", str(out)], cwd=checkout, check=True, env=environment)
    return checkout


def _pin(name: str) -> str:
    found = re.search(rf'LLAMA_CPP_PIN_{name}\s+"([^"]+)"', (PIN / "pin.cmake").read_text())
    assert found
    return found[1]


@pytest.mark.skipif(not shutil.which("git"), reason="git applies the patch")
def test_the_patch_applies_and_brings_every_source(pinned: Path) -> None:
    inside = pinned / patch.INSIDE
    brought = sorted(p.relative_to(inside).as_posix() for p in inside.rglob("*") if p.is_file())
    expected = sorted(p.relative_to(patch.HOME / "core").as_posix() for p in (patch.HOME / "core").rglob("*.*"))
    assert brought == sorted([*expected, "dflash.cmake"])
    for name in expected:
        assert (inside / name).read_text() == (patch.HOME / "core" / name).read_text()
    assert "draft-dflash-parallel" in (pinned / "common" / "speculative.cpp").read_text()
    includes = {
        name
        for path in inside.rglob("*.*")
        for name in re.findall(r'#include "(dflash/[^"]+|file_io.h)"', path.read_text())
    }
    assert all((inside / "include" / name).is_file() or (inside / "src" / name).is_file() for name in includes)


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not os.environ.get("DFLASH_SLOW_TESTS"), reason="compiles llama.cpp: DFLASH_SLOW_TESTS=1")
def test_llama_server_builds_from_it_alone(
    pinned: Path, tmp_path: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = tmp_path / "build"
    no_amx = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"  # GCC 12 compiles ggml's AMX kernels wrongly
    off = ("LLAMA_OPENSSL", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES")
    settings = ["-DCMAKE_BUILD_TYPE=Release", *(f"-D{name}=OFF" for name in off)]
    flags = [f"-DCMAKE_CXX_FLAGS={no_amx}", f"-DCMAKE_C_FLAGS={no_amx}"] if platform.machine() == "x86_64" else []
    subprocess.run(["cmake", "-S", str(pinned), "-B", str(build), *settings, *flags], check=True)
    subprocess.run(["cmake", "--build", str(build), "--target", "llama-server", "-j", "2"], check=True)
    monkeypatch.setenv(server.BINARY, str(build / "bin" / "llama-server"))
    from dflash_cpp.bench.servers import post

    words = server.command("smollm2", arguments=["--spec-parallel-width", "5", "-np", "1"])
    with server.running(words) as running:
        answer = post(f"{running.url}/completion", {"prompt": "def add(a, b):", "n_predict": 24, "temperature": 0})
    assert answer["timings"]["speculative"]["verifications"] > 0


def test_a_patch_that_cannot_be_written_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["patch", "--out", "/nowhere/at/all.patch"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("error: cannot write /nowhere/at/all.patch")
