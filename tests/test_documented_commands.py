"""The commands and programs in the documents run as they stand there, or say what they need: `needs: ...`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_docs import DOCUMENTS, ROOT
from tiny_drafters import config_of, write_checkpoint
from tiny_models import write_tiny_llama

from dflash_cpp import DFlashError, server
from dflash_cpp.convert import convert

WITH_CODE = [*DOCUMENTS, ROOT / "third_party" / "llama.cpp" / "README.md"]
TOOL = re.compile(r"dflash-cpp |pip |git |cd |cmake |auditwheel |huggingface-cli |\S*llama-server |[A-Z_]+=")
# The suite itself begins with these.
INSTALLS = ("pip install .", "pip install '.[test]' && pytest")


def shell_lines(path: Path) -> list[str]:
    """Return the command lines of a document's indented blocks, each with its comment.

    A comment on a line of its own that says `needs:` is appended to all lines after it in its block.
    """
    lines, need = [], ""
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line and not line.startswith("    "):
            need = ""
        elif "needs: " in line and line.strip().startswith("#"):
            need = "  " + line.strip()
        elif TOOL.match(line.strip()):
            lines.append(line.strip() + need)
    return lines


def programs(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A user's folder: a target under the names that the documents use, its drafter, a checkpoint, prompts."""
    folder = tmp_path_factory.mktemp("user")
    letters = string.printable.removesuffix("\r\x0b\x0c")
    target = write_tiny_llama(folder / "target.gguf", letters=letters)
    for name in ("model.gguf", "t.gguf", "TARGET.gguf"):
        shutil.copy(target, folder / name)
    # Rows that blocks of 32 fit, so that every type can hold them.
    config = config_of(hidden=32, vocab=3 + len(letters), conv_group_size=1, selector_rank=32)
    write_checkpoint(folder / "CHECKPOINT", config)
    shutil.copytree(folder / "CHECKPOINT", folder / "CHECKPOINT_DIR")
    convert(folder / "CHECKPOINT", target, folder / "drafter.gguf")
    (folder / "mine.jsonl").write_text('{"prompt": "abc abc abc", "max_tokens": 8}\n')
    results = [
        "bench",
        "run",
        "-m",
        "target.gguf",
        "--prompts",
        "mine.jsonl",
        "--out",
        "old",
        "--repetitions",
        "1",
    ]
    subprocess.run([sys.executable, "-m", "dflash_cpp.cli", *results], cwd=folder, check=True, capture_output=True)
    shutil.copytree(folder / "old", folder / "new")
    for name in ("old", "new"):
        shutil.copy(folder / name / "results.json", folder / f"{name}.json")
    return folder


@pytest.fixture(scope="module")
def done() -> set[str]:
    """Commands that ran: several documents name the same ones."""
    return set()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", [p for p in WITH_CODE if shell_lines(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_commands(path: Path, folder: Path, done: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    # The installed command, whether its environment is active or not.
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"])
    for line in shell_lines(path):
        command, _, comment = line.partition("  #")
        command = command.strip()
        if "needs: " in comment or command in INSTALLS or command in done:
            continue
        command = command.removeprefix("pip install . && ")
        words = shlex.split(command)
        assert words[0] == "dflash-cpp", f"{path.name}: what does this need? {line}"
        done.add(command)
        if words[1] == "serve":
            if has_server():
                with server.running(words):  # on a port that is free, whichever the document names
                    pass
        else:
            ran = subprocess.run(words, input="Hello\n", capture_output=True, text=True, check=False)
            assert ran.returncode == 0, f"{command}\n{ran.stdout[-1000:]}{ran.stderr[-2000:]}"


def has_server() -> bool:
    try:
        server.binary()
    except DFlashError:
        return False
    return True


@pytest.mark.parametrize("path", [p for p in WITH_CODE if programs(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_programs(path: Path, folder: Path) -> None:
    for program in programs(path):
        if "# needs: " not in program:
            # Blocks follow one another: the first one's import serves the rest.
            text = program if "import dflash_cpp" in program else f"import dflash_cpp\n{program}"
            ran = subprocess.run(
                [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, f"{program}\n{ran.stderr[-2000:]}"
