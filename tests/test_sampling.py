"""Plain sampling follows the chain's probabilities: enumerated on a tiny model, tested on the real one."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tiny_models import write_tiny_llama

from dflash_cpp import LLM, NgramMap


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def chain_by_hand(
    logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """Apply top-k, top-p, min-p and temperature, in this order, each on the renormalised rest."""
    keep = np.ones(len(logits), bool)
    order = np.argsort(-logits, kind="stable")
    if top_k:
        keep[order[top_k:]] = False
    if top_p < 1:
        p = softmax(np.where(keep, logits, -np.inf))
        before = np.cumsum(p[order]) - p[order]
        keep[order[before >= top_p]] = False
    if min_p > 0:
        p = softmax(np.where(keep, logits, -np.inf))
        keep &= p >= min_p * p.max()
    return softmax(np.where(keep, logits / temperature, -np.inf))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.7},
        {"temperature": 0.9, "min_p": 0.2},
        {"temperature": 1.1, "top_k": 12, "top_p": 0.8, "min_p": 0.05},
    ],
)
def test_chain_gives_the_probabilities_worked_out_by_hand(tiny: LLM, options: dict) -> None:
    tokens = tiny.tokenize("abc def")
    logits = np.array(tiny.next_logits(tokens))
    expected = chain_by_hand(logits, **options)
    found = np.zeros(len(logits))
    for token, probability in tiny.distribution(tokens, **options).items():
        found[token] = probability
    np.testing.assert_allclose(found, expected, atol=2e-6)


def chi_square_p_value(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], n: int) -> float:
    """p-value of the counts, rare outcomes pooled so that every cell expects at least 5."""
    rare = {outcome for outcome, p in expected.items() if p * n < 5}
    observed = [counts[o] for o in expected if o not in rare]
    wanted = [expected[o] * n for o in expected if o not in rare]
    assert set(counts) <= set(expected), "an outcome of probability 0 was drawn"
    if rare:
        observed.append(sum(counts[o] for o in rare))
        wanted.append(max(sum(expected[o] for o in rare) * n, 1e-9))
    scale = sum(observed) / sum(wanted)
    return float(stats.chisquare(observed, [w * scale for w in wanted]).pvalue)


def test_sequences_of_a_tiny_model_have_their_enumerated_probabilities(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    """All sequences of two tokens, with a table that keeps proposing."""
    path = write_tiny_llama(tmp_path / "enumerate.gguf", n_vocab=9, scale=1.5, seed=4)
    options = {"temperature": 1.0, "top_k": 6}
    with LLM(path, ngram=NgramMap(size_n=2, size_n_min=1), n_ctx=128, n_threads=1) as llm:
        prompt = llm.tokenize("abcabcabcabc")
        expected: dict[tuple[int, ...], float] = {}
        for first, p in llm.distribution(prompt, **options).items():
            if first == 2:  # the end of the text
                expected[()] = expected.get((), 0.0) + p
                continue
            for second, q in llm.distribution([*prompt, first], **options).items():
                key = (first,) if second == 2 else (first, second)
                expected[key] = expected.get(key, 0.0) + p * q
        n = 6000
        counts = Counter(
            tuple(llm.generate(prompt, max_tokens=2, seed=seed, **options).tokens) for seed in range(n)
        )
    assert math.isclose(sum(expected.values()), 1.0, abs_tol=1e-5)
    p_value = chi_square_p_value(counts, expected, n)
    report(f"{len(expected)} sequences enumerated, {n} drawn: p = {p_value:.3f}")
    assert p_value > 0.001


def test_real_model_draws_by_the_chains_probabilities(plain: LLM, report: Callable[[str], None]) -> None:
    prompt = plain.tokenize("My favourite colour is")
    for options in ({"temperature": 0.8}, {"temperature": 1.2, "top_k": 20, "top_p": 0.95}):
        expected = {(token,): p for token, p in plain.distribution(prompt, **options).items()}
        n = 800
        counts = Counter(
            tuple(plain.generate(prompt, max_tokens=1, seed=seed, **options).tokens) for seed in range(n)
        )
        p_value = chi_square_p_value(counts, expected, n)
        report(f"{options}: {n} draws, p = {p_value:.3f}")
        assert p_value > 0.001


def test_greedy_is_the_argmax(plain: LLM) -> None:
    prompt = plain.tokenize("The capital of France is")
    logits = np.array(plain.next_logits(prompt))
    assert plain.generate(prompt, max_tokens=1).tokens == [int(logits.argmax())]


def test_logit_bias_forbids_and_forces(plain: LLM) -> None:
    prompt = plain.tokenize("The capital of France is")
    (likeliest,) = plain.generate(prompt, max_tokens=1).tokens
    (other,) = plain.generate(prompt, max_tokens=1, logit_bias={likeliest: -math.inf}).tokens
    assert other != likeliest
    assert plain.generate(prompt, max_tokens=3, logit_bias={17: 1000.0}).tokens == [17, 17, 17]


def test_repetition_penalty_divides_positive_logits_of_recent_tokens(tiny: LLM) -> None:
    prompt = tiny.tokenize("abab")
    logits = np.array(tiny.next_logits(prompt))
    penalty = 1.7
    for token in set(prompt):
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    assert tiny.generate(prompt, max_tokens=1, repeat_penalty=penalty).tokens[:1] in (
        [int(logits.argmax())],
        [],  # the end of the text
    )


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_a_seed_is_remembered_in_the_statistics(tiny: LLM, temperature: float) -> None:
    first = tiny.generate("abc", temperature=temperature, max_tokens=16)
    again = tiny.generate("abc", temperature=temperature, max_tokens=16, seed=first.stats.seed)
    assert first.tokens == again.tokens


def test_different_seeds_differ(tiny: LLM) -> None:
    texts = {tuple(tiny.generate("abc", temperature=1.0, max_tokens=8, seed=s).tokens) for s in range(10)}
    assert len(texts) > 5
    assert len(list(itertools.chain(*texts))) > 0
