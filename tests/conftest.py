"""Models for the tests: the real SmolLM2, and tiny random ones made here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# The tests are about the installed package; the source folder of the same name has no compiled core.
ROOT = Path(__file__).parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
os.environ["PYTHONSAFEPATH"] = "1"

import pytest
from tiny_models import write_tiny_llama

import dflash_cpp
from dflash_cpp import models

_lines: list[str] = []


@pytest.fixture(scope="session")
def report() -> Callable[[str], None]:
    """Keep a measured line for the end of the run, where passing tests print too."""
    return _lines.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests measured."""
    if _lines:
        terminalreporter.section("measured")
        for line in _lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, from the cache or fetched once."""
    return models.resolve("smollm2", print)


@pytest.fixture(scope="session")
def plain(smollm2: Path) -> Iterator[dflash_cpp.LLM]:
    """The real model without any drafting."""
    with dflash_cpp.LLM(smollm2, drafter=None, ngram=False, n_ctx=2048) as llm:
        yield llm


@pytest.fixture(scope="session")
def k4v(smollm2: Path) -> Iterator[dflash_cpp.LLM]:
    """The real model with a k4v table."""
    with dflash_cpp.LLM(smollm2, drafter=None, ngram=True, n_ctx=2048) as llm:
        yield llm


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of two layers over 32 tokens."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture()
def tiny(tiny_path: Path) -> Iterator[dflash_cpp.LLM]:
    """The tiny model with a k4v table."""
    with dflash_cpp.LLM(tiny_path, n_ctx=256, n_threads=1) as llm:
        yield llm
