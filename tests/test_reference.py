"""The drafter against the reference package (PyTorch, float32): lattices, paths, q, whole generations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("dflash")
pytest.importorskip("transformers")

from dflash.model import (
    _draft_value,
    _output_head,
    _raw_input_embeddings,
    dflash_generate,
    extract_context_feature,
)
from reference_models import Target, random_drafter, random_target

from dflash_cpp import LLM, _core
from dflash_cpp.convert import convert, to_hf
from dflash_cpp.convert.safetensors_file import SafetensorsFile


@pytest.fixture(scope="module", autouse=True)
def without_gradients() -> Iterator[None]:
    """Nothing here learns; other modules do."""
    with torch.no_grad():
        yield


PROMPTS = [[5, 9, 13, 40, 41, 42, 5, 9, 13], list(range(3, 60)), [7] * 5 + [50, 60, 70, 80] * 4]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Target]:
    folder = tmp_path_factory.mktemp("targets")
    return {hidden: random_target(folder, hidden=hidden) for hidden in (64, 96, 288)}


CASES: dict[str, dict[str, Any]] = {
    "small": {"hidden": 64},
    "odd-hidden": {"hidden": 96, "conv_group_size": 32, "selector_rank": 5, "selector_top_k": 7},
    "public-k": {"hidden": 288, "selector_top_k": 16, "selector_rank": 24},
    "one-group": {"hidden": 64, "conv_group_size": 64, "selector_top_k": 2},
    "kernel-3": {"hidden": 64, "conv_kernel_size": 3},
    "softcap": {"hidden": 64, "final_logit_softcapping": 3.0},
    "multipliers": {"hidden": 64, "output_multiplier": 0.5, "input_embedding_scale": 1.7},
    "one-tap": {"hidden": 64, "target_layer_ids": [3]},
    "sliding": {
        "hidden": 64, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"],
        "is_causal": False,
    },
    "v1": {"hidden": 64, "version": 1},
    "v1-softcap": {"hidden": 64, "version": 1, "final_logit_softcapping": 3.0, "output_multiplier": 0.7},
    "v1-sliding": {
        "hidden": 64, "version": 1, "sliding_window": 24, "layer_types": ["sliding_attention"] * 2,
        "is_causal": False,
    },
}  # fmt: skip


def load(folder: Path, target: Target, case: dict[str, Any]) -> tuple[Any, Path]:
    case = dict(case)
    case.pop("hidden")
    model = random_drafter(folder / "hf", target, **case)
    path = convert(folder / "hf", target.path, folder / "drafter.gguf", outtype="f32")
    return model, path


def reference_block(model: Any, target: Target, prompt: list[int], anchor: int, n: int) -> tuple[Any, Any]:
    """Hidden states and logits of positions 1..n of a block after `prompt`."""
    with torch.no_grad():
        ids = torch.tensor([prompt])
        output = target.model(ids, output_hidden_states=True)
        features = extract_context_feature(output.hidden_states, model.target_layer_ids)
        block = torch.tensor([[anchor] + [model.mask_token_id] * n])
        scale = float(_draft_value(model.config, "input_embedding_scale", 1.0))
        noise = _raw_input_embeddings(target.model, block, scale)
        positions = torch.arange(len(prompt) + n + 1)[None]
        hidden = model(target_hidden=features, noise_embedding=noise, position_ids=positions)[:, 1:]
        return hidden, model.compute_logits(hidden, _output_head(target.model))


def engine(target: Target, path: Path, n_ctx: int = 512) -> tuple[_core.Target, _core.Drafter, _core.Session]:
    core = _core.Target(
        str(target.path), n_ctx=n_ctx, n_gpu_layers=0, n_threads=1, n_batch=512, type_k="f32", type_v="f32",
        flash_attention="off", progress=None,
    )  # fmt: skip
    drafter = _core.Drafter(str(path), core, n_gpu_layers=0, n_threads=0, device="")
    return core, drafter, _core.Session(core, None, drafter, 5, "off")


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_lattice_equals_the_references(
    tmp_path: Path, targets: dict[int, Target], name: str, report: Callable[[str], None]
) -> None:
    case = CASES[name]
    target = targets[case["hidden"]]
    model, path = load(tmp_path, target, case)
    _, drafter, session = engine(target, path)
    worst = worst_hidden = worst_logits = 0.0
    for prompt in PROMPTS:
        anchor, n = 11, 7
        session.begin([*prompt, anchor], _core.GenerationOptions())
        while session.prefill(512):
            pass
        lattice = drafter.lattice(anchor, n)
        hidden, logits = reference_block(model, target, prompt, anchor, n)
        states = [np.array(part)[1:] for part in drafter.block_states(anchor, n)]
        worst_hidden = max(worst_hidden, relative(states[0], hidden[0].numpy()))
        if name != "v1-softcap":  # llama.cpp's graph leaves version 1's transforms to us; the scores have them
            worst_logits = max(worst_logits, relative(states[1], logits[0].numpy()))
        k = lattice.top_k
        unary, candidates = torch.topk(logits[0], k, dim=-1)
        for t in range(n):
            mine = lattice.candidates(t + 1)
            if case.get("version") == 1:
                scores = np.array(lattice.scores(t + 1)).reshape(-1, k)[0]
                assert mine[:4] == candidates[t, :4].tolist()
                worst = max(worst, relative(scores, unary[t].numpy()))
                continue
            assert set(mine) == set(candidates[t].tolist())
            selector = model.candidate_selector
            h = selector.hidden_projection(hidden)[0, t]
            before = [anchor] if t == 0 else lattice.candidates(t)
            a = selector.predecessor_codebook(torch.tensor(before)) * h
            b = selector.successor_codebook(torch.tensor(mine))
            expected = logits[0, t, torch.tensor(mine)] + a @ b.T
            scores = np.array(lattice.scores(t + 1)).reshape(len(before), k)
            worst = max(worst, relative(scores, expected.detach().numpy()))
        if case.get("version") != 1:
            with torch.no_grad():
                path_tokens, _, _ = selector.select(hidden, logits, torch.tensor([anchor]), 0.0)
            assert lattice.walk().tokens == path_tokens[0].tolist()
            _check_q(model, lattice, hidden, logits, anchor)
    errors = f"hidden {worst_hidden:.1e}, logits {worst_logits:.1e}, scores {worst:.1e}"
    report(f"{name}: largest relative errors: {errors}")
    assert max(worst, worst_hidden, worst_logits) < 1e-4


def _check_q(model: Any, lattice: _core.Lattice, hidden: Any, logits: Any, anchor: int) -> None:
    """The q rows along a sampled path are the reference's softmax rows at that temperature."""
    temperature = 0.7
    walked = lattice.walk(temperature=temperature, seed=3, anchor_position=20)
    selector = model.candidate_selector
    predecessor = anchor
    with torch.no_grad():
        projected = selector.hidden_projection(hidden)
        for t, (token, row) in enumerate(zip(walked.tokens, walked.q, strict=True)):
            ids = torch.tensor([entry.token for entry in row])
            a = selector.predecessor_codebook(torch.tensor(predecessor)) * projected[0, t]
            scores = logits[0, t, ids] + selector.successor_codebook(ids) @ a
            expected = torch.softmax(scores / temperature, dim=-1).numpy()
            np.testing.assert_allclose([entry.probability for entry in row], expected, atol=2e-5)
            predecessor = token


@pytest.mark.parametrize("name", ["small", "v1", "sliding", "softcap"])
@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_generation_equals_the_references(
    tmp_path: Path, targets: dict[int, Target], name: str, block_size: int
) -> None:
    case = {**CASES[name], "block_size": block_size}
    target = targets[case["hidden"]]
    model, path = load(tmp_path, target, case)
    n_tokens = 200
    with LLM(
        target.path, drafter=path, ngram=False, width=block_size - 1, ahead="off", n_ctx=512, type_k="f32",
        type_v="f32", flash_attention="off",
    ) as llm:  # fmt: skip
        for prompt in PROMPTS:
            reference = dflash_generate(
                model, target.model, torch.tensor([prompt]), n_tokens, None, return_stats=False
            )
            tokens = reference[0, len(prompt) :].tolist()
            completion = llm.generate(prompt, max_tokens=n_tokens)
            assert completion.tokens == tokens
            lengths = [e.accepted + 1 for e in completion.stats.timeline if e.name == "verify"]
            assert _reference_lengths(model, target, prompt, n_tokens) == lengths[1:]


def _reference_lengths(model: Any, target: Target, prompt: list[int], n_tokens: int) -> list[int]:
    """The reference's acceptance lengths; its first token comes from the prefill, so ours has one step more."""
    import dflash.model as reference

    clock = reference._cuda_time
    reference._cuda_time = lambda: 0.0  # its statistics synchronise with CUDA
    try:
        result = dflash_generate(model, target.model, torch.tensor([prompt]), n_tokens, None, return_stats=True)
    except ZeroDivisionError:
        raise
    finally:
        reference._cuda_time = clock
    return list(result.acceptance_lengths)


@pytest.mark.parametrize("name", ["small", "v1", "sliding", "multipliers"])
def test_converted_and_back_is_bit_equal(tmp_path: Path, targets: dict[int, Target], name: str) -> None:
    case = CASES[name]
    _, path = load(tmp_path, targets[case["hidden"]], case)
    folder = to_hf(path, tmp_path / "back")
    before = SafetensorsFile(tmp_path / "hf" / "model.safetensors")
    after = SafetensorsFile(folder / "model.safetensors")
    strip = {n.removesuffix(".weight") if "codebook" in n else n: n for n in before.names()}
    assert set(strip) == set(after.names())
    for name_after, name_before in strip.items():
        assert np.array_equal(before.read(name_before), after.read(name_after))
    again = convert(folder, targets[case["hidden"]].path, tmp_path / "again.gguf", outtype="f32")
    assert again.read_bytes() == path.read_bytes()
