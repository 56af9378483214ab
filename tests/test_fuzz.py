"""The fuzz targets over their tracked corpora and variations of them; `fuzz/run.py` goes on from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent / "fuzz"
VARIATIONS = {"bench_prompts": 200, "checkpoint": 60, "drafter_gguf": 40}

REPLAY = """
import sys
sys.path[:0] = sys.argv[2:]
from targets import TARGETS, corpus, varied
target, inputs = TARGETS[sys.argv[1]], corpus(sys.argv[1])
assert inputs
for number, data in enumerate(inputs):
    for seed in range({variations}):
        tried = varied(data, 1000 * number + seed) if seed else data
        try:
            target(tried)
        except BaseException:
            print(tried.hex())
            raise
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(VARIATIONS))
def test_corpus_and_variations(name: str) -> None:
    program = REPLAY.format(variations=VARIATIONS[name])
    # In a process of its own: an abort in the core would end the tests.
    done = subprocess.run([sys.executable, "-c", program, name, str(FUZZ), str(FUZZ.parent)],
                          capture_output=True, text=True, timeout=280, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
