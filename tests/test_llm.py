"""The Python API: completions, streams, chat, reuse, threads, interruption."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from tiny_models import write_tiny_llama

import dflash_cpp
from dflash_cpp import LLM, BusyError, NgramMap

CHAT = [{"role": "user", "content": "Say hello."}]


def test_generate_in_one_call(smollm2: Path) -> None:
    first = dflash_cpp.generate("The capital of France is", model=smollm2, max_tokens=8, n_ctx=256)
    again = dflash_cpp.generate("The capital of France is", model=smollm2, max_tokens=8, n_ctx=256)
    assert " Paris" in first.text
    assert first.tokens == again.tokens
    assert again.stats.reused_tokens > 0  # the model stayed loaded


def test_completion_and_stats_are_consistent(k4v: LLM) -> None:
    prompt = k4v.tokenize("Row, row, row your boat, gently down the stream. " * 4)
    completion = k4v.generate(prompt, max_tokens=40)
    stats = completion.stats
    assert completion.finish_reason == "length"
    assert stats.prompt_tokens == len(prompt)
    assert stats.completion_tokens == len(completion.tokens) == 40
    assert completion.text == k4v.detokenize(completion.tokens)
    assert stats.acceptance_length == pytest.approx(40 / stats.verifications)
    assert stats.tokens_per_second == pytest.approx(40 / stats.decode_seconds)
    ngram = stats.sources["ngram"]
    assert ngram["proposals"] <= ngram["proposed"] and ngram["accepted"] <= ngram["proposed"]
    # Every verification commits its accepted tokens and one more.
    assert stats.completion_tokens == ngram["accepted"] + stats.verifications
    assert all(0 <= share <= 1 for share in stats.acceptance_by_position)
    assert (
        stats.acceptance_by_position == sorted(stats.acceptance_by_position, reverse=True)
        or ngram["proposals"] > 1
    )


def test_timeline_covers_the_decoding_without_overlaps(k4v: LLM) -> None:
    completion = k4v.generate("Once upon a time", max_tokens=24)
    steps = [e for e in completion.stats.timeline if e.name not in ("begin", "prefill")]
    assert sum(e.name == "verify" for e in steps) == completion.stats.verifications
    covered = sum(e.end - e.start for e in steps)
    assert covered == pytest.approx(completion.stats.decode_seconds, rel=0.02, abs=2e-4)
    for a, b in itertools.pairwise(steps):
        assert a.start <= a.end <= b.start + 1e-6


def test_end_of_text_stops(plain: LLM) -> None:
    completion = plain.chat(CHAT, max_tokens=100)
    assert completion.finish_reason == "stop"
    assert "<|im_end|>" not in completion.text
    assert completion.stats.acceptance_length == 1.0


def test_stop_string_ends_the_text_before_it(k4v: LLM) -> None:
    whole = k4v.generate("Count: one, two, three,", max_tokens=30).text
    stop = whole[10:14]
    completion = k4v.generate("Count: one, two, three,", max_tokens=30, stop=stop)
    assert completion.finish_reason == "stop"
    assert completion.text == whole[: whole.index(stop)]
    several = k4v.generate("Count: one, two, three,", max_tokens=30, stop=["never there", stop])
    assert several.text == completion.text


def test_stream_gives_the_completion_in_pieces(k4v: LLM) -> None:
    prompt = "Row, row, row your boat, gently down the stream. " * 4
    chunks = list(k4v.stream(prompt, max_tokens=32))
    completion = k4v.generate(prompt, max_tokens=32)
    assert "".join(c.text for c in chunks) == completion.text
    assert [t for c in chunks for t in c.tokens] == completion.tokens
    assert all(c.finish_reason is None and c.stats is None for c in chunks[:-1])
    assert chunks[-1].finish_reason == "length"
    assert chunks[-1].stats is not None


def test_stream_never_splits_a_character(plain: LLM) -> None:
    # A grammar that forces characters which this tokenizer spells in several tokens.
    grammar = 'root ::= ("\U0001f600" | "\u20ac" | "\u65e5")+'
    for seed in range(3):
        chunks = list(plain.stream("Emoji:", max_tokens=24, temperature=1.5, seed=seed, grammar=grammar))
        text = "".join(c.text for c in chunks[:-1])
        assert "\ufffd" not in text
        assert set(text) <= set("\U0001f600\u20ac\u65e5")
        assert any(c.tokens and not c.text for c in chunks)  # a part was held back


def test_stream_can_be_left_early(k4v: LLM) -> None:
    for i, _ in enumerate(k4v.stream("Once upon a time", max_tokens=100)):
        if i == 3:
            break
    assert k4v.generate("Once upon a time", max_tokens=4).stats.completion_tokens == 4


def test_open_stream_keeps_the_llm_busy(k4v: LLM) -> None:
    stream = k4v.stream("Once upon a time", max_tokens=50)
    next(stream)
    with pytest.raises(BusyError, match="stream is still open"):
        k4v.generate("hello", max_tokens=2)
    with pytest.raises(BusyError):
        k4v.reset()
    stream.close()  # type: ignore[attr-defined]
    assert list(stream) == []
    k4v.generate("hello", max_tokens=2)


def test_second_thread_gets_a_clear_error(k4v: LLM) -> None:
    started = threading.Event()
    results: list[object] = []

    def first() -> None:
        for chunk in k4v.stream("Once upon a time there was", max_tokens=60):
            started.set()
            results.append(chunk)

    thread = threading.Thread(target=first)
    thread.start()
    started.wait(20)
    with pytest.raises(BusyError, match="another thread"):
        k4v.generate("hello", max_tokens=2)
    thread.join()
    assert results


def test_core_session_refuses_a_second_thread(smollm2: Path) -> None:
    """The guard below the Python lock: one core session entered from two threads."""
    from dflash_cpp import _core

    target = _core.Target(
        str(smollm2), n_ctx=1024, n_gpu_layers=0, n_threads=1, n_batch=512, type_k="f16", type_v="f16",
        flash_attention="auto", progress=None,
    )  # fmt: skip
    session = _core.Session(target, None)
    session.begin(list(range(100, 700)), _core.GenerationOptions())
    thread = threading.Thread(target=session.prefill, args=(512,))
    thread.start()
    threading.Event().wait(0.05)  # the pass takes far longer
    with pytest.raises(BusyError):
        session.reset()
    thread.join()


def test_gil_is_free_while_generating(plain: LLM) -> None:
    ticks = 0
    done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=count)
    thread.start()
    plain.generate([7] * 700, max_tokens=1)  # two prefill passes, each far longer than a tick
    done.set()
    thread.join()
    assert ticks > 20


def test_chat_uses_the_models_template(plain: LLM) -> None:
    text = plain.render_chat([{"role": "system", "content": "Be brief."}, *CHAT])
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = plain.prompt_tokens(CHAT)
    assert plain.detokenize(tokens).count("Say hello.") == 1
    assert plain.generate(CHAT, max_tokens=8).tokens == plain.chat(CHAT, max_tokens=8).tokens


def test_hostile_template_is_contained(tmp_path: Path) -> None:
    template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    path = write_tiny_llama(tmp_path / "hostile.gguf", chat_template=template)
    with (
        LLM(path, n_ctx=64, n_threads=1) as llm,
        pytest.raises(dflash_cpp.ModelError, match="chat template refuses"),
    ):
        llm.chat(CHAT)


def test_template_may_refuse(tmp_path: Path) -> None:
    path = write_tiny_llama(
        tmp_path / "strict.gguf", chat_template="{{ raise_exception('roles must alternate') }}"
    )
    with (
        LLM(path, n_ctx=64, n_threads=1) as llm,
        pytest.raises(dflash_cpp.ModelError, match="roles must alternate"),
    ):
        llm.chat(CHAT)


def test_bos_is_there_once(tiny: LLM, tmp_path: Path) -> None:
    assert tiny.tokenize("abc")[0] == 1
    assert tiny.tokenize("abc", special=False)[0] != 1
    path = write_tiny_llama(tmp_path / "bos.gguf", chat_template="{{ bos_token }}{{ messages[0].content }}")
    with LLM(path, n_ctx=64, n_threads=1) as llm:
        assert llm.prompt_tokens([{"role": "user", "content": "abc"}])[:2] == [
            1,
            llm.tokenize("a", special=False)[0],
        ]


def test_tokens_and_text_convert_both_ways(plain: LLM) -> None:
    text = "def f(x):\n    return x + 1  # caf\u00e9 \U0001f600\n"
    assert plain.detokenize(plain.tokenize(text)) == text
    assert plain.tokenize("") == []


def test_second_generation_reuses_the_common_prefix(k4v: LLM) -> None:
    base = k4v.tokenize("The quick brown fox jumps over the lazy dog and then")
    k4v.reset()
    assert k4v.generate(base, max_tokens=4).stats.reused_tokens == 0
    again = k4v.generate([*base, *k4v.tokenize(" it runs")], max_tokens=4)
    assert again.stats.reused_tokens == len(base)
    other = k4v.generate(k4v.tokenize("Something else entirely"), max_tokens=4)
    assert other.stats.reused_tokens == 0


def test_context_fills_up_to_its_end(tiny: LLM) -> None:
    completion = tiny.generate([5] * 200, max_tokens=None, logit_bias={2: float("-inf")})
    assert completion.finish_reason == "length"
    assert 200 + completion.stats.completion_tokens == tiny.n_ctx + 1


def test_shared_table_serves_two_models_at_once(tiny_path: Path) -> None:
    table = NgramMap(size_n=3, size_n_min=2)
    with (
        LLM(tiny_path, ngram=table, n_ctx=256, n_threads=1) as a,
        LLM(tiny_path, ngram=table, n_ctx=256, n_threads=1) as b,
        LLM(tiny_path, ngram=False, n_ctx=256, n_threads=1) as plain,
    ):
        expected = {p: plain.generate(p, max_tokens=60).tokens for p in ("abc abc", "xyz xyz")}
        found: dict[str, list[int]] = {}
        threads = [
            threading.Thread(target=lambda m=m, p=p: found.__setitem__(p, m.generate(p, max_tokens=60).tokens))
            for m, p in ((a, "abc abc"), (b, "xyz xyz"))
        ]
        for thread in threads:
            thread.start()
        for _ in range(200):
            table.propose()
        for thread in threads:
            thread.join()
        assert found == expected
        interleaved = zip(a.stream("abc abc", max_tokens=60), b.stream("xyz xyz", max_tokens=60), strict=False)
        list(interleaved)


def test_table_learns_across_generations(smollm2: Path, tmp_path: Path) -> None:
    table = NgramMap()
    messages = [{"role": "user", "content": "Write a Python function that reverses a string."}]
    with LLM(smollm2, ngram=table, n_ctx=512) as llm:
        first = llm.chat(messages, max_tokens=48)
        second = llm.chat(messages, max_tokens=48)
        table.save(str(tmp_path / "table"))
    with LLM(smollm2, ngram=NgramMap.load(str(tmp_path / "table")), n_ctx=512) as llm:
        third = llm.chat(messages, max_tokens=48)
    assert first.tokens == second.tokens == third.tokens
    assert second.stats.verifications < first.stats.verifications
    assert third.stats.verifications < first.stats.verifications


def test_close_ends_a_generation_on_another_thread(smollm2: Path) -> None:
    llm = LLM(smollm2, n_ctx=1024)
    reasons: list[object] = []
    started = threading.Event()

    def run() -> None:
        for chunk in llm.stream("Once upon a time", max_tokens=900):
            started.set()
            reasons.append(chunk.finish_reason)

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(20)
    llm.close()
    thread.join(20)
    assert not thread.is_alive()
    assert reasons[-1] == "cancelled"


def test_close_with_a_stream_left_open_does_not_hang(tiny_path: Path) -> None:
    llm = LLM(tiny_path, n_ctx=128, n_threads=1)
    stream = llm.stream("abc", max_tokens=50)
    next(stream)
    llm.close()
    assert [chunk.finish_reason for chunk in stream] == ["cancelled"]
    with pytest.raises(dflash_cpp.DFlashError, match="closed"):
        llm.generate("abc")


def test_ctrl_c_stops_and_leaves_the_object_usable(smollm2: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, dflash_cpp
        llm = dflash_cpp.LLM(sys.argv[1], n_ctx=4096)
        for prompt in ("Once upon a time", [7] * 4000):
            try:
                print("started", flush=True)
                llm.generate(prompt, max_tokens=3000, logit_bias={2: float("-inf"), 0: float("-inf")})
                print("not interrupted", flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        print(len(llm.generate("hello", max_tokens=3).tokens), flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(smollm2)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == "started\n"
        threading.Event().wait(0.5)
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
    assert process.stdout.readline() == "3\n"
    assert process.wait(20) == 0


def test_progress_is_reported(smollm2: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with LLM(smollm2, n_ctx=2048, progress=lambda *event: seen.append(event)) as llm:
        llm.generate([7] * 1200, max_tokens=1)
    loads = [done for stage, done, _ in seen if stage == "load"]
    reads = [(done, total) for stage, done, total in seen if stage == "prefill"]
    assert loads == sorted(loads) and loads[-1] == 100
    assert reads[-1] == (1200, 1200)
    assert len(reads) == 3


@pytest.mark.parametrize("n_ctx", [16, 40, 130])
def test_a_context_smaller_than_a_batch(tiny_path: Path, n_ctx: int) -> None:
    """llama.cpp cuts its batches to a small context, and rounds the context itself up."""
    with LLM(tiny_path, n_ctx=n_ctx, n_threads=1) as llm:
        prompt = llm.tokenize("abc " * (llm.n_ctx // 4 - 20))
        assert len(prompt) > n_ctx
        letters = {token: -math.inf for token in range(3)}  # it would end at once
        first = llm.generate(prompt, max_tokens=60, logit_bias=letters)
        again = llm.generate(prompt, max_tokens=60, logit_bias=letters)  # the table knows it now
        assert len(first.tokens) == 60 and again.tokens == first.tokens


def test_quantised_kv_cache_works(smollm2: Path) -> None:
    with LLM(smollm2, n_ctx=256, type_k="q8_0", type_v="q8_0") as llm:
        assert " Paris" in llm.generate("The capital of France is", max_tokens=8).text
