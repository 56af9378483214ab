"""Comparing two runs, tuning, driving servers, and whether the bench's own numbers are right."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from test_bench import LOOP, generation, turn
from tiny_drafters import write_drafter
from tiny_models import write_tiny_llama, write_tiny_mamba

from dflash_cpp import LLM, DFlashError, cli, models, server
from dflash_cpp.bench import BenchResult, Mode, ModePool, TurnResult, load_workload, parse_mode
from dflash_cpp.bench.compare import compare
from dflash_cpp.bench.environment import memory_added
from dflash_cpp.bench.modes import UpstreamDecoder
from dflash_cpp.bench.record import Round
from dflash_cpp.bench.tune import advice, arguments_of, server_arguments_of, table_variants, tune
from dflash_cpp.bench.workloads import Item, single

ROOT = Path(__file__).parents[1]
SLOW = os.environ.get("DFLASH_SLOW_TESTS") == "1"


# -- compare ----------------------------------------------------------------------------------------------------


def run_of(turns: list[TurnResult]) -> BenchResult:
    settings = {"model": "m", "modes": ["plain", "k4v"], "base": "plain", "max_tokens": 9, "repetitions": 1}
    return BenchResult(settings, {}, {"edit": turns})


def test_compare_takes_each_runs_own_ratios() -> None:
    first = run_of([turn(str(i), [10], [20]) for i in range(6)])
    # The machine was half as fast, the mode 1.5 instead of 2 times plain.
    second = run_of([turn(str(i), [5], [7.5]) for i in range(6)])
    (change,) = compare(first, second)
    assert (change.change.value, change.verdict) == (0.75, "slower")
    assert compare(second, first)[0].verdict == "faster"
    assert [c.verdict for c in compare(first, second, absolute=True)] == ["slower", "slower"]
    assert compare(first, first)[0].verdict == "same"
    assert compare(first, second, tolerance=0.3)[0].verdict == "same"


def test_compare_sees_new_mistakes_and_leaves_loops_out() -> None:
    first = run_of([turn("a", [10], [20]), turn("b", [10], [90], repetition=LOOP)])
    wrong = run_of([turn("a", [10], [40], "WRONG at 2"), turn("b", [10], [10], repetition=LOOP)])
    assert compare(first, wrong)[0].verdict == "wrong"
    assert compare(wrong, wrong)[0].verdict == "same"
    assert compare(first, run_of([turn("a", [10], [20]), turn("b", [10], [10])]))[0].change.n == 1
    with pytest.raises(ValueError, match="in common"):
        compare(first, run_of([turn("z", [10], [20])]))


def test_compare_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, speed in (("a", 20.0), ("b", 15.0)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(run_of([turn(str(i), [10], [speed]) for i in range(4)]).to_dict()))
        paths.append(str(path))
    assert cli.main(["bench", "compare", *paths]) == 1
    assert "slower" in capsys.readouterr().out
    assert cli.main(["bench", "compare", *reversed(paths), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "faster"


# -- tune -------------------------------------------------------------------------------------------------------


def invented(speed_of: Callable[[Mode, Item], float]) -> Callable[[Sequence[Mode], Item, int], Round]:
    draw = random.Random(0)

    def measure(field: Sequence[Mode], item: Item, shift: int) -> Round:
        return {mode.name: [generation(speed_of(mode, item) * draw.uniform(0.97, 1.03))] for mode in field}

    return measure


def test_tune_finds_what_is_fastest() -> None:
    items = [single(str(i), "x") for i in range(12)]

    def speed(mode: Mode, item: Item) -> float:
        peak = 30 - abs((mode.width if isinstance(mode.width, int) else 1) - 5)
        return 10 if mode.name == "plain" else peak if mode.ahead == "off" and not mode.ngram else 12

    ranked = tune(invented(speed), items, with_drafter=True)
    assert ranked[0].mode.name == "w5" and ranked[0].ratio.value == pytest.approx(3.0, rel=0.03)
    assert {"plain", "auto"} <= {standing.mode.name for standing in ranked}
    lines = advice(ranked, "m.gguf", "d.gguf")
    assert "dflash-cpp generate -m m.gguf -d d.gguf --width 5 --ahead off --no-ngram PROMPT" in lines
    assert any(
        line.startswith("dflash-cpp serve m.gguf --drafter d.gguf --spec-parallel-width 5") for line in lines
    )


def test_tune_tries_other_tables_on_the_best_that_has_one() -> None:
    items = [single(str(i), "x") for i in range(8)]

    def speed(mode: Mode, item: Item) -> float:
        return 10 + 10 * mode.ngram + 5 * (mode.size_n == 6) + 5 * (mode.size_m == 16)

    assert tune(invented(speed), items, with_drafter=True)[0].mode.name.endswith("k4v:6:16")
    assert tune(invented(speed), items, with_drafter=False)[0].mode.name == "k4v:6:16"
    assert "k4v:6:16+w5" in [name.replace("w5+k4v:6:16", "k4v:6:16+w5") for name in table_variants("w5+k4v")]


def test_tune_leaves_it_to_the_default_where_nothing_is_surely_better() -> None:
    items = [single(str(i), "x") for i in range(6)]
    draw = random.Random(1)
    ranked = tune(invented(lambda mode, item: draw.uniform(8, 12)), items, with_drafter=True)
    lines = advice(ranked, "smollm2", None)
    if ranked[0].mode.name != "auto" and ranked[0].best < 0.95:
        assert "leave it at that" in lines[1] and "dflash-cpp generate -m smollm2 PROMPT" in lines


def test_a_modes_options() -> None:
    assert arguments_of(parse_mode("plain")) == ["--drafter", "none", "--no-ngram"]
    assert arguments_of(parse_mode("auto")) == []
    assert arguments_of(parse_mode("k4v:6:16")) == ["--drafter", "none", "--table-n", "6", "--table-m", "16"]
    assert server_arguments_of(parse_mode("plain")) is None
    assert server_arguments_of(parse_mode("w5+ahead")) == [
        "--spec-parallel-width", "5", "--spec-parallel-ahead", "on", "--spec-parallel-ngram", "off",
    ]  # fmt: skip


def test_tune_by_the_command(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter = write_drafter(tmp_path, tiny_path, hidden=32, vocab=31)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "abc abc"}\n{"prompt": "hello"}\n')
    command = ["bench", "tune", str(tiny_path), str(drafter), "--prompts", str(prompts), "-n", "8",
               "--repetitions", "1", "--n-ctx", "256", "--n-threads", "1"]  # fmt: skip
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(s["best"] for s in found["final"]) == pytest.approx(1.0)
    words = found["advice"][-1].split()
    assert words[:2] in (["dflash-cpp", "generate"], ["dflash-cpp", "serve"])
    cli.parse(found["advice"][1 if "generate" in found["advice"][1] else 2].split()[1:])


# -- llama.cpp's own speculation --------------------------------------------------------------------------------


def decoder(llm: LLM, types: str, drafter: str = "") -> UpstreamDecoder:
    return UpstreamDecoder(llm, parse_mode(f"upstream:{types}"), drafter)


def test_upstream_gives_plain_tokens(smollm2: Path, plain: LLM) -> None:
    drafter = str(models.shipped_drafter("smollm2"))
    for item in load_workload("edit")[:2]:
        prompt = item.prompt(0, [])
        expected = plain.generate(prompt, max_tokens=48).tokens
        for types in ("none", "ngram-map-k4v", "draft-dflash@5", "draft-dflash,ngram-map-k4v@3"):
            got = decoder(plain, types, drafter if "dflash" in types else "").generate(prompt, max_tokens=48)
            assert got.tokens == expected, types
            assert got.stats.verifications <= 48 and got.stats.prefill_seconds > 0
            if types.startswith("draft-dflash"):
                assert sum(s["accepted"] for s in got.stats.sources.values()) > 0


def test_upstream_follows_a_schema(plain: LLM) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
    question = [{"role": "user", "content": "How old is Tom? JSON."}]
    got = decoder(plain, "none").generate(question, max_tokens=32, json_schema=schema)
    assert got.tokens == plain.generate(question, max_tokens=32, json_schema=schema).tokens
    assert "age" in json.loads(got.text)


def test_upstream_with_a_small_model_and_after_its_own_mistakes(tiny_path: Path, tmp_path: Path) -> None:
    small = write_tiny_llama(tmp_path / "small.gguf", seed=3)
    with LLM(tiny_path, drafter=None, ngram=False, n_ctx=128, n_threads=1) as llm:
        expected = llm.generate("abc abc abc", max_tokens=40).tokens
        for types, drafter in (("draft-simple@4", str(small)), ("ngram-map-k4v", ""), ("ngram-simple", "")):
            peer = decoder(llm, types, drafter)
            for _ in range(2):
                assert peer.generate("abc abc abc", max_tokens=40).tokens == expected, types
            peer.forget()
            with pytest.raises(ValueError, match="empty"):
                peer.generate([], max_tokens=4)
            with pytest.raises(DFlashError, match="the context holds"):
                peer.generate([5] * llm.n_ctx, max_tokens=4)
            assert peer.generate("abc abc abc", max_tokens=40).tokens == expected, types
        with pytest.raises(ValueError, match="needs a drafter"):
            decoder(llm, "draft-simple")
        with pytest.raises(DFlashError, match="no DFlash drafter"):
            decoder(llm, "draft-dflash", str(small))
        with pytest.raises(DFlashError, match="does not fit"):
            decoder(llm, "draft-simple", str(write_tiny_llama(tmp_path / "other.gguf", n_vocab=20)))


def test_upstream_where_the_cache_cannot_be_cut(tmp_path: Path) -> None:
    mamba = write_tiny_mamba(tmp_path / "mamba.gguf")
    with LLM(mamba, drafter=None, ngram=False, n_ctx=256, n_threads=1) as llm:
        prompt = "abc abc abc abc abc abc abc abc abc abc abc abc "
        expected = llm.generate(prompt, max_tokens=60).tokens
        assert decoder(llm, "ngram-simple").generate(prompt, max_tokens=60).tokens == expected


def simple_program() -> Path:
    found = sorted(ROOT.glob("build/*/cpp/tests/llama-speculative-simple"), key=lambda path: path.stat().st_mtime)
    if not found:
        pytest.skip("llama-speculative-simple is not built (DFLASH_TESTS)")
    return found[-1]


@pytest.mark.timeout(600)
def test_upstream_counts_what_llama_cpp_counts(smollm2: Path, plain: LLM, report: Callable[[str], None]) -> None:
    """The same prompt through the pinned program and through the bench's mode: the same drafts, as fast."""
    program, drafter = simple_program(), str(models.shipped_drafter("smollm2"))
    prompt, n = str(load_workload("humaneval")[3].prompt(0, [])), 100
    command = [str(program), "-m", str(smollm2), "-md", drafter, "--spec-type", "draft-dflash",
               "--spec-draft-n-max", "5", "-p", prompt, "-n", str(n), "--temp", "0", "-c", str(plain.n_ctx), "-t",
               str(os.cpu_count() if not hasattr(os, "sched_getaffinity") else len(os.sched_getaffinity(0))),
               "-b", "512", "-ub", "512", "--poll", "0", "-v"]  # fmt: skip
    peer = decoder(plain, "draft-dflash@5", drafter)
    ratios = []
    for _ in range(9 if SLOW else 1):
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        text = said.stdout + said.stderr
        found = {key: float(value) for key, value in re.findall(r"(n_drafted|n_accept|n_predict) *= *(\d+)", text)}
        seconds = float(re.search(r"decoded +\d+ tokens in +([\d.]+) seconds", text)[1])  # type: ignore[index]
        stats = peer.generate(prompt, max_tokens=int(found["n_predict"])).stats
        ratios.append((stats.completion_tokens / stats.decode_seconds) / (found["n_predict"] / seconds))
    sources = stats.sources.values()
    report(
        f"upstream mode / llama-speculative-simple: {sorted(ratios)[len(ratios) // 2]:.3f} of {len(ratios)} runs"
    )
    assert stats.completion_tokens == found["n_predict"]
    # The program's last step may draft beyond the end that it did not know.
    assert abs(sum(s["accepted"] for s in sources) - found["n_accept"]) <= 5
    assert abs(sum(s["proposed"] for s in sources) - found["n_drafted"]) <= 5
    if SLOW:
        assert 0.95 < sorted(ratios)[len(ratios) // 2] < 1.05


# -- the bench's own numbers ------------------------------------------------------------------------------------


def test_tokens_per_second_agree_with_an_outside_clock(plain: LLM, k4v: LLM) -> None:
    for llm in (plain, k4v):
        best = 1.0
        for _ in range(3):  # another process may take the core between the two clocks
            llm.reset()
            prompt = llm.prompt_tokens(load_workload("prose")[0].prompt(0, []))
            began = time.perf_counter()
            stats = llm.generate(prompt, max_tokens=200).stats
            outside = time.perf_counter() - began
            best = min(best, abs(stats.prefill_seconds + stats.decode_seconds - outside) / outside)
        assert best < 0.02


@pytest.mark.timeout(300)
def test_a_drafters_memory_is_as_planned(smollm2: Path, report: Callable[[str], None]) -> None:
    added = memory_added("smollm2", str(models.shipped_drafter("smollm2")), n_ctx=8192)
    planned = added.planned + added.planned_host
    report(f"drafter's memory: planned {planned / 2**20:.1f} MiB, measured {added.measured / 2**20:.1f} MiB")
    assert added.measured == pytest.approx(planned, rel=0.1)


def test_a_pool_loads_each_pair_once(tiny_path: Path, tmp_path: Path) -> None:
    drafter = str(write_drafter(tmp_path, tiny_path, hidden=32, vocab=31))
    small = str(write_tiny_llama(tmp_path / "small.gguf", seed=3))
    loaded: list[str | None] = []

    def load(path: str | None) -> LLM:
        loaded.append(path)
        return LLM(tiny_path, drafter=path, ngram=False, n_ctx=128, n_threads=1)

    pool = ModePool(load, {"drafter": drafter, "small": small})
    names = ["plain", "k4v", "w3", "auto", "small", "small+w2", "upstream:none", "upstream:draft-dflash@3"]
    answers = []
    for name in names:
        mode = parse_mode(name, ["drafter", "small"])
        assert pool(mode) is pool(mode)
        answers.append(pool(mode).generate("abc abc", max_tokens=20).tokens)
    assert all(answer == answers[0] for answer in answers)
    assert loaded == [None, drafter, small]
    pool.close()


# -- servers ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_serve_drives_real_servers(smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        binary = str(server.binary())
    except DFlashError as missing:
        pytest.skip(str(missing))
    prompts = tmp_path / "mine.jsonl"
    lines = [
        {"prompt": "Once upon a time"},
        {"turns": ["Name a river.", "And another one."]},
        {"messages": [{"role": "user", "content": "How old is Tom?"}],
         "json_schema": {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}},
                         "required": ["age"], "additionalProperties": False}},
    ]  # fmt: skip
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with server.running([binary, "-m", str(smollm2), "-np", "2", "-c", "4096"]) as first:
        with server.running(server.command("smollm2", arguments=["-np", "2", "-c", "4096"])) as second:
            command = ["bench", "serve", "--url", f"plain={first.url}", "--url", f"ours={second.url}/v1",
                       "--prompts", str(prompts), "-n", "24"]  # fmt: skip
            assert cli.main([*command, "--json"]) == 0
            got = json.loads(capsys.readouterr().out)["mine.jsonl"]
            assert cli.main([*command, "--clients", "2"]) == 0
    assert [r["name"] for r in got["plain"]["requests"]] == ["mine/1", "mine/2/1", "mine/2/2", "mine/3"]
    assert [r["text"] for r in got["plain"]["requests"]] == [r["text"] for r in got["ours"]["requests"]]
    assert all(r["n_tokens"] > 0 and r["prompt_tokens"] > 0 for r in got["ours"]["requests"])
    assert "age" in json.loads(got["plain"]["requests"][3]["text"])
    assert got["ours"]["requests"][0]["timings"]["predicted_n"] == 24
    assert "ratio to plain" in capsys.readouterr().out


def test_serve_says_when_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    for url, message in (("http://127.0.0.1:9", "does not answer"), ("localhost", "write http://HOST:PORT")):
        with pytest.raises(SystemExit) as exit_:
            cli.main(["bench", "serve", "--url", url, "--limit", "1"])
        assert exit_.value.code == 2 and message in capsys.readouterr().err
