"""Every bad input gives its one clear error, and none takes the process down."""

from __future__ import annotations

import math
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import write_tiny_llama

import dflash_cpp
from dflash_cpp import LLM, ContextOverflowError, ModelError, NgramMap, NgramMapError


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        LLM(tmp_path / "absent.gguf")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a directory"):
        LLM(tmp_path)


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelError, match="is empty"):
        LLM(tmp_path / "empty.gguf")


def test_not_a_gguf(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("Once upon a time there was no model in this file at all.")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        LLM(tmp_path / "text.gguf")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_gguf(tmp_path: Path, tiny_path: Path, share: float) -> None:
    whole = tiny_path.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"truncated|damaged"):
        LLM(tmp_path / "cut.gguf")


def test_truncated_real_model(tmp_path: Path, smollm2: Path) -> None:
    with smollm2.open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(20_000_000))
    with pytest.raises(ModelError, match="truncated"):
        LLM(tmp_path / "cut.gguf")


def test_unknown_architecture(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "alien.gguf", architecture="alien")
    with pytest.raises(ModelError, match=r"unknown model architecture.*alien"):
        LLM(path)


def test_vocabulary_only(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "vocab.gguf", vocabulary_only=True)
    with pytest.raises(ModelError, match="vocabulary only"):
        LLM(path)


@pytest.mark.parametrize("share", [2, 2000])
def test_too_little_memory(smollm2: Path, share: int) -> None:
    """What would not fit is refused before it is taken: the kernel would kill the process while it fills it."""
    kv_bytes_per_token = 30 * 2 * 192 * 2
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    n_ctx = min(share * memory // kv_bytes_per_token, 2**31 - 1)
    with pytest.raises(ModelError, match="smaller n_ctx"):
        LLM(smollm2, n_ctx=n_ctx, drafter=None)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < 0.1 * memory


@pytest.mark.parametrize("architecture", ["bert", "nomic-bert"])
def test_embedding_model_by_architecture(tmp_path: Path, architecture: str) -> None:
    path = write_tiny_llama(tmp_path / "embed.gguf", architecture=architecture)
    with pytest.raises(ModelError, match="embedding model"):
        LLM(path)


def test_embedding_model_by_pooling(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "embed.gguf", pooling_type=1)
    with pytest.raises(ModelError, match="embedding model"):
        LLM(path)


def test_model_with_a_tensor_missing(tmp_path: Path, tiny_path: Path) -> None:
    # The name changes, so that a needed tensor is absent and the file still well formed.
    data = tiny_path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
    (tmp_path / "lacking.gguf").write_bytes(data)
    with pytest.raises(ModelError, match="cannot load"):
        LLM(tmp_path / "lacking.gguf")


def test_unknown_name() -> None:
    with pytest.raises(ModelError, match="unknown model 'gpt-17'"):
        LLM("gpt-17")
    with pytest.raises(ValueError, match="empty"):
        LLM("")
    with pytest.raises(ValueError, match="hf:user/repo/file.gguf"):
        LLM("hf:nonsense")


def test_text_that_the_vocabulary_cannot_write(tiny: LLM) -> None:
    # Twenty-six letters, no tokens for bytes.
    with pytest.raises(ValueError, match="no token for a character"):
        tiny.generate("f(x)")


def test_prompt_longer_than_the_context(tiny: LLM) -> None:
    with pytest.raises(ContextOverflowError, match="300 tokens, the context holds 256"):
        tiny.generate([5] * 300)
    with pytest.raises(ContextOverflowError):
        tiny.generate([5] * 256)
    assert tiny.generate([5] * 255, max_tokens=8).finish_reason in ("length", "stop")


@pytest.mark.parametrize("max_tokens", [0, -1, -1000])
def test_max_tokens_must_be_positive(tiny: LLM, max_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"max_tokens is {max_tokens}"):
        tiny.generate("abc", max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.5),
        ("temperature", math.inf),
        ("top_p", 2.0),
        ("top_p", 0.0),
        ("top_p", math.nan),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("typical_p", 0.0),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", math.nan),
        ("frequency_penalty", math.nan),
        ("presence_penalty", math.inf),
        ("penalty_last_n", -2),
        ("seed", -1),
        ("seed", 2**64),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {10**6: 1.0}),
    ],
)
def test_sampler_values_are_checked(tiny: LLM, option: str, value: object) -> None:
    with pytest.raises(
        ValueError, match=option if option != "logit_bias" else "logit_bias|outside the vocabulary"
    ):
        tiny.generate("abc", max_tokens=4, **{option: value})
    assert tiny.generate("abc", max_tokens=4) is not None


@pytest.mark.parametrize(
    "grammar", ["root ::= (", "nothing here", 'start ::= "a"', "root ::= missing", 'root ::= root "a"']
)
def test_invalid_grammar(tiny: LLM, grammar: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="grammar"):
        tiny.generate("abc", grammar=grammar)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("schema", ["{", {"type": "nonsense"}, {"$ref": "#/nowhere"}])
def test_invalid_json_schema(tiny: LLM, schema: object) -> None:
    with pytest.raises(ValueError, match="JSON schema"):
        tiny.generate("abc", json_schema=schema)
    with pytest.raises(ValueError, match="both"):
        tiny.generate("abc", json_schema={"type": "object"}, grammar='root ::= "a"')


def test_empty_stop_string(tiny: LLM) -> None:
    with pytest.raises(ValueError, match="stop string is empty"):
        tiny.generate("abc", stop="")
    with pytest.raises(ValueError, match="stop string is empty"):
        tiny.generate("abc", stop=["x", ""])


@pytest.mark.parametrize("token", [-1, 31, 10**9])
def test_token_ids_out_of_range(tiny: LLM, token: int) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tiny.generate([5, token])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tiny.detokenize([token])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tiny.next_logits([token])


def test_empty_and_nonsense_prompts(tiny: LLM) -> None:
    with pytest.raises(ValueError, match="empty"):
        tiny.generate([])
    with pytest.raises(ValueError, match="the prompt holds"):
        tiny.generate(["abc"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="role"):
        tiny.chat([{"text": "hello"}])
    with pytest.raises(ModelError, match="no chat template"):
        tiny.chat([{"role": "user", "content": "hello"}])


def test_load_options_are_checked(tiny_path: Path) -> None:
    for options, match in [
        ({"n_ctx": -1}, "n_ctx"),
        ({"n_threads": 0}, "n_threads"),
        ({"n_batch": 1}, "n_batch"),
        ({"type_k": "q9"}, "type_k"),
        ({"type_v": "q4_0", "flash_attention": "off"}, "type_v"),
        ({"flash_attention": "maybe"}, "flash_attention"),
        ({"ngram": "sometimes"}, "ngram"),
    ]:
        with pytest.raises(ValueError, match=match):
            LLM(tiny_path, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        LLM(tiny_path, colour="red")  # type: ignore[call-arg]


def test_damaged_table(tmp_path: Path) -> None:
    table = NgramMap()
    table.extend(list(range(100)))
    path = tmp_path / "table.k4v"
    table.save(str(path))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(NgramMapError, match="damaged"):
        NgramMap.load(str(path))
    path.write_bytes(b"")
    with pytest.raises(NgramMapError):
        NgramMap.load(str(path))
    with pytest.raises(NgramMapError, match="cannot load"):
        NgramMap.load(str(tmp_path / "absent"))
    with pytest.raises(NgramMapError, match="cannot load"):
        NgramMap.load(str(tmp_path))


def test_table_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "table.k4v"
    NgramMap().save(str(path))
    data = bytearray(path.read_bytes())
    data[8] = 99
    path.write_bytes(bytes(data))
    with pytest.raises(NgramMapError, match="version 99"):
        NgramMap.load(str(path))


def test_table_of_another_tokenizer(tmp_path: Path, tiny_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", n_vocab=12)
    table = NgramMap()
    with LLM(tiny_path, ngram=table, n_ctx=64, n_threads=1) as llm:
        llm.generate("abcabc", max_tokens=4)
    path = tmp_path / "table.k4v"
    table.save(str(path))
    for wrong in (table, NgramMap.load(str(path))):
        with pytest.raises(NgramMapError, match="another tokenizer"):
            LLM(other, ngram=wrong, n_ctx=64)


@pytest.mark.parametrize(
    "sizes", [{"size_n": 0}, {"size_m": 0}, {"size_n_min": 0}, {"size_n": 2}, {"max_tokens": 1}]
)
def test_table_sizes_are_checked(sizes: dict) -> None:
    with pytest.raises(ValueError, match=r"size_|max_tokens"):
        NgramMap(**sizes)


def test_table_cannot_be_saved_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NgramMapError, match="cannot save"):
        NgramMap().save(str(tmp_path / "no" / "folder"))


def test_cache_folder_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(dflash_cpp.DFlashError, match="DFLASH_CACHE"):
        LLM("smollm2")


def test_closed_llm_says_so(tiny_path: Path) -> None:
    llm = LLM(tiny_path, n_ctx=64, n_threads=1)
    llm.close()
    llm.close()
    with pytest.raises(dflash_cpp.DFlashError, match="closed"):
        llm.generate("abc")


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "hello", "--model", "/no/such/file.gguf"],
        ["generate", "hello", "--temperature", "nan"],
        ["generate", "hello", "--max-tokens", "0"],
        ["generate", "hello", "--grammar", "/no/such/grammar"],
        ["generate", "hello", "--no-ngram", "--table", "x"],
        ["generate"],
        ["fly"],
        ["inspect", "/tmp"],
        ["bench", "run", "--workload", "nonsense"],
        ["bench", "run", "--prompts", "/no/such/prompts"],
        ["bench", "run", "--repetitions", "0"],
    ],
)
def test_command_line_mistakes_are_one_error_line_and_code_2(arguments: list[str]) -> None:
    result = subprocess.run([sys.executable, "-m", "dflash_cpp.cli", *arguments], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr


def test_unknown_log_level_is_an_error(tiny_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "dflash_cpp.cli", "generate", "abc", "--model", str(tiny_path)],
        capture_output=True, text=True, env={**os.environ, "DFLASH_LOG": "loud"},
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.strip() == "error: DFLASH_LOG is 'loud'; use error, warn, info or debug"


def test_mutated_models_never_abort(tmp_path: Path, tiny_path: Path) -> None:
    """Bytes changed all over the header: the file loads or is refused; the process lives."""
    whole = tiny_path.read_bytes()
    script = tmp_path / "load.py"
    script.write_text(
        "import sys, dflash_cpp\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        dflash_cpp.LLM(path, n_ctx=64, n_threads=1, ngram=False).close()\n"
        "    except (dflash_cpp.DFlashError, ValueError):\n"
        "        pass\n"
    )
    paths = []
    for i, offset in enumerate(range(4, 1200, 23)):
        data = bytearray(whole)
        data[offset] ^= 0x5A
        path = tmp_path / f"mutant{i}.gguf"
        path.write_bytes(bytes(data))
        paths.append(str(path))
    result = subprocess.run([sys.executable, str(script), *paths], capture_output=True, text=True)
    shutil.rmtree(tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"temperature": 0.8, "sampling": "rejection"}])
def test_model_of_nan_weights_says_so(tmp_path: Path, options: dict) -> None:
    path = write_tiny_llama(tmp_path / "nan.gguf", scale=math.nan)
    with LLM(path, n_ctx=64, n_threads=1) as llm, pytest.raises(ModelError, match="no finite logits"):
        llm.generate("abc", max_tokens=4, **options)
