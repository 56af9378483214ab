"""The target's own answers to the training prompts, written many at once and kept as token ids."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cpp import _core, chat
from dflash_cpp.errors import CheckpointError
from dflash_cpp.train.features import TOP_K, FeatureStore
from dflash_cpp.train.prompts import TrainingPrompt, prompt_key

TEMPERATURES = (0.0, 0.0, 0.0, 0.4, 0.7, 1.0)
"""Half of the answers are greedy."""

MIN_ANSWER = 12
"""Shorter answers, and those that loop before, teach nothing."""

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class AnswerRecord:
    """An answer: to prompt `index`, known by its `key`; drawn at `temperature` with `seed`."""

    index: int
    key: str
    kind: str
    temperature: float
    seed: int
    tokens: list[int]
    ended: bool

    def to_json(self) -> dict[str, Any]:
        """As a line of the answers' file holds it."""
        return {"i": self.index, "k": self.key, "kind": self.kind, "T": self.temperature, "s": self.seed,
                "t": self.tokens, "e": self.ended}  # fmt: skip

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> AnswerRecord:
        """Undo `to_json`."""
        return cls(*(record[name] for name in ("i", "k", "kind", "T", "s", "t", "e")))


def mixed_temperature(index: int) -> float:
    """One of `TEMPERATURES`, drawn by the answer's number."""
    return random.Random(f"temperature/{index}").choice(TEMPERATURES)


def read_answer(
    store: FeatureStore, teacher: _core.Teacher, prompt: list[int], record: AnswerRecord, *, held_out: bool
) -> None:
    """Have the target read a prompt's tokens and the answer to it, and keep what it computed."""
    text = prompt + record.tokens
    features, top_tokens, log_probs = teacher.read(text, TOP_K, len(prompt) - 1)
    store.append(
        text, len(prompt), features, top_tokens, log_probs, kind=record.kind, temperature=record.temperature,
        held_out=held_out, seed=record.seed,
    )  # fmt: skip


def read_answers(path: Path) -> list[AnswerRecord]:
    """All whole lines of an answers' file.

    Raises
    ------
    CheckpointError
        A line is none of ours.
    """
    if not path.exists():
        return []
    records = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                break
            try:
                records.append(AnswerRecord.from_json(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(f"{path} is damaged: {error}") from error
    return records


class AnswerWriter:
    """Writes answers to `path` until enough tokens are there. Resumes after the last whole line.

    Parameters
    ----------
    path
        A JSONL file.
    target
        With as many sequences as answers are to be written at once.
    prompt_of
        Gives prompt number i, or None after the last.
    max_prompt, max_answer
        Longer prompts are left out; longer answers end there.
    temperature_of
        The temperature for answer number i; by default `mixed_temperature`.
    """

    def __init__(
        self, path: Path, target: _core.Target, prompt_of: Callable[[int], TrainingPrompt | None], *,
        max_prompt: int = 640, max_answer: int = 320,
        temperature_of: Callable[[int], float] | None = None,
    ) -> None:  # fmt: skip
        self._path, self._target, self._prompt_of = path, target, prompt_of
        self._max_prompt, self._max_answer = max_prompt, max_answer
        self._temperature_of = temperature_of or mixed_temperature
        self.records = read_answers(path)
        self.n_tokens = sum(len(record.tokens) for record in self.records)
        self.n_looped = 0
        partial = path.with_name(path.name + f".partial.{os.getpid()}")
        partial.write_text("".join(json.dumps(record.to_json()) + "\n" for record in self.records))
        partial.replace(path)

    def _open(self, index: int) -> tuple[AnswerRecord, list[int]] | None:
        prompt = self._prompt_of(index)
        if prompt is None:
            return None
        record = AnswerRecord(
            index, prompt_key(prompt.prompt), prompt.kind, self._temperature_of(index), index, [], False
        )
        return record, chat.prompt_tokens(self._target, prompt.prompt)

    def write(self, n_tokens: int) -> Iterator[dict[str, Any]]:
        """Write until `n_tokens` answer tokens are kept or the prompts end; yields progress after every pass."""
        teacher = _core.Teacher(self._target)
        n_slots = teacher.n_free
        pending: dict[int, AnswerRecord] = {}
        # Answers end out of order: what a stopped run left out, between those that it kept, is asked again.
        done = {record.index for record in self.records}
        index, exhausted = 0, False
        with self._path.open("a", encoding="utf-8") as file:
            while True:
                while len(pending) < n_slots and not exhausted and self.n_tokens < n_tokens:
                    if index in done:
                        index += 1
                        continue
                    opened = self._open(index)
                    if opened is None:
                        exhausted = True
                        break
                    record, tokens = opened
                    if 2 <= len(tokens) <= self._max_prompt:
                        options = _core.SamplerOptions()
                        options.temperature, options.seed = record.temperature, record.seed
                        teacher.submit(index, tokens, options, self._max_answer)
                        pending[index] = record
                    index += 1
                if not pending:
                    return
                for answer in teacher.step():
                    opened_record = pending.pop(answer.id)
                    self.n_looped += answer.looped
                    if len(answer.tokens) < MIN_ANSWER:
                        continue
                    kept = AnswerRecord(**(vars(opened_record) | {"tokens": answer.tokens, "ended": answer.ended}))
                    self.records.append(kept)
                    self.n_tokens += len(kept.tokens)
                    file.write(json.dumps(kept.to_json()) + "\n")
                    file.flush()
                yield {"tokens": self.n_tokens, "answers": len(self.records), "looped": self.n_looped}


def pack_answers(records: Sequence[AnswerRecord], path: Path) -> None:
    """Write answers as a compressed .npz of small integers, for keeping.

    Prompts are not in it: they are made again from their seed, and each answer knows its prompt by a key.
    """
    kinds = sorted({record.kind for record in records})
    tokens = np.concatenate([np.asarray(record.tokens, dtype=np.uint32) for record in records])
    small = tokens.astype(np.uint16 if tokens.max(initial=0) < 2**16 else np.uint32)
    partial = path.with_name(path.name + f".partial.{os.getpid()}.npz")
    np.savez_compressed(
        partial,
        tokens=small,
        lengths=np.array([len(record.tokens) for record in records], dtype=np.uint16),
        indexes=np.array([record.index for record in records], dtype=np.uint32),
        seeds=np.array([record.seed for record in records], dtype=np.uint64),
        keys=np.array([bytes.fromhex(record.key) for record in records], dtype="V6"),
        kinds=np.array([kinds.index(record.kind) for record in records], dtype=np.uint8),
        kind_names=np.array(kinds),
        temperatures=np.array([record.temperature for record in records], dtype=np.float32),
        ended=np.array([record.ended for record in records], dtype=bool),
    )
    partial.replace(path)


def unpack_answers(path: Path) -> list[AnswerRecord]:
    """Read what `pack_answers` wrote.

    Raises
    ------
    CheckpointError
        The file cannot be read or is none of ours.
    """
    try:
        with np.load(path) as packed:
            tokens, lengths, indexes, seeds = (packed[n] for n in ("tokens", "lengths", "indexes", "seeds"))
            keys, kinds, kind_names = (packed[n] for n in ("keys", "kinds", "kind_names"))
            temperatures, ended_flags = (packed[n] for n in ("temperatures", "ended"))
    except (OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    ends = np.cumsum(lengths.astype(np.int64))
    records = []
    for i, end in enumerate(ends.tolist()):
        kind, temperature = str(kind_names[kinds[i]]), round(float(temperatures[i]), 4)
        answer = tokens[end - int(lengths[i]) : end].tolist()
        key, ended = bytes(keys[i]).hex(), bool(ended_flags[i])
        records.append(AnswerRecord(int(indexes[i]), key, kind, temperature, int(seeds[i]), answer, ended))
    return records
