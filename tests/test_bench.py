"""The arithmetic of the bench, on numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_drafters import write_drafter

from dflash_cpp import LLM, Completion, Stats, cli
from dflash_cpp.bench import MODES, STATIC_MODES, WORKLOADS, parse_mode, pictures
from dflash_cpp.bench.command import parse_pace
from dflash_cpp.bench.runner import PromptResult, Run, bootstrap_interval, divergence
from dflash_cpp.results import TimelineEvent


def result(name: str, plain: list[float], k4v: list[float], verdict: str = "") -> PromptResult:
    return PromptResult(name, {"plain": plain, "k4v": k4v}, {"plain": 1.0, "k4v": 2.0}, 10, {"k4v": verdict})


def test_ratio_pairs_the_repetitions() -> None:
    # Pairs 2.0, 3.0 and 1.5: the machine slowed down between them, the ratio does not care.
    assert result("a", [10, 5, 2], [20, 15, 3]).ratio("k4v") == 2.0


def test_wrong_tokens_have_no_speed() -> None:
    run = Run("m", ["plain", "k4v"], [result("a", [10], [20]), result("b", [10], [90], "WRONG at 3")])
    assert run.ratios("k4v") == [2.0]
    assert run.summary("k4v")["ratio"] == 2.0


def test_interval_holds_the_median_and_shrinks_to_a_constant() -> None:
    low, high = bootstrap_interval([1.0, 1.1, 1.2, 1.3, 5.0])
    assert 1.0 <= low <= 1.2 <= high <= 5.0
    assert bootstrap_interval([2.0] * 7) == (2.0, 2.0)
    assert bootstrap_interval([]) == (0.0, 0.0)


def test_divergence_is_judged_by_the_replayed_gap(plain: LLM) -> None:
    prompt = plain.tokenize("The capital of France is")
    base = plain.generate(prompt, max_tokens=6)
    assert divergence(plain, prompt, base, base) == ""
    wrong = [*base.tokens]
    wrong[2] += 1
    assert divergence(plain, prompt, base, Completion("", wrong, "length", Stats())) == "WRONG at 2"


@pytest.mark.parametrize("length", [0, 3])
def test_shorter_text_is_a_divergence(plain: LLM, length: int) -> None:
    prompt = plain.tokenize("The capital of France is")
    base = plain.generate(prompt, max_tokens=6)
    other = Completion("", base.tokens[:length], "stop", Stats())
    assert divergence(plain, prompt, base, other) in (f"WRONG at {length}", f"near-tie at {length}")


def test_modes_by_name() -> None:
    both = parse_mode("w5+k4v+ahead")
    assert (both.ngram, both.drafter, both.width, both.ahead) == (True, True, 5, "on")
    assert parse_mode("ahead+w5").ahead == "on"
    assert parse_mode("w5").ahead == "off"
    free = parse_mode("drafter")
    assert (free.ngram, free.width, free.ahead) == (False, "auto", "auto")
    assert not parse_mode("k4v").drafter
    assert [parse_mode(name).name for name in [*MODES, *STATIC_MODES]]
    for bad in ("", "fast", "w0", "w64", "wide", "plain+k4v", "k4v+"):
        with pytest.raises(ValueError, match="mode"):
            parse_mode(bad)


def test_pace() -> None:
    assert parse_pace(None) == (0.0, 0.0)
    assert parse_pace("target=60,drafter=18") == (60.0, 18.0)
    assert parse_pace("drafter=1.5") == (0.0, 1.5)
    for bad in ("60", "target", "target=x", "target=-1", "host=3", "target=nan", "target=1e9"):
        with pytest.raises(ValueError, match="--pace"):
            parse_pace(bad)


def test_workloads_are_there_and_named() -> None:
    for name, prompts in WORKLOADS.items():
        items = prompts()
        assert items and len({p.name for p in items}) == len(items), name


def test_bench_with_a_drafter_paced_and_drawn(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = write_drafter(tmp_path, tiny_path, hidden=32, vocab=31)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "abc abc abc"}\n')
    common = ["bench", "--model", str(tiny_path), "--drafter", str(drafter), "--n-ctx", "128", "--n-threads", "1",
              "--prompts", str(tmp_path / "prompts.jsonl"), "-n", "12", "--repetitions", "1"]  # fmt: skip
    pictures_ = ["--picture", str(tmp_path / "ratios.svg"), "--timeline", str(tmp_path / "lanes.png")]
    options = ["--modes", "w3,w3+ahead,drafter+k4v", "--pace", "target=4,drafter=1", "--details", *pictures_]
    assert cli.main([*common, *options]) == 0
    printed = capsys.readouterr().out
    assert "paced: verification 4 ms, drafter's pass 1 ms" in printed
    assert "w3+ahead" in printed and "WRONG" not in printed and "ahead hits" in printed
    assert (tmp_path / "ratios.svg").read_text().lstrip().startswith("<?xml")
    assert (tmp_path / "lanes.png").read_bytes()[1:4] == b"PNG"
    assert not list(tmp_path.glob("*partial*"))
    assert cli.main([*common, "--modes", "w3+ahead", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["prompts.jsonl"]
    assert run["modes"] == ["plain", "w3+ahead"]
    assert run["results"][0]["stats"]["w3+ahead"]["ahead"]["launched"] > 0
    assert cli.main([*common, "--curve", "--json"]) == 0
    curve = json.loads(capsys.readouterr().out)
    assert set(curve["best_width"]) == {"0.3", "0.5", "0.7", "0.9"} and curve["verification_ms"]["1"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--modes", "fast"], "mode 'fast'"),
        (["--modes", "w3", "--drafter", "none"], "there is none; give --drafter"),
        (["--pace", "fast"], "--pace"),
        (["--picture", "ratios.txt"], "no picture's name"),
        (["--timeline", "nowhere/lanes.png"], "folder"),
    ],
)
def test_bench_refuses_before_measuring(
    tiny_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["bench", "--model", str(tiny_path), "--n-ctx", "128", *options])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_lanes_without_verifications_are_drawn_empty(tmp_path: Path) -> None:
    pictures.draw_timeline({"none": [TimelineEvent("host", "begin", 0, 1)]}, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()
