"""Prompts to train on: made here from a seed, or the user's own.

Prompt i of a seed is always the same on machines with the same Python library: kinds take turns, words are drawn.
Code to edit or to continue is cut from Python's standard library; nothing of any benchmark is in it.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dflash_cpp import chat

Prompt = str | list[chat.Message]


@dataclass(frozen=True)
class TrainingPrompt:
    """Text to continue as it stands, or messages to answer; `kind` names what it is like."""

    kind: str
    prompt: Prompt


WORDS: dict[str, list[str]] = json.loads((Path(__file__).parent / "prompt_words.json").read_text(encoding="utf-8"))
"""What prompts are put together from: topics, people, tasks, and sentences with gaps for them."""


@lru_cache(maxsize=1)
def _library() -> list[Path]:
    """Python files of the standard library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "site-packages", "dist-packages", "idlelib", "encodings", "lib2to3", "pydoc_data"}
    files = (p for p in root.rglob("*.py") if not skipped & set(p.relative_to(root).parts))
    return sorted((p for p in files if 2_000 < p.stat().st_size < 200_000), key=lambda p: str(p.relative_to(root)))


@lru_cache(maxsize=256)
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _functions(source: str, lines: tuple[int, int]) -> list[ast.FunctionDef]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [f for f in functions if f.end_lineno and lines[0] <= f.end_lineno - f.lineno <= lines[1]]


def _function(
    random: random.Random, lines: tuple[int, int], documented: bool = False
) -> tuple[str, ast.FunctionDef]:
    """A function's source, unindented, and its node."""
    import textwrap

    for _ in range(200):
        source = _read(random.choice(_library()))
        found = [f for f in _functions(source, lines) if ast.get_docstring(f) or not documented]
        if found:
            node = random.choice(found)
            text = "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
            return textwrap.dedent(text), node
    raise ValueError("the Python library on this machine has no source files to take code from")


def _user(text: str) -> list[chat.Message]:
    return [{"role": "user", "content": text}]


def _instruct(r: random.Random) -> Prompt:
    t, u = r.sample(WORDS["topics"], 2)
    return _user(r.choice(WORDS["asks"]).format(t=t, u=u))


def _code(r: random.Random) -> Prompt:
    return _user(r.choice(WORDS["code_asks"]).format(l=r.choice(WORDS["languages"]), c=r.choice(WORDS["tasks"])))


def _edit(r: random.Random) -> Prompt:
    text, _ = _function(r, (4, 22))
    return _user(f"{r.choice(WORDS['edits'])}\n\n```python\n{text}\n```")


def _continue(r: random.Random) -> Prompt:
    """Cut a library file after some lines."""
    lines = _read(r.choice(_library())).splitlines(keepends=True)
    n = r.randint(8, 40)
    begin = r.randint(0, max(0, len(lines) - n))
    return "".join(lines[begin : begin + n])[:2500] or "import os\n"


def _signature(r: random.Random) -> Prompt:
    """Cut a function after its docstring: its body is to be written."""
    text, node = _function(r, (6, 60), documented=True)
    end = node.body[0].end_lineno or node.lineno
    return "\n".join(text.splitlines()[: end - node.lineno + 1])[:2500] + "\n"


def _rewrite(r: random.Random) -> Prompt:
    """Give a file and begin it again, changed."""
    text, node = _function(r, (4, 18))
    what = r.choice(WORDS["rewrites"]).format(name=node.name)
    return f"Here is some code:\n```python\n{text}\n```\nHere is the same code again, {what}:\n```python\n"


def _json(r: random.Random) -> Prompt:
    fields = ", ".join(r.sample(WORDS["fields"], r.randint(3, 6)))
    thing = r.choice(WORDS["things"])
    ask = r.choice(WORDS["json_asks"])
    who, where = r.choice(WORDS["people"]).capitalize(), r.choice(WORDS["places"])
    sentence = f"{who} from {where} ordered {r.randint(2, 90)} pieces on Monday."
    return _user(ask.format(x=thing, f=fields, s=sentence))


def _dialogue(r: random.Random) -> Prompt:
    a, b = r.sample(WORDS["people"], 2)
    ask = r.choice(WORDS["dialogue_asks"])
    return _user(ask.format(a=a, b=b, t=r.choice(WORDS["topics"]), p=r.choice(WORDS["places"])))


def _prose(r: random.Random) -> Prompt:
    return r.choice(WORDS["openings"]).format(
        t=r.choice(WORDS["topics"]), p=r.choice(WORDS["places"]), w=r.choice(WORDS["people"])
    )


def _turns(r: random.Random) -> Prompt:
    """Code on the table, and the user's next wish for it."""
    text, node = _function(r, (4, 22))
    first = f"Write a Python function called {node.name}."
    return [
        *_user(first),
        {"role": "assistant", "content": f"```python\n{text}\n```"},
        *_user(r.choice(WORDS["code_follow_ups"]).format(l=r.choice(WORDS["languages"]))),
    ]


KINDS: dict[str, Callable[[random.Random], Prompt]] = {
    "instruct": _instruct,
    "code": _code,
    "edit": _edit,
    "signature": _signature,
    "json": _json,
    "prose": _prose,
    "continue": _continue,
    "dialogue": _dialogue,
    "rewrite": _rewrite,
    "turns": _turns,
}
ORDER = ["instruct", "code", "edit", "signature", "json", "prose", "signature", "dialogue", "instruct", "rewrite",
         "code", "continue", "turns", "edit", "prose"]  # fmt: skip
"""Kinds in the order in which they take turns."""


def training_prompt(seed: int, index: int) -> TrainingPrompt:
    """Prompt number `index` of a seed."""
    kind = ORDER[index % len(ORDER)]
    return TrainingPrompt(kind, KINDS[kind](random.Random(f"{kind}/{seed}/{index}")))


def read_prompts(paths: Sequence[Path]) -> list[TrainingPrompt]:
    """The user's own prompts: JSONL with "prompt" or "messages", or a text file, which is one prompt.

    Raises
    ------
    ValueError
        A file cannot be read, or a line has another form; says which.
    """
    prompts = []
    for path in paths:
        if path.suffix == ".jsonl":
            prompts += [TrainingPrompt(path.stem, record) for record in _records(path)]
        else:
            try:
                prompts.append(TrainingPrompt(path.stem, path.read_text(encoding="utf-8")))
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"cannot read {path}: {error}") from error
    return prompts


def _records(path: Path) -> list[Any]:
    from dflash_cpp.bench.workloads import load_items

    prompts = [turn.prompt for item in load_items(path) for turn in item.standalone()]
    return [p if isinstance(p, str) else list(p) for p in prompts]


def prompt_key(prompt: Prompt) -> str:
    """A short hash by which an answer knows its prompt again."""
    import hashlib

    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
