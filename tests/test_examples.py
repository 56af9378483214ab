"""The examples run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_cpp import DFlashError, server

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], input=stdin, capture_output=True, text=True,
        env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.timeout(120)
def test_coding_assistant(tmp_path: Path, smollm2: Path) -> None:
    program, table = tmp_path / "hello.py", tmp_path / "session.k4v"
    program.write_text("def hello(name):\n    print('Hello, ' + name)\n\n\nhello('world')\n")
    wishes = "Rename the function to greet.\nAdd a docstring to the function.\n\nnever asked\n"
    done = run("coding_assistant.py", str(program), "--table", str(table), "--max-tokens", "96", stdin=wishes)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tokens/s") == 2 and table.exists()


def test_public_drafter_says_what_is_missing_offline(tmp_path: Path) -> None:
    done = run("public_drafter.py", "nobody/nothing", "none.gguf", "nobody/drafter", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.timeout(120)
def test_langchain_chat() -> None:
    if not importlib.util.find_spec("langchain_openai"):
        pytest.skip("langchain-openai is not installed")
    try:
        server.binary()
    except DFlashError as missing:
        pytest.skip(str(missing))
    with server.running(server.command("smollm2")) as running:
        done = run("langchain_chat.py", f"{running.url}/v1")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
