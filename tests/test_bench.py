"""The arithmetic of the bench, on numbers worked out by hand."""

from __future__ import annotations

import pytest

from dflash_cpp import LLM, Completion, Stats
from dflash_cpp.bench.runner import PromptResult, Run, bootstrap_interval, divergence


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
