"""Killed while it writes, the program leaves the old file or the new one, never half of one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_drafters import config_of, write_checkpoint

from dflash_cpp import LLM, NgramMap

KILLS = 12

SAVE = """
import sys
from dflash_cpp import NgramMap
table = NgramMap()
table.extend([(i * i) % 9973 for i in range(200_000)])
print("ready", flush=True)
while True:
    table.save(sys.argv[1])
"""

CONVERT = """
import sys
from dflash_cpp.convert import convert
print("ready", flush=True)
while True:
    convert(sys.argv[1], sys.argv[2], sys.argv[3], outtype="f32")
"""


def kill_at_random(program: str, *arguments: str, seed: int) -> None:
    """Start a program that writes without end, and kill it some time after it began."""
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    time.sleep(random.Random(seed).uniform(0.0, 0.08))
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.k4v"
    seen = 0
    for seed in range(KILLS):
        kill_at_random(SAVE, str(path), seed=seed)
        if path.exists():
            assert len(NgramMap.load(str(path))) == 200_000
            seen += 1
    assert seen > 0


@pytest.mark.timeout(120)
def test_a_conversion(tiny_path: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", config_of(hidden=32, vocab=31))
    path = tmp_path / "drafter.gguf"
    seen = 0
    for seed in range(KILLS):
        kill_at_random(CONVERT, str(tmp_path / "checkpoint"), str(tiny_path), str(path), seed=seed)
        if path.exists():
            with LLM(tiny_path, drafter=path, ngram=False, n_ctx=128, n_threads=1) as llm:
                llm.generate("abc", max_tokens=4)
            seen += 1
    assert seen > 0
