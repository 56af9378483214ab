"""Many tokens, many generations: memory, threads and file handles stay what they were.

`DFLASH_FLAT_TOKENS=100000` is the long form.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_drafters import write_drafter
from tiny_models import write_tiny_llama

from dflash_cpp import LLM
from dflash_cpp.bench.environment import resident_bytes

TOKENS = int(os.environ.get("DFLASH_FLAT_TOKENS", "4000"))
SLACK = 8_000_000
"""Bytes that the allocator may keep for itself."""


def count(kind: str) -> int:
    return len(list(Path(f"/proc/self/{kind}").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.timeout(300 + TOKENS // 20)
@pytest.mark.parametrize(
    "options",
    [{"width": 5, "ahead": "off", "ngram": False}, {"width": 4, "ahead": "on"}, {"width": "auto"}],
    ids=["in turn, no table", "ahead", "auto"],
)
def test_nothing_grows(tmp_path: Path, options: dict[str, object], report: Callable[[str], None]) -> None:
    target = write_tiny_llama(tmp_path / "target.gguf", scale=2.0)
    drafter = write_drafter(tmp_path, target, hidden=32, vocab=31)
    # Six drafter passes beside each of the target's: a tiny pair crawls.
    tokens = TOKENS // 10 if options.get("ahead") == "on" else TOKENS
    no_end = {token: -math.inf for token in range(3)}
    seen = []
    with LLM(target, drafter=drafter, n_ctx=512, n_threads=1, **options) as llm:
        generated = seed = 0
        while generated < tokens:
            completion = llm.generate("abc hello ", max_tokens=200, temperature=1.0, seed=seed, logit_bias=no_end)
            generated += len(completion.tokens)
            seed += 1
            # A table remembers: what it holds is its business.
            table = llm.ngram.memory_bytes if llm.ngram else 0
            seen.append((resident_bytes() - table, count("task"), count("fd")))
    memory, threads, handles = zip(*seen[len(seen) // 4 :], strict=True)
    report(
        f"{generated} tokens, {options}: resident without the table {min(memory) / 1e6:.1f} to "
        f"{max(memory) / 1e6:.1f} MB, threads {min(threads)} to {max(threads)}, "
        f"handles {min(handles)} to {max(handles)}"
    )
    assert max(memory) - memory[0] < SLACK
    assert len(set(threads)) == len(set(handles)) == 1
