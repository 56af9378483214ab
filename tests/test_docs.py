"""The documents: what they promise exists, and nothing in them names a place it must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dflash_cpp.cli import parse

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "dflash_cpp" / "data").glob("*.md")),
]


def commands_of(path: Path) -> list[str]:
    """Every `dflash-cpp ...` command line in a document's code blocks, continuation lines joined."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [
        line.strip() for line in text.splitlines() if re.match(r"( {4}|\t)?(pip install \. && )?dflash-cpp ", line)
    ]
    return [line.split(" && ")[-1].split("  #")[0].strip() for line in lines]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_every_documented_command_parses(path: Path) -> None:
    import shlex

    for command in commands_of(path):
        parse(shlex.split(command)[1:])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (path.parent / link).exists(), link


def test_every_message_in_troubleshooting_is_one_of_ours() -> None:
    sources = [*(ROOT / "cpp").rglob("*.cpp"), *(ROOT / "python").glob("*.cpp")]
    sources += [*(ROOT / "dflash_cpp").rglob("*.py"), *(ROOT / "third_party").glob("llama.cpp/patches/*.patch")]
    # String literals that follow each other are one message.
    code = re.sub(r'"\s*\n[+\s]*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in sources))
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").replace("\n", " ")
    messages = re.findall(r'\*\*"(.+?)"', text)
    assert len(messages) > 20
    for message in messages:
        for part in message.split(" ... "):
            assert part.strip() in code, part


def test_the_api_reference_has_every_public_name(tmp_path: Path) -> None:
    import subprocess
    import sys

    import dflash_cpp

    command = [sys.executable, "-m", "pdoc", "dflash_cpp", "-d", "numpy", "-o", str(tmp_path)]
    subprocess.run(command, check=True, cwd=tmp_path)
    page = (tmp_path / "dflash_cpp.html").read_text(encoding="utf-8")
    for name in dflash_cpp.__all__:
        assert f'<section id="{name}"' in page, name
        value = getattr(dflash_cpp, name)
        assert isinstance(value, str) or (value.__doc__ or "").strip(), name
