"""One LLM used in every way at random: reuse, rewinding, cancelling, other options. Its text is always plain's."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_drafters import write_drafter

from dflash_cpp import LLM, NgramMap

LETTERS = {token: -math.inf for token in range(3)}  # no control tokens: it would end at once
PIECES = st.lists(st.sampled_from(["abc ", "abd ", "hello ", "the end. ", "x", "zzz "]), min_size=1, max_size=12)

STEP = st.fixed_dictionaries({
    "keep": st.integers(0, 60),  # tokens of the last text that the next prompt begins with
    "pieces": PIECES,
    "max_tokens": st.integers(1, 40),
    "temperature": st.sampled_from([0.0, 0.0, 0.7]),
    "seed": st.integers(0, 3),
    "cancel": st.one_of(st.none(), st.integers(1, 6)),  # after so many chunks
    "then": st.sampled_from(["go on", "go on", "reset", "clear the table"]),
})  # fmt: skip


@pytest.fixture(scope="module")
def pair(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, list[LLM]]]:
    """Plain decoding, and ways to draft that share nothing with it."""
    drafter = write_drafter(tmp_path_factory.mktemp("drafter"), tiny_path, hidden=32, vocab=31)
    options = {"n_ctx": 256, "n_threads": 1}
    drafting = [
        LLM(tiny_path, drafter=drafter, width=4, ahead="on", **options),
        LLM(tiny_path, drafter=drafter, width=3, ahead="off", **options),
        LLM(tiny_path, drafter=None, ngram=NgramMap(6, 16), **options),
    ]
    plain = LLM(tiny_path, drafter=None, ngram=False, **options)
    yield plain, drafting
    for llm in [plain, *drafting]:
        llm.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, min_size=1, max_size=6), which=st.integers(0, 2))
def test_whatever_came_before_the_text_is_plains(
    pair: tuple[LLM, list[LLM]], steps: list[dict[str, object]], which: int
) -> None:
    plain, drafting = pair
    llm = drafting[which]
    text: list[int] = []
    for step in steps:
        prompt = [*text[: step["keep"]], *llm.tokenize("".join(step["pieces"]), special=False)]  # type: ignore[misc, arg-type]
        options = {key: step[key] for key in ("max_tokens", "temperature", "seed")} | {"logit_bias": LETTERS}
        plain.reset()
        expected = plain.generate(prompt, **options).tokens
        got: list[int] = []
        stream = llm.stream(prompt, **options)
        for number, chunk in enumerate(stream, 1):
            got += chunk.tokens
            if number == step["cancel"]:
                stream.close()
                break
        assert got == expected[: len(got)]
        assert step["cancel"] or len(got) == len(expected)
        text = [*prompt, *got]
        if step["then"] == "reset":
            llm.reset()
        elif step["then"] == "clear the table" and isinstance(llm.ngram, NgramMap):
            llm.ngram.clear()


def test_threads_and_files_do_not_grow(tiny_path: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("counts them in /proc")
    drafter = write_drafter(tmp_path, tiny_path, hidden=32, vocab=31)

    def use() -> tuple[int, int]:
        with LLM(tiny_path, drafter=drafter, width=4, ahead="on", n_ctx=128, n_threads=2) as llm:
            llm.generate("abc abc", max_tokens=20, logit_bias=LETTERS)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    first = use()
    for _ in range(8):
        last = use()
    assert last == first
    assert threading.active_count() < 20
