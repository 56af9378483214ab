"""Where models come from, and what happens when a download goes wrong."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from dflash_cpp import DFlashError, ModelError, models


@pytest.fixture()
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes as its only index, with a model wheel of our own."""
    house = tmp_path / "wheels"
    house.mkdir()
    wheel = house / "toy_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy_model/toy.gguf", b"GGUF" + b"x" * 100)
        archive.writestr(
            "toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n"
        )
        archive.writestr(
            "toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("toy_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(house))
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "cache"))
    toy = models.PackagedModel(
        name="toy", description="a toy", package="toy-model", version="1.0", wheel=wheel.name,
        wheel_sha256=models._sha256(wheel), member="toy_model/toy.gguf",
        gguf_sha256="", gguf_bytes=104, licence="MIT",
    )  # fmt: skip
    payload = tmp_path / "payload"
    payload.write_bytes(b"GGUF" + b"x" * 100)
    toy = models.PackagedModel(**{**vars(toy), "gguf_sha256": models._sha256(payload)})
    monkeypatch.setitem(models.BUILT_IN, "toy", toy)
    return house


def cached_files() -> list[str]:
    folder = models.cache_dir() / "models"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_packaged_model_is_fetched_once(wheelhouse: Path) -> None:
    lines: list[str] = []
    path = models.resolve("toy", lines.append)
    assert path.read_bytes()[:4] == b"GGUF"
    assert lines and "downloading" in lines[0]
    for file in wheelhouse.iterdir():
        file.unlink()
    assert models.resolve("toy") == path
    assert cached_files() == ["toy.gguf"]


def test_half_a_download_is_never_used(wheelhouse: Path) -> None:
    folder = models.cache_dir() / "models"
    folder.mkdir(parents=True)
    (folder / "toy.gguf").write_bytes(b"GGUF")  # as a crash of an older tool might leave it
    assert models.resolve("toy").stat().st_size == 104


def test_wrong_hash_is_refused_and_nothing_kept(wheelhouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = models.BUILT_IN["toy"]
    for change in ({"wheel_sha256": "0" * 64}, {"gguf_sha256": "0" * 64}):
        monkeypatch.setitem(models.BUILT_IN, "toy", models.PackagedModel(**{**vars(toy), **change}))
        with pytest.raises(ModelError, match="SHA-256"):
            models.resolve("toy")
        assert cached_files() == []


def test_failed_download_names_the_remedy(wheelhouse: Path) -> None:
    for file in wheelhouse.iterdir():
        file.unlink()
    with pytest.raises(ModelError, match="check the network"):
        models.resolve("toy")
    assert cached_files() == []


def test_unwritable_cache_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "file"))
    with pytest.raises(DFlashError, match="set DFLASH_CACHE"):
        models.resolve("smollm2")


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_CACHE", "/somewhere")
    assert models.cache_dir() == Path("/somewhere")
    monkeypatch.delenv("DFLASH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert models.cache_dir() == Path("/xdg/dflash-cpp")


def test_hub_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"dflash-cpp\[hf\]"):
        models.resolve("hf:user/repo/file.gguf")
    with pytest.raises(ValueError, match="hf:user/repo/file.gguf"):
        models.resolve("hf:user/file.gguf")


def test_hub_offline_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="cannot download file.gguf from user/repo"):
        models.resolve("hf:user/repo/file.gguf")


def test_a_file_named_like_a_built_in_model_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").write_text("mine")
    assert models.resolve("smollm2") == Path("smollm2")
