"""Training a drafter: the pipeline on a tiny target, its parts against the engine and the reference."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import write_tiny_llama

torch = pytest.importorskip("torch", reason="pip install '.[train]'")

from dflash_cpp import LLM, CheckpointError, _core
from dflash_cpp.cli import main
from dflash_cpp.train.answers import pack_answers, read_answers, unpack_answers
from dflash_cpp.train.config import config_for, default_taps, mask_token_of
from dflash_cpp.train.data import BlockSampler, assemble
from dflash_cpp.train.evaluate import Acceptance, TextDrafts, decode_text
from dflash_cpp.train.features import FeatureStore
from dflash_cpp.train.loops import loop_start
from dflash_cpp.train.loss import selector_loss, soft_cross_entropy
from dflash_cpp.train.muon import Muon
from dflash_cpp.train.pipeline import Recipe, Run
from dflash_cpp.train.prompts import KINDS, ORDER, prompt_key, training_prompt
from dflash_cpp.train.trainer import TrainOptions

N_BLOCKS = 12_800
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "the",
    "dog",
    "run",
    "to",
    "the",
    "sea",
    "while",
    "birds",
    "sang",
    "in",
    "trees",
]


def write_prompts(path: Path, n: int = 60) -> Path:
    """Prompts in the tiny model's letters."""
    random = np.random.default_rng(0)
    lines = [json.dumps({"prompt": " ".join(random.choice(WORDS, 6))}) for _ in range(n)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[dict[str, float]]]:
    """A tiny target, the folder of a run over it, and what training reported."""
    folder = tmp_path_factory.mktemp("train")
    target = write_tiny_llama(folder / "tiny.gguf", n_vocab=60, scale=2.0, seed=3)
    prompts = write_prompts(folder / "prompts.jsonl")
    recipe = Recipe(str(target), tokens=2500, config="tiny", prompts=(str(prompts),), sequences=16, max_answer=60,
                    changes={"draft_vocab": 40})  # fmt: skip
    losses: list[dict[str, float]] = []

    def report(stage: str, numbers: dict[str, float]) -> None:
        if stage == "training":
            losses.append(numbers)

    run = Run(folder / "run", recipe, report)
    run.write_answers()
    run.compute_features()
    run.train(minutes=5, blocks=N_BLOCKS, device="cpu", options=TrainOptions(n_texts=4, n_anchors=16))
    run.export("f16")
    return target, folder / "run", losses


def test_the_loss_falls(trained: tuple[Path, Path, list[dict[str, float]]]) -> None:
    losses = trained[2]
    assert len(losses) >= 8
    assert losses[-1]["unary"] < 0.9 * losses[0]["unary"], losses
    assert losses[-1]["accuracy"] > 1.5 * losses[0]["accuracy"]


def share_of_same_drafts(target: Path, folder: Path, n: int, reveal: int) -> float:
    """How often the engine drafts what the student does, with `reveal` tokens given; blocks of n rows."""
    run = Run.open(folder)
    text = next(run.store().select(held_out=True))
    drafts = TextDrafts(run.student(), run.store().columns(), text, n, reveal)
    paths = drafts.walk(reveal + 1)
    same = total = 0
    with LLM(
        target, drafter=folder / "drafter.gguf", width=5, ahead="off", ngram=False, n_ctx=256, n_threads=1
    ) as llm:
        assert isinstance(llm._drafter, _core.Drafter)
        for anchor, path in list(zip(drafts.anchors, paths, strict=True))[:40]:
            llm.reset()
            llm.generate(drafts.tokens[:anchor].tolist(), max_tokens=1)
            assert llm._drafter.n_past == anchor
            prefix = drafts.tokens[anchor : anchor + reveal + 1].tolist()
            lattice = llm._drafter.revealed_lattices([prefix], n - 1)[0]
            found = lattice.walk(first_position=reveal + 1, predecessor=prefix[-1])
            same += found.tokens == path.tolist()
            total += 1
    return same / total


@pytest.mark.parametrize(("n", "reveal"), [(6, 0), (7, 3)])
def test_engine_and_training_draft_the_same(
    trained: tuple[Path, Path, list[dict[str, float]]], n: int, reveal: int
) -> None:
    """The same features, the same anchor: the engine's lattice has the student's candidates and path."""
    # bfloat16 features and weights may turn a near-tie
    assert share_of_same_drafts(*trained[:2], n, reveal) >= 0.9


def test_checkpoint_loads_in_the_reference(trained: tuple[Path, Path, list[dict[str, float]]]) -> None:
    """The reference package computes the student's hidden states from the exported checkpoint."""
    pytest.importorskip("dflash", reason="pip install '.[reference]'")
    from dflash.model import DFlash2DraftModel

    _, folder, _ = trained
    reference = DFlash2DraftModel.from_pretrained(folder / "hf", dtype=torch.float32).eval()
    run = Run.open(folder)
    student, store = run.student(), run.store()
    columns = store.columns()
    text = next(store.select(held_out=True))
    anchor, n = text.n_prompt + 3, 6
    batch = assemble(columns, [(text, 0, anchor)], np.array([[anchor - 1]]), n, student.config.mask_token,
                     np.zeros((1, 1), np.int64), None)  # fmt: skip
    batch.features = batch.features[:, : anchor - 1]
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        student.model.float()
        features = batch.features.float() / student.spread
        embedded = student.embedding[batch.tokens].float()
        ours = student.model(features, embedded, batch.anchors)[0, 0]
        theirs = reference(
            position_ids=torch.arange(anchor - 1 + n)[None],
            noise_embedding=embedded[:, 0], target_hidden=batch.features.float(),
        )[0]  # fmt: skip
    assert torch.allclose(ours, theirs, rtol=2e-3, atol=2e-3), (ours - theirs).abs().max()


def test_a_run_goes_on_where_it_was(trained: tuple[Path, Path, list[dict[str, float]]]) -> None:
    _, folder, _ = trained
    again = Run.open(folder)
    before = read_answers(again.answers_path)
    assert len(again.write_answers()) >= len(before)
    rows = again.store().n_rows
    assert again.compute_features().n_rows >= rows
    trainer = again.train(minutes=5, blocks=1, device="cpu")
    assert trainer.blocks >= N_BLOCKS and trainer.curve
    with pytest.raises(CheckpointError, match="another --out"):
        Run(folder, replace(again.recipe, seed=5))


def test_a_packed_run_goes_on_elsewhere(
    trained: tuple[Path, Path, list[dict[str, float]]], tmp_path: Path
) -> None:
    target, folder, _ = trained
    run = Run.open(folder)
    run.pack(tmp_path / "packed")
    assert str(target) not in (tmp_path / "packed" / "recipe.json").read_text()
    other = Run(tmp_path / "other", run.recipe)
    other.unpack(tmp_path / "packed")
    assert read_answers(other.answers_path) == read_answers(run.answers_path)
    other.compute_features()
    trainer = other.train(minutes=5, blocks=1, device="cpu")
    assert trainer.blocks >= N_BLOCKS
    assert trainer.best == pytest.approx(trainer.curve[-1]["tau"], rel=0.1)
    with pytest.raises(CheckpointError, match="cannot read"):
        Run(tmp_path / "third", run.recipe).unpack(tmp_path)


def test_interrupted_stores_are_cut_to_their_index(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, [1], 4)
    for length in (3, 5):
        features, top = np.ones((length, 4), np.uint16), np.ones((length - 1, 16), np.int32)
        store.append(list(range(length)), 1, features, top, top.astype(np.float32), kind="a", temperature=0.0,
                     held_out=False)  # fmt: skip
    with (tmp_path / "features.bin").open("ab") as file:
        file.write(b"half a row")
    with (tmp_path / "index.jsonl").open("a") as file:
        file.write('{"start": 8, "leng')
    again = FeatureStore(tmp_path, [1], 4)
    assert again.n_rows == 8 and len(again.texts) == 2
    assert again.columns()["tokens"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    with pytest.raises(CheckpointError, match="another shape"):
        FeatureStore(tmp_path, [2], 4)


def test_soft_cross_entropy_against_autograd() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(7, 8, requires_grad=True)
    head = torch.randn(20, 8)
    classes = torch.stack([torch.randperm(20)[:3] for _ in range(7)])
    probabilities = torch.rand(7, 3)
    probabilities[2] = 0.0
    weights = torch.rand(7)
    loss, scores, best = soft_cross_entropy(hidden, head, classes, probabilities, weights, 4)
    loss.backward()
    expected = hidden.detach().requires_grad_()
    log_p = (expected @ head.T).log_softmax(-1)
    naive = -((log_p.gather(1, classes) * probabilities).sum(1) * weights).sum()
    naive.backward()
    assert torch.allclose(loss, naive) and torch.allclose(hidden.grad, expected.grad, atol=1e-6)
    assert torch.equal(best, (expected @ head.T).topk(4).indices)
    assert torch.allclose(scores, (expected @ head.T).topk(4).values)


def test_selector_loss_ignores_what_cannot_be_chosen() -> None:
    scores, candidates = torch.zeros(2, 2), torch.tensor([[1, 2], [3, 4]])
    classes, probabilities = torch.tensor([[2, 9], [9, 8]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    loss = selector_loss(scores, candidates, classes, probabilities, torch.ones(2))
    assert torch.isclose(loss, torch.tensor(0.5 * np.log(2.0), dtype=loss.dtype))


def test_blocks_hide_what_comes_later(trained: tuple[Path, Path, list[dict[str, float]]]) -> None:
    """No learned row sees its own token; revealed rows are not learned; blocks do not see each other."""
    _, folder, _ = trained
    run = Run.open(folder)
    student, store = run.student(), run.store()
    mask = student.config.mask_token
    batch = BlockSampler(store, 8, mask, n_texts=3, n_anchors=20).draw()
    assert (batch.tokens.flatten()[batch.rows] == mask).all()
    assert (batch.tokens[..., 0] != mask).all()
    columns = store.columns()
    text = next(store.select(held_out=False))
    one = assemble(columns, [(text, 0, text.length)], np.array([[5]]), 6, mask, np.zeros((1, 1), np.int64), None)
    two = assemble(
        columns, [(text, 0, text.length)], np.array([[5, 9]]), 6, mask, np.zeros((1, 2), np.int64), None
    )
    with torch.no_grad():
        alone, beside = student.hidden(one)[0, 0].float(), student.hidden(two)[0, 0].float()
        later = one
        later.features = later.features.clone()
        later.features[:, 5:] = 3.0  # the anchor's own features and later ones
        changed = student.hidden(later)[0, 0].float()
    assert torch.allclose(alone, beside, atol=0.05) and torch.allclose(alone, changed, atol=0.05)


def test_decoding_a_text_step_by_step() -> None:
    accepted = np.array([2, 0, 0, 0, 5, 0, 0, 0])
    counts = decode_text(accepted, np.arange(8, 0, -1), 5)
    # 2 accepted + bonus, then 0 + 1, then 4 left: 3 offered, all accepted, + bonus.
    assert (counts.steps, counts.committed) == (3, 8)
    assert counts.reached[:3] == [3, 2, 2] and counts.accepted[:3] == [2, 2, 1]
    merged = Acceptance(5)
    merged.add(counts)
    merged.add(counts)
    assert merged.tau == counts.tau


def test_loops() -> None:
    assert loop_start(list(range(50))) == 50
    assert loop_start([1, 2] + list(range(10, 20)) * 5) == 22
    assert loop_start([]) == 0


def test_prompts_are_made_from_their_seed() -> None:
    first = [training_prompt(1, i) for i in range(45)]
    assert [p.prompt for p in first] == [training_prompt(1, i).prompt for i in range(45)]
    assert len({prompt_key(p.prompt) for p in first}) > 40
    assert {p.kind for p in first} == set(KINDS) == set(ORDER)
    assert training_prompt(2, 0).prompt != first[0].prompt


def test_answers_pack_into_little(trained: tuple[Path, Path, list[dict[str, float]]], tmp_path: Path) -> None:
    records = read_answers(trained[1] / "answers.jsonl")
    path = tmp_path / "answers.npz"
    pack_answers(records, path)
    assert unpack_answers(path) == records
    assert path.stat().st_size < (trained[1] / "answers.jsonl").stat().st_size / 2


def test_sizes_fit_their_target(tiny_path: Path, smollm2: Path) -> None:
    assert default_taps(30, 4) == (5, 13, 21, 29) and default_taps(2, 2) == (1,)
    config = config_for("base", _core.GgufFile(str(smollm2)), 7)
    assert (config.hidden, config.vocab, config.heads * config.head_dim) == (576, 49152, 576)
    file = _core.GgufFile(str(tiny_path))
    small = config_for("base", file, 0)
    assert small.top_k * (small.top_k + 1) <= small.hidden == 32
    types = np.array([2, 3, 3, 1, 1])
    assert mask_token_of(file, types, {2}) == 1 and mask_token_of(file, types, {1, 2}) != 1
    with pytest.raises(ValueError, match="use one of"):
        config_for("huge", file, 0)


@pytest.mark.parametrize("shape", [(24, 60), (60, 24), (32, 32)])
def test_our_muon_takes_pytorchs_steps(shape: tuple[int, int]) -> None:
    """But for the rounding of bfloat16, which PyTorch iterates in."""
    torch.manual_seed(1)
    ours = torch.nn.Parameter(torch.randn(shape))
    theirs = torch.nn.Parameter(ours.detach().clone())
    options = {"lr": 0.01, "weight_decay": 0.1}
    optimizers = [
        Muon([ours], dtype=torch.float32, **options),
        torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **options),
    ]
    start = ours.detach().clone()
    for _ in range(3):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert (ours - theirs).norm() < 0.02 * (ours - start).norm()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "huge"], "use one of"),
        (["--teacher", "f8"], "exact or bf16"),
        (["--minutes", "-1"], "--minutes"),
        (["--tokens", "0"], "--tokens"),
        (["--rate", "nan"], "--rate"),
        (["--outtype", "q3"], "--outtype"),
        (["--device", "tpu"], "device"),
        (["--prompts", "missing.jsonl"], "cannot read"),
    ],
)
def test_bad_arguments_fail_before_any_work(
    tiny_path: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["train", str(tiny_path), "--out", str(tmp_path / "run"), *arguments])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "run" / "answers.jsonl").exists()


def test_eval_of_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "eval", str(tmp_path)])
    assert "no folder of a training run" in capsys.readouterr().err


def test_the_command_trains_and_resumes(tmp_path: Path) -> None:
    target = write_tiny_llama(tmp_path / "tiny.gguf", n_vocab=60, scale=2.0, seed=4)
    prompts = write_prompts(tmp_path / "prompts.jsonl", 20)
    command = [sys.executable, "-P", "-m", "dflash_cpp.cli", "train", str(target), "--out", str(tmp_path / "run"),
               "--prompts", str(prompts), "--tokens", "300", "--config", "tiny", "--blocks", "2000",
               "--outtype", "q8_0"]  # fmt: skip
    for _ in range(2):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "best held-out acceptance" in result.stdout
    with LLM(target, drafter=tmp_path / "run" / "drafter.gguf", width=3, n_ctx=128, n_threads=1) as llm:
        assert llm.generate("the cat", max_tokens=20).stats.completion_tokens > 0


def same_with_gradients(ours: object, plain: object, *inputs: torch.Tensor) -> bool:
    """Whether both functions and their gradients agree."""
    results = []
    for function in (ours, plain):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = function(*leaves)  # type: ignore[operator]
        weight = torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape).sin()
        results.append((out, *torch.autograd.grad(out, leaves, weight)))
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*results, strict=True))


def test_kernels_have_the_right_gradients() -> None:
    from dflash_cpp.train.kernels import convolve, rms_norm, rotate

    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, 8), torch.randn(8)
    assert same_with_gradients(
        lambda x, w: rms_norm(x, w, 1e-6),
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6) * w,
        x,
        weight,
    )
    angle = torch.randn(3, 5, 4)
    cos, sin = angle.cos(), angle.sin()

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    assert same_with_gradients(lambda x: rotate(x, cos, sin), turned, x)
    for taps in (2, 3):
        dynamic, base = torch.randn(3, 5, taps, 2), torch.randn(taps, 8)

        def convolved(y: torch.Tensor, d: torch.Tensor, b: torch.Tensor, taps: int = taps) -> torch.Tensor:
            c = d.repeat_interleave(4, -1) + b
            return sum(c[:, :, s] * torch.nn.functional.pad(y, (0, 0, s, 0))[:, : y.shape[1]] for s in range(taps))  # type: ignore[return-value]

        assert same_with_gradients(convolve, convolved, x, dynamic, base)
