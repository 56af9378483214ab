"""Checkpoints in and out, and what is wrong with bad ones; drafters that do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_drafters import config_of, write_checkpoint, write_drafter
from tiny_models import write_tiny_llama

from dflash_cpp import LLM, CheckpointError, IncompatibleDrafterError, ModelError, _core
from dflash_cpp.convert import convert, to_hf
from dflash_cpp.convert.safetensors_file import SafetensorsFile, write_safetensors
from dflash_cpp.plan import parse_size, plan


@pytest.fixture()
def target(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "target.gguf")


def attempt(tmp_path: Path, target: Path, config: dict[str, Any] | None = None, **arrays: Any) -> Path:
    """Convert a checkpoint with some tensors replaced (None: left out)."""
    config = config or config_of(hidden=32, vocab=31)
    good = write_checkpoint(tmp_path / "hf", config_of(hidden=32, vocab=31))
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    if arrays:
        changed = {name: arrays.get(name, array) for name, array in {**good, **arrays}.items()}
        write_safetensors(
            tmp_path / "hf" / "model.safetensors", {n: a for n, a in changed.items() if a is not None}
        )
    return convert(tmp_path / "hf", target, tmp_path / "out.gguf", outtype="f32")


def test_there_and_back_is_bit_equal(tmp_path: Path, target: Path) -> None:
    arrays = write_checkpoint(tmp_path / "hf", config_of(hidden=32, vocab=31))
    path = convert(tmp_path / "hf", target, tmp_path / "out.gguf", outtype="f32")
    back = SafetensorsFile(to_hf(path, tmp_path / "back") / "model.safetensors")
    assert set(back.names()) == set(arrays)
    for name, array in arrays.items():
        assert np.array_equal(back.read(name), array)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "hf", "out.gguf", "target.gguf"]


def test_tokenizer_is_the_targets(tmp_path: Path, target: Path) -> None:
    metadata = _core.GgufFile(str(attempt(tmp_path, target))).metadata
    wanted = {k: v for k, v in _core.GgufFile(str(target)).metadata.items() if k.startswith("tokenizer.")}
    assert {k: metadata[k] for k in wanted} == wanted
    assert metadata["tokenizer.ggml.mask_token_id"] == 0


def test_bf16_is_read_exactly(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625, 0.0], np.float32)
    header = json.dumps({"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(
        len(header).to_bytes(8, "little") + header + (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    )
    assert np.array_equal(SafetensorsFile(path).read("x"), values)


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path: Path, target: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks 1 tensor\(s\): fc.weight"):
        attempt(tmp_path, target, **{"fc.weight": None})
    with pytest.raises(CheckpointError, match=r"1 unknown tensor\(s\): surprise"):
        attempt(tmp_path, target, surprise=np.zeros(3, np.float32))
    with pytest.raises(CheckpointError, match=r"fc.weight has shape \(3, 3\), expected \(32, 32\)"):
        attempt(tmp_path, target, **{"fc.weight": np.zeros((3, 3), np.float32)})
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"block_size": 1}, "block_size is 1"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"target_layer_ids": []}, "target_layer_ids"),
        ({"selector_rank": 0}, "selector_rank is 0"),
        ({"selector_top_k": 9}, "selector_top_k 9 is too large"),
        ({"conv_group_size": 5}, "does not divide"),
    ],
)
def test_impossible_configs_are_named(tmp_path: Path, target: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        attempt(tmp_path, target, config_of(hidden=32, vocab=31, **changes))


def test_config_of_another_kind(tmp_path: Path, target: Path) -> None:
    with pytest.raises(CheckpointError, match="architecture"):
        attempt(tmp_path, target, {"architectures": ["LlamaForCausalLM"]})
    (tmp_path / "hf" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        convert(tmp_path / "hf", target, tmp_path / "out.gguf")
    with pytest.raises(CheckpointError, match="cannot read"):
        convert(tmp_path / "nowhere", target, tmp_path / "out.gguf")
    with pytest.raises(ValueError, match="outtype"):
        convert(tmp_path / "hf", target, tmp_path / "out.gguf", outtype="q9")


def test_damaged_safetensors(tmp_path: Path, target: Path) -> None:
    attempt(tmp_path, target)
    path = tmp_path / "hf" / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[:100], whole[: len(whole) // 2], b"", b"\xff" * 64, whole[:8] + b"[]" + whole[10:]):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"damaged|truncated|lacks"):
            convert(tmp_path / "hf", target, tmp_path / "out2.gguf")
    path.unlink()
    with pytest.raises(CheckpointError, match="no .safetensors"):
        convert(tmp_path / "hf", target, tmp_path / "out2.gguf")
    assert not (tmp_path / "out2.gguf").exists()


def test_checkpoint_for_another_target(tmp_path: Path, target: Path) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", n_vocab=20)
    with pytest.raises(IncompatibleDrafterError, match="vocabulary is 31"):
        attempt(tmp_path, other)
    with pytest.raises(IncompatibleDrafterError, match="taps layer 5"):
        attempt(tmp_path, target, config_of(hidden=32, vocab=31, target_layer_ids=[5]))


def edited(path: Path, out: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert len(old) == len(new) and old in data
    out.write_bytes(data.replace(old, new))
    return out


def test_drafters_that_do_not_fit_are_refused(tmp_path: Path, target: Path) -> None:
    def load(drafter: Path, model: Path = target) -> None:
        LLM(model, drafter=drafter, n_ctx=64, n_threads=1).close()

    drafter = write_drafter(tmp_path, target, hidden=32, vocab=31)
    load(drafter)
    with pytest.raises(IncompatibleDrafterError, match="vocabulary"):
        load(drafter, write_tiny_llama(tmp_path / "other.gguf", n_vocab=20))
    with pytest.raises(IncompatibleDrafterError, match="other tokens"):
        load(
            edited(
                drafter,
                tmp_path / "words.gguf",
                b"\x01\x00\x00\x00\x00\x00\x00\x00z",
                b"\x01\x00\x00\x00\x00\x00\x00\x00Z",
            )
        )
    with pytest.raises(ModelError, match="selector tensors without"):
        load(edited(drafter, tmp_path / "keys.gguf", b"dflash.selector_top_k", b"dflash.selector_top_x"))
    with pytest.raises(ModelError, match="no mask token"):
        load(edited(drafter, tmp_path / "mask.gguf", b"ggml.mask_token_id", b"ggml.task_token_id"))
    with pytest.raises(ModelError, match="no tap layers"):
        load(edited(drafter, tmp_path / "taps.gguf", b"dflash.target_layers", b"dflash.target_labers"))
    with pytest.raises(ModelError, match=r"truncated|damaged"):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(drafter.read_bytes()[:-5000])
        load(cut)
    with pytest.raises(ModelError, match="is a drafter"):
        load(target, drafter)
    core = _core.Target(
        str(target), n_ctx=64, n_gpu_layers=0, n_threads=1, n_batch=64, type_k="f16", type_v="f16",
        flash_attention="auto", progress=None,
    )  # fmt: skip
    with pytest.raises(ModelError, match="no DFlash drafter"):
        _core.Drafter(str(target), core, n_gpu_layers=0, n_threads=0, device="")
    with pytest.raises(ModelError, match="no such file"):
        load(tmp_path / "absent.gguf")


def patch_u32(path: Path, out: Path, key: bytes, value: int) -> Path:
    data = bytearray(path.read_bytes())
    at = data.index(key) + len(key) + 4  # the key's text, then the value's type
    data[at : at + 4] = value.to_bytes(4, "little")
    out.write_bytes(bytes(data))
    return out


def test_impossible_drafter_sizes_are_refused(tmp_path: Path, target: Path) -> None:
    drafter = write_drafter(tmp_path, target, hidden=32, vocab=31)
    for key, value, match in [
        (b"dflash.block_size", 1, "block size is 1"),
        (b"dflash.selector_top_k", 6, "6 candidates, too many"),
        (b"dflash.conv_group_size", 7, "do not divide"),
        (b"mask_token_id", 31, "no mask token"),
    ]:
        with pytest.raises(ModelError, match=match):
            LLM(target, drafter=patch_u32(drafter, tmp_path / "bad.gguf", key, value), n_ctx=64)
    with pytest.raises(IncompatibleDrafterError, match="hidden size"):
        LLM(target, drafter=patch_u32(drafter, tmp_path / "bad.gguf", b"dflash.embedding_length", 64), n_ctx=64)


def test_tap_past_the_targets_depth(tmp_path: Path, target: Path) -> None:
    drafter = write_drafter(tmp_path, target, hidden=32, vocab=31)
    data = bytearray(drafter.read_bytes())
    at = data.index(b"dflash.target_layers") + len(b"dflash.target_layers") + 4 + 4 + 8
    data[at : at + 4] = (9).to_bytes(4, "little")
    (tmp_path / "deep.gguf").write_bytes(bytes(data))
    with pytest.raises(IncompatibleDrafterError, match="taps the input of layer 9"):
        LLM(target, drafter=tmp_path / "deep.gguf", n_ctx=64)


def test_target_that_gives_no_features(tmp_path: Path, target: Path) -> None:
    drafter = write_drafter(tmp_path, target, hidden=32, vocab=31)
    other = write_tiny_llama(tmp_path / "other.gguf", architecture="internlm2")
    with pytest.raises(IncompatibleDrafterError, match="internlm2 give no features"):
        LLM(other, drafter=drafter, n_ctx=64, n_threads=1)


def test_nan_weights_cost_speed_not_output(
    tmp_path: Path, target: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = config_of(hidden=32, vocab=31)
    arrays = write_checkpoint(tmp_path / "hf", config)
    arrays["fc.weight"][:] = np.nan
    write_safetensors(tmp_path / "hf" / "model.safetensors", arrays)
    drafter = convert(tmp_path / "hf", target, tmp_path / "nan.gguf", outtype="f32")
    with LLM(target, ngram=False, n_ctx=128, n_threads=1) as plain:
        expected = plain.generate("abc abc", max_tokens=20).tokens
    with LLM(target, drafter=drafter, width=5, ngram=False, n_ctx=128, n_threads=1) as llm:
        completion = llm.generate("abc abc", max_tokens=20)
        again = llm.generate("abc abc", max_tokens=20)
    assert completion.tokens == again.tokens == expected
    assert completion.stats.sources["drafter"]["proposals"] == 0
    assert capfd.readouterr().err.count("no finite scores") == 1


@pytest.mark.parametrize(
    ("option", "value"), [("width", 0), ("width", 64), ("drafter_threads", 0), ("drafter_device", "XPU7")]
)
def test_drafter_options_are_checked(tmp_path: Path, target: Path, option: str, value: object) -> None:
    drafter = write_drafter(tmp_path, target, hidden=32, vocab=31)
    with pytest.raises(ValueError, match=option):
        LLM(target, drafter=drafter, n_ctx=64, n_threads=1, **{option: value})  # type: ignore[arg-type]


def test_small_model_of_another_vocabulary(tmp_path: Path, target: Path) -> None:
    with pytest.raises(IncompatibleDrafterError, match="other tokens"):
        LLM(target, drafter=write_tiny_llama(tmp_path / "other.gguf", n_vocab=20), n_ctx=64, n_threads=1)


def test_plan_adds_up_and_advises(tmp_path: Path, target: Path, smollm2: Path) -> None:
    drafter = write_drafter(tmp_path, target, hidden=32, vocab=31)
    both = plan(target, drafter, n_ctx=256)
    assert [part.name for part in both.parts] == ["target", "drafter"]
    assert both.total == sum(part.total for part in both.parts)
    real = plan(smollm2, n_ctx=4096)
    # 30 layers, 3 KV heads of 64, keys and values of 2 bytes.
    assert real.parts[0].context == 4096 * 30 * 2 * 3 * 64 * 2
    tight = plan(smollm2, n_ctx=4096, device_memory=160 * 2**20)
    assert tight.fits is False and any("q8_0" in line for line in tight.advice)
    assert plan(smollm2, n_ctx=4096, device_memory=2**30).fits is True


def test_sizes_are_read_with_their_units() -> None:
    assert parse_size("24G") == 24 * 2**30
    assert parse_size("1.5 GiB") == int(1.5 * 2**30)
    assert parse_size("512") == 512
    for bad in ("", "G", "-1G", "0", "24X"):
        with pytest.raises(ValueError, match="memory size"):
            parse_size(bad)


def test_command_converts_inspects_and_plans(tmp_path: Path, target: Path) -> None:
    def command(*arguments: object) -> str:
        line = [sys.executable, "-m", "dflash_cpp.cli", *map(str, arguments)]
        result = subprocess.run(line, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    write_checkpoint(tmp_path / "hf", config_of(hidden=32, vocab=31))
    out = tmp_path / "drafter.gguf"
    command("convert", tmp_path / "hf", "--target", target, "-o", out, "--outtype", "f32")
    text = command("inspect", out)
    assert "DFlash 2 drafter" in text and "widths 1 to 7" in text and "hidden size 32" in text
    assert "in all" in command("plan", target, out, "--ctx", 256, "--device-memory", "1G")
    command("convert", out, "--to-hf", "-o", tmp_path / "back")
    assert (tmp_path / "back" / "config.json").exists()
    assert command("generate", "abc", "-m", target, "-d", out, "--n-ctx", 64, "-n", 5)
