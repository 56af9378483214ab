"""The command, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "dflash_cpp.cli"]


def run(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    result = subprocess.run([*COMMAND, *map(str, arguments)], input=stdin, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result


def test_generate_prints_the_answer_only(smollm2: Path) -> None:
    result = run("generate", "Write a Python function that reverses a string.", "--max-tokens", 40)
    assert "def reverse_string" in result.stdout
    assert result.stderr == ""


def test_generate_json_has_the_fields_of_completion_and_stats(smollm2: Path) -> None:
    result = run("generate", "The capital of France is", "--raw", "--json", "-n", 8, "--stats")
    completion = json.loads(result.stdout)
    assert set(completion) == {"text", "tokens", "finish_reason", "stats"}
    assert {
        "prompt_tokens", "completion_tokens", "prefill_seconds", "decode_seconds", "tokens_per_second",
        "verifications", "acceptance_length", "acceptance_by_position", "sources", "seed", "timeline",
    } <= set(completion["stats"])  # fmt: skip
    assert len(completion["tokens"]) == 8
    assert "tokens/s" in result.stderr


def test_prompt_from_standard_input(tiny_path: Path) -> None:
    by_pipe = run("generate", "-", "--model", tiny_path, "--n-ctx", 64, "-n", 5, stdin="abc")
    by_argument = run("generate", "abc", "--model", tiny_path, "--n-ctx", 64, "-n", 5)
    assert by_pipe.stdout == by_argument.stdout


def test_same_seed_same_text(tiny_path: Path) -> None:
    texts = {
        run("generate", "abc", "-m", tiny_path, "--n-ctx", 64, "-n", 9, "--temperature", 1.2, "--seed", 7).stdout
        for _ in range(2)
    }
    assert len(texts) == 1


def test_table_is_kept_between_runs(tiny_path: Path, tmp_path: Path) -> None:
    table = tmp_path / "session.k4v"
    arguments = ["generate", "abcabc", "-m", tiny_path, "--n-ctx", 128, "-n", 30, "--json", "--table", table]
    first = json.loads(run(*arguments).stdout)
    assert table.exists()
    second = json.loads(run(*arguments).stdout)
    assert first["tokens"] == second["tokens"]
    assert [p.name for p in tmp_path.iterdir()] == ["session.k4v"]


def test_grammar_and_schema_files(smollm2: Path, tmp_path: Path) -> None:
    grammar = tmp_path / "yes-no.gbnf"
    grammar.write_text('root ::= "yes" | "no"')
    assert run("generate", "Is water wet?", "--grammar", grammar).stdout.strip() in ("yes", "no")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}')
    assert len(json.loads(run("generate", "Give numbers.", "--json-schema", schema).stdout)) in (2, 3)


def test_chat_answers_line_by_line_and_remembers(smollm2: Path) -> None:
    result = run(
        "chat",
        "--json",
        "-n",
        24,
        "--system",
        "Be brief.",
        stdin="Hello.\n\n/stats\nAnd again?\n/quit\nnot this\n",
    )
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(answers) == 2
    assert answers[1]["stats"]["reused_tokens"] > answers[0]["stats"]["prompt_tokens"] - 2
    assert "tokens/s" in result.stderr


def test_tokenize(smollm2: Path) -> None:
    tokens = json.loads(run("tokenize", "Hello world", "--json").stdout)
    lines = run("tokenize", "-", stdin="Hello world").stdout.splitlines()
    assert [int(line.split("\t")[0]) for line in lines] == tokens
    assert (
        run("tokenize", "<|im_end|>", "--no-special", "--json").stdout
        != run("tokenize", "<|im_end|>", "--json").stdout
    )


def test_inspect(smollm2: Path, tiny_path: Path) -> None:
    text = run("inspect", "smollm2").stdout
    assert "language model" in text and "30" in text and "576" in text
    record = json.loads(run("inspect", tiny_path, "--json").stdout)
    assert record["metadata"]["general.architecture"] == "llama"
    assert {t["name"] for t in record["tensors"]} >= {"token_embd.weight", "output.weight"}


def test_models(smollm2: Path) -> None:
    (row,) = json.loads(run("models", "--json").stdout)
    assert row["name"] == "smollm2" and row["cached"] is True
    assert "smollm2" in run("models").stdout


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("dflash-cpp 0.")
    for command in ([], ["generate"], ["bench"]):
        assert "usage" in run(*command, "--help").stdout


def test_bench_prints_a_table_and_json(tiny_path: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "abc abc abc", "name": "first"}\n\n{"prompt": "xyz"}\n')
    arguments = [
        "bench",
        "run",
        "--model",
        tiny_path,
        "--n-ctx",
        128,
        "--prompts",
        prompts,
        "-n",
        12,
        "--repetitions",
        2,
    ]
    assert "ratio to plain" in run(*arguments).stdout
    report = json.loads(run(*arguments, "--json").stdout)
    assert report["settings"]["modes"] == ["plain", "k4v"]
    turns = report["workloads"]["prompts.jsonl"]
    assert [turn["name"] for turn in turns] == ["first", "prompts/2"]
    for turn in turns:
        assert len(turn["generations"]["k4v"]) == 2
        assert not any(g["verdict"].startswith("WRONG") for g in turn["generations"]["k4v"])
    assert report["summary"]["prompts.jsonl"]["plain"]["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("not json", "line 1: not JSON"),
        ('{"text": "x"}', "line 1: needs"),
        ("[1]", "item 1: an item is an object"),
        ("", "no prompts"),
    ],
)
def test_bench_names_the_bad_line(tmp_path: Path, line: str, match: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(line + "\n")
    result = subprocess.run([*COMMAND, "bench", "run", "--prompts", str(prompts)], capture_output=True, text=True)
    assert result.returncode == 2
    assert match in result.stderr


def test_serve_takes_the_default_model() -> None:
    from dflash_cpp.cli import parse

    assert parse(["serve"]).model == "smollm2"
    found = parse(["serve", "--port", "8099"])
    assert (found.model, found.arguments) == ("smollm2", ["--port", "8099"])
    assert parse(["serve", "m.gguf", "--port", "1"]).model == "m.gguf"
    with pytest.raises(SystemExit) as stopped:
        parse(["serve", "--help"])
    assert stopped.value.code == 0
