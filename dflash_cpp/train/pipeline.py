"""The four stages from a target to its drafter, each resumable: prompts, answers, features, training."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash_cpp import _core, chat
from dflash_cpp.errors import CheckpointError
from dflash_cpp.train.answers import (
    AnswerRecord,
    AnswerWriter,
    pack_answers,
    read_answer,
    read_answers,
    unpack_answers,
)
from dflash_cpp.train.config import DrafterConfig, config_for, mask_token_of
from dflash_cpp.train.features import FeatureStore
from dflash_cpp.train.prompts import TrainingPrompt, prompt_key, read_prompts, training_prompt
from dflash_cpp.train.teacher_weights import TeacherWeights, read_weights

if TYPE_CHECKING:
    from dflash_cpp.train.student import Student
    from dflash_cpp.train.trainer import Trainer, TrainOptions

Report = Callable[[str, dict[str, Any]], None]
"""Called with a stage's name and its numbers: `done` and `total` in the stage's unit, and what else it knows."""

HELD_OUT_EVERY = 40
"""One answer in so many, the first among them, is never learned from."""


@dataclass(frozen=True)
class Recipe:
    """All that decides what comes out, kept as recipe.json in the run's folder."""

    target: str
    tokens: int = 400_000
    """Answer tokens to write."""
    config: str = "base"
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of DrafterConfig that differ from the named size."""
    seed: int = 1
    prompts: tuple[str, ...] = ()
    """The user's own prompt files; without any, prompts are made from the seed."""
    teacher: str = "exact"
    """exact: the target as it is. bf16: its weights unpacked to bfloat16 for answers and features, several times
    as fast on a CPU, and the same text but for rounding."""
    cache_gb: float = 16.0
    """Most disk space for features."""
    sequences: int = 64
    """Answers written at once."""
    max_answer: int = 320


class Run:
    """A training run in its folder.

    Raises
    ------
    CheckpointError
        The folder holds a run of another recipe.
    ModelError, IncompatibleDrafterError
        The target cannot be read, or gives no features.
    ValueError
        An unknown config or teacher, or prompts that cannot be read.
    """

    def __init__(self, folder: Path, recipe: Recipe, report: Report | None = None) -> None:
        self.folder, self.recipe = folder, recipe
        self._report = report or (lambda _stage, _numbers: None)
        if recipe.teacher not in ("exact", "bf16"):
            raise ValueError(f"teacher is {recipe.teacher!r}; use exact or bf16")
        self.target = Path(recipe.target)
        self.file = _core.GgufFile(os.fspath(self.target))
        self.file.require_language_model()
        self._own = read_prompts([Path(p) for p in recipe.prompts])
        self.weights: TeacherWeights = read_weights(self.target)
        config_for(recipe.config, self.file, 0, **recipe.changes)  # a wrong name fails before any work
        folder.mkdir(parents=True, exist_ok=True)
        self._keep_recipe()

    @classmethod
    def open(cls, folder: Path, report: Report | None = None) -> Run:
        """Open a folder that a run was made in, by the recipe kept there; ValueError where there is none."""
        path = folder / "recipe.json"
        if not path.exists():
            raise ValueError(f"{folder} is no folder of a training run (it has no recipe.json)")
        fields = json.loads(path.read_text())
        return cls(folder, Recipe(**(fields | {"prompts": tuple(fields["prompts"])})), report)

    def _keep_recipe(self) -> None:
        path = self.folder / "recipe.json"
        fixed = {k: v for k, v in asdict(self.recipe).items() if k in ("config", "changes", "seed", "teacher")}
        if path.exists():
            found = json.loads(path.read_text())
            other = {k: found.get(k) for k in fixed if found.get(k) != fixed[k]}
            if other:
                raise CheckpointError(
                    f"{self.folder} holds a run with {other}; use another --out, or the same recipe"
                )
        path.write_text(json.dumps(asdict(self.recipe), indent=1) + "\n")

    # -- stage 1: prompts -------------------------------------------------------------------------------------

    def prompt(self, index: int) -> TrainingPrompt | None:
        """Prompt number `index`; None after the last of the user's own."""
        if not self.recipe.prompts:
            return training_prompt(self.recipe.seed, index)
        return self._own[index] if index < len(self._own) else None

    # -- stage 2: answers -------------------------------------------------------------------------------------

    def _teacher_file(self) -> Path:
        if self.recipe.teacher == "exact":
            return self.target
        path = self.folder / "teacher-bf16.gguf"
        if not path.exists():
            partial = path.with_name(path.name + f".partial.{os.getpid()}")
            try:
                _core.quantize(os.fspath(self.target), os.fspath(partial), "bf16", pure=True)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        return path

    def load_target(self, *, sequences: int = 1, exact: bool = False, n_ctx: int = 1024) -> _core.Target:
        """The teacher, with room for as many texts at once."""
        return _core.Target(
            os.fspath(self.target if exact else self._teacher_file()), n_ctx=n_ctx, n_gpu_layers=-1, n_threads=0,
            n_batch=512, type_k="f16", type_v="f16", flash_attention="auto", progress=None, n_sequences=sequences,
            all_logits=True,
        )  # fmt: skip

    @property
    def answers_path(self) -> Path:
        """Where answers are kept, a JSON object per line."""
        return self.folder / "answers.jsonl"

    def write_answers(self) -> list[AnswerRecord]:
        """Stage 2: go on until the recipe's tokens are there."""
        target = self.load_target(sequences=self.recipe.sequences)
        writer = AnswerWriter(self.answers_path, target, self.prompt, max_answer=self.recipe.max_answer)
        for numbers in writer.write(self.recipe.tokens):
            self._report("answers", {"done": numbers["tokens"], "total": self.recipe.tokens} | numbers)
        if not writer.records:
            raise ValueError("the target wrote no answer of 12 tokens or more; give other prompts")
        return writer.records

    # -- stage 3: features ------------------------------------------------------------------------------------

    def store(self) -> FeatureStore:
        """The features computed so far."""
        config = self.drafter_config(0)
        return FeatureStore(self.folder / "features", config.taps, config.hidden)

    def _prompt_of(self, record: AnswerRecord, target: _core.Target) -> list[int]:
        """Token ids of an answer's prompt; none where the prompt is another one on this machine."""
        prompt = self.prompt(record.index)
        if prompt is None or prompt_key(prompt.prompt) != record.key:
            return []
        return chat.prompt_tokens(target, prompt.prompt)

    def compute_features(self) -> FeatureStore:
        """Stage 3: read every answer that has none yet, within the disk's bound."""
        records = read_answers(self.answers_path)
        store = self.store()
        done_path = self.folder / "features" / "answers_done"
        done = min(int(done_path.read_text()), len(records)) if done_path.exists() else 0
        if done == len(records):
            return store
        target = self.load_target()
        teacher = _core.Teacher(target, store.tap_layers)
        limit = self.recipe.cache_gb * 1e9
        for number, record in enumerate(records):
            if number < done:
                continue
            prompt = self._prompt_of(record, target)
            text = prompt + record.tokens
            if len(prompt) >= 2 and len(text) <= target.n_ctx:
                read_answer(store, teacher, prompt, record, held_out=len(store.texts) % HELD_OUT_EVERY == 0)
            done_path.write_text(str(number + 1))
            self._report("features", {"done": number + 1, "total": len(records), "rows": store.n_rows})
            if store.n_bytes > limit:
                self._report("features", {"done": len(records), "total": len(records), "full": True})
                break
        return store

    # -- stage 4: training ------------------------------------------------------------------------------------

    def drafter_config(self, mask_token: int) -> DrafterConfig:
        """Sizes of the drafter, by the recipe."""
        return config_for(self.recipe.config, self.file, mask_token, **self.recipe.changes)

    def choose_mask_token(self, store: FeatureStore) -> int:
        """A control token that stands in none of the texts; once chosen, it stays."""
        path = self.folder / "mask_token"
        if not path.exists():
            used = set(np.unique(store.columns()["tokens"]).tolist())
            path.write_text(str(mask_token_of(self.file, self.weights.token_types, used)))
        return int(path.read_text())

    def _trainer(self, options: TrainOptions | None = None, device: str = "cpu") -> Trainer:
        from dflash_cpp.train.trainer import Trainer

        store = self.store()
        config = self.drafter_config(self.choose_mask_token(store))
        return Trainer(self.folder / "training", store, self.target, self.weights, config, options, device)

    def train(self, *, minutes: float, blocks: float, device: str, options: TrainOptions | None = None) -> Trainer:
        """Stage 4: learn for some minutes more, or until so many blocks in all."""
        trainer = self._trainer(options, device)

        def tell(numbers: dict[str, Any]) -> None:
            self._report("training", {"done": round(1000 * numbers["progress"]), "total": 1000} | numbers)

        trainer.run(minutes=minutes, blocks=blocks, report=tell)
        return trainer

    def student(self, device: str = "cpu") -> Student:
        """The student with its best weights."""
        return self._trainer(device=device).best_student()

    # -- elsewhere, later -------------------------------------------------------------------------------------

    def pack(self, folder: Path) -> None:
        """Write what another machine needs to go on: answers, weights, recipe; no features, no texts."""
        folder.mkdir(parents=True, exist_ok=True)
        self._trainer().pack(folder / "state.pt")
        pack_answers(read_answers(self.answers_path), folder / "answers.npz")
        kept = {k: v for k, v in asdict(self.recipe).items() if k not in ("target", "prompts", "cache_gb")}
        (folder / "recipe.json").write_text(json.dumps(kept, indent=1) + "\n")

    def unpack(self, folder: Path) -> None:
        """Begin this run where a packed one ended, as far as this one has not begun.

        Raises
        ------
        CheckpointError
            The folder is none that `pack` wrote.
        """
        import torch

        if not self.answers_path.exists():
            records = unpack_answers(folder / "answers.npz")
            lines = "".join(json.dumps(record.to_json()) + "\n" for record in records)
            self.answers_path.write_text(lines)
        state_path = self.folder / "training" / "state.pt"
        if not state_path.exists():
            try:
                state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
            except (OSError, RuntimeError) as error:
                raise CheckpointError(f"cannot read {folder / 'state.pt'}: {error}") from error
            (self.folder / "mask_token").write_text(str(state["config"]["mask_token"]))
            state_path.parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / "state.pt", state_path)

    # -- the result -------------------------------------------------------------------------------------------

    def export(self, outtype: str) -> tuple[Path, Path]:
        """Write the best weights as a checkpoint (folder hf) and as drafter.gguf; return both paths."""
        from dflash_cpp.convert import convert

        student = self.student()
        checkpoint = self.folder / "hf"
        student.write_checkpoint(checkpoint)
        reduced = len(student.draft_tokens) < student.config.vocab
        path = convert(
            checkpoint, self.target, self.folder / "drafter.gguf", outtype=outtype,
            draft_tokens=student.draft_tokens.tolist() if reduced else None,
            # A loud channel's weights are small beside its neighbours': four bits would drop them.
            tensor_types={"fc.weight": "f16"} if outtype.startswith("q") else None,
        )  # fmt: skip
        return checkpoint, path
