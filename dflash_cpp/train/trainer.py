"""The training loop: resumable at any point, with the best weights by held-out acceptance kept apart."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dflash_cpp.errors import CheckpointError
from dflash_cpp.train.config import DrafterConfig
from dflash_cpp.train.data import BlockSampler
from dflash_cpp.train.evaluate import monitor
from dflash_cpp.train.features import FeatureStore
from dflash_cpp.train.initial import start_from_target
from dflash_cpp.train.muon import Muon
from dflash_cpp.train.student import Student
from dflash_cpp.train.teacher_weights import TeacherWeights

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class TrainOptions:
    """How to learn. Learning rates are of matrices (Muon) and of everything else (AdamW)."""

    n_texts: int = 14
    n_anchors: int = 48
    matrix_rate: float = 4e-3
    other_rate: float = 2e-3
    weight_decay: float = 0.02
    warmup_steps: int = 30
    average: float = 0.998
    """Decay of the running average of the weights, which is what gets measured and kept."""
    evaluate_every_blocks: int = 250_000
    save_every_seconds: float = 300.0
    seed: int = 0


def choose_draft_tokens(store: FeatureStore, config: DrafterConfig) -> npt.NDArray[np.int64]:
    """The most frequent tokens of the answers (what the target may say next counts, too), ascending."""
    if config.draft_vocab <= 0 or config.draft_vocab >= config.vocab:
        return np.arange(config.vocab, dtype=np.int64)
    columns = store.columns()
    counts = np.zeros(config.vocab)
    for text in store.select(held_out=False):
        rows = slice(text.start + text.n_prompt - 1, text.start + text.length)
        weights = np.exp(columns["top_log_probs"][rows].astype(np.float32))
        counts += np.bincount(columns["top_tokens"][rows].ravel(), weights.ravel(), minlength=config.vocab)
    best = np.argsort(-counts, kind="stable")[: config.draft_vocab]
    return np.sort(best).astype(np.int64)


def feature_spread(store: FeatureStore, n_rows: int = 20_000) -> npt.NDArray[np.float32]:
    """Standard deviation of each feature over a sample of rows; 1 where a feature never moves."""
    columns = store.columns()
    chosen = np.random.default_rng(0).choice(store.n_rows, size=min(n_rows, store.n_rows), replace=False)
    rows = columns["features"][np.sort(chosen)].astype(np.uint32)
    spread = (rows << 16).view(np.float32).std(0)
    return np.where(spread > 0, spread, 1.0).astype(np.float32)


def _write_atomically(path: Path, state: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


class Trainer:
    """Trains a drafter on a feature store, keeping its state in `folder`.

    Raises
    ------
    CheckpointError
        The folder's state is of a drafter with other sizes.
    """

    def __init__(
        self, folder: Path, store: FeatureStore, target: Path, weights: TeacherWeights, config: DrafterConfig,
        options: TrainOptions | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.folder, self.store, self.options = folder, store, options or TrainOptions()
        folder.mkdir(parents=True, exist_ok=True)
        state = self._load_state()
        if state is None:
            torch.manual_seed(self.options.seed)
            draft_tokens, spread = choose_draft_tokens(store, config), feature_spread(store)
        else:
            if DrafterConfig.from_dict(state["config"]) != config:
                raise CheckpointError(
                    f"{folder} holds a drafter of other sizes; use another folder or its own config"
                )
            draft_tokens, spread = state["draft_tokens"].numpy(), state["spread"].numpy()
        self.student = Student(config, draft_tokens, spread, weights, device)
        if state is None:
            start_from_target(self.student, target)
        self.averaged = copy.deepcopy(self.student.model).requires_grad_(False)
        matrices: list[torch.nn.Parameter] = []
        others: list[torch.nn.Parameter] = []
        for name, parameter in self.student.model.named_parameters():
            (matrices if parameter.ndim == 2 and not name.endswith("_codebook") else others).append(parameter)
        o = self.options
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=o.matrix_rate, weight_decay=o.weight_decay, dtype=self.student.type),
            torch.optim.AdamW(others, lr=o.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.step = self.blocks = 0
        self.seconds = 0.0
        self.best = 0.0
        self.curve: list[dict[str, float]] = []
        if state is not None:
            self._restore(state)
        self.sampler = BlockSampler(
            store, config.block_size, config.mask_token, n_texts=o.n_texts, n_anchors=o.n_anchors,
            seed=o.seed + self.step,
        )  # fmt: skip

    # -- state ------------------------------------------------------------------------------------------------

    @property
    def _state_path(self) -> Path:
        return self.folder / "state.pt"

    def _load_state(self) -> dict[str, Any] | None:
        if not self._state_path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self._state_path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"cannot read {self._state_path}: {error}") from error
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self.student.model.load_state_dict(state["model"])
        self.averaged.load_state_dict(state["averaged"])
        if "optimizers" in state:
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        self.step, self.blocks, self.seconds = state["step"], state["blocks"], state["seconds"]
        self.best, self.curve = state["best"], state["curve"]
        # Without the optimisers' moments the first steps would be wild: warm up again.
        self._warm_from = self.step if "optimizers" not in state else state["warm_from"]

    _warm_from = 0

    def _progress(self) -> dict[str, Any]:
        """What a state holds beside weights and optimisers."""
        return {
            "config": self.student.config.to_dict(),
            "draft_tokens": self.student.draft_tokens.cpu(),
            "spread": self.student.spread.cpu(),
            "step": self.step,
            "blocks": self.blocks,
            "seconds": self.seconds,
            "best": self.best,
            "curve": self.curve,
        }

    def save(self) -> None:
        """Write the state beside the old one, then rename."""
        state = self._progress() | {
            "model": self.student.model.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "warm_from": self._warm_from,
        }
        _write_atomically(self._state_path, state)

    def pack(self, path: Path) -> None:
        """Write what is needed to go on, and little more: the averaged weights in bfloat16, no optimiser state."""
        weights = {name: tensor.to(torch.bfloat16) for name, tensor in self.averaged.state_dict().items()}
        _write_atomically(path, self._progress() | {"model": weights, "averaged": weights})

    # -- learning ---------------------------------------------------------------------------------------------

    def _rate(self, progress: float) -> float:
        """Factor of the learning rates: warm-up, then level, then down to a twentieth over the last third."""
        warm = min(1.0, (self.step - self._warm_from + 1) / self.options.warmup_steps)
        down = 1.0 if progress < 2 / 3 else 1.0 - 0.95 * min(1.0, (progress - 2 / 3) * 3)
        return warm * down

    @torch.enable_grad()  # whatever the caller's mode
    def learn(self, progress: float) -> dict[str, float]:
        """One step on one batch; progress 0 to 1 of the time that this run has."""
        batch = self.sampler.draw()
        losses = self.student.losses(batch)
        losses.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.student.model.parameters(), 1.0)
        factor = self._rate(progress)
        o = self.options
        for optimizer, rate in zip(self.optimizers, (o.matrix_rate, o.other_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        keep = min(o.average, (self.step + 1) / (self.step + 10))
        with torch.no_grad():
            pairs = zip(self.averaged.parameters(), self.student.model.parameters(), strict=True)
            for average, parameter in pairs:
                average.lerp_(parameter, 1.0 - keep)
        self.step += 1
        self.blocks += batch.n_blocks
        return {"unary": losses.unary, "selector": losses.selector, "accuracy": losses.accuracy}

    def averaged_student(self) -> Student:
        """The student with its averaged weights."""
        student = copy.copy(self.student)
        student.model = self.averaged
        return student

    def evaluate(self) -> float:
        """Held-out acceptance length at width 5, greedy; the best weights so far are kept as a checkpoint."""
        student = self.averaged_student()
        found = monitor(student, self.store)
        self.curve.append({"blocks": self.blocks, "seconds": self.seconds, "tau": found.tau})
        if found.tau > self.best or not (self.folder / "best.pt").exists():
            self.best = found.tau
            _write_atomically(
                self.folder / "best.pt", {"model": self.averaged.state_dict(), "blocks": self.blocks}
            )
        return found.tau

    def best_student(self) -> Student:
        """The student with the weights that did best on held-out texts.

        Raises
        ------
        CheckpointError
            Nothing was trained yet.
        """
        path = self.folder / "best.pt"
        if not path.exists():
            raise CheckpointError(f"{self.folder} holds no trained weights yet; train for a while first")
        student = self.averaged_student()
        student.model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["model"])
        return student

    def run(self, *, minutes: float = math.inf, blocks: float = math.inf, report: Report | None = None) -> None:
        """Learn until the minutes (of this run) or the blocks (in all) are used up; Ctrl-C saves and stops."""
        begin = saved = time.monotonic()
        first_blocks, before = self.blocks, self.seconds
        next_look = self.blocks + self.options.evaluate_every_blocks
        sums: dict[str, float] = {}
        n_sums = 0
        tau = self.curve[-1]["tau"] if self.curve else math.nan
        try:
            while True:
                spent = time.monotonic() - begin
                progress = max(spent / 60 / minutes, self.blocks / blocks)
                if progress >= 1.0:
                    break
                for name, value in self.learn(progress).items():
                    sums[name] = sums.get(name, 0.0) + value
                n_sums += 1
                self.seconds = before + time.monotonic() - begin
                if self.blocks >= next_look:
                    tau = self.evaluate()
                    next_look += self.options.evaluate_every_blocks
                if self.step % 20 == 0 and report:
                    rate = (self.blocks - first_blocks) / (time.monotonic() - begin)
                    means = {name: value / n_sums for name, value in sums.items()}
                    report({"blocks": self.blocks, "rate": rate, "progress": progress, "tau": tau} | means)
                    sums, n_sums = {}, 0
                if time.monotonic() - saved > self.options.save_every_seconds:
                    self.save()
                    saved = time.monotonic()
        finally:
            self.save()
        self.evaluate()
        self.save()
        (self.folder / "curve.json").write_text(json.dumps(self.curve, indent=1) + "\n")
