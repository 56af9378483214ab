"""llama-server against llama-server: the same build, model and prompts, other arguments, all running at once.

Each server answers each prompt once: a k4v table remembers, and the second time it would know the answer.

One client: every server answers a prompt before the next prompt comes, the order rotated, so that ratios are
paired. Several clients: the prompts are dealt out to rounds; in a round each server in its turn gets that round's
prompts at once, and what counts is how many tokens come in all.
"""

from __future__ import annotations

import json
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from dflash_cpp import models, server
from dflash_cpp.bench.intervals import Interval, median_interval
from dflash_cpp.bench.workloads import Turn
from dflash_cpp.errors import DFlashError

BASE = "plain"
SETTLE_SECONDS = 1.0
"""Between two servers: the first one's idle threads spin for a while, on the cores that the second one needs."""


def arguments_of(drafter: str | None, width: int = 5) -> dict[str, list[str]]:
    """Return the built-in comparison: name and llama-server arguments of each.

    Plain; ours, automatic and with a fixed width; the pin's own drafting of that width, and with its table. The
    pin's are given `--poll 0`: with its default, idle threads of the drafter's pool spin on the target's cores.
    """
    ours = ["--spec-type", "draft-dflash-parallel"]
    if not drafter:
        pin = ["--spec-type", "ngram-map-k4v"]
        return {BASE: [], "parallel": ours, "ngram-map-k4v": pin}
    ours += ["-md", drafter]
    fixed = ["--spec-parallel-width", str(width), "--spec-parallel-ahead"]
    pinned = ["-md", drafter, "--spec-draft-n-max", str(width), "--poll", "0", "--spec-type"]
    return {
        BASE: [],
        "parallel": ours,
        f"parallel w{width}": [*ours, *fixed, "off"],
        f"parallel w{width} ahead": [*ours, *fixed, "on"],
        f"draft-dflash w{width}": [*pinned, "draft-dflash"],
        f"draft-dflash,ngram-map-k4v w{width}": [*pinned, "draft-dflash,ngram-map-k4v"],
    }


@dataclass
class ServerRun:
    """What one workload gave.

    Attributes
    ----------
    tokens_per_second
        [server][prompt or round]: of one client's decoding, or of all clients together, prompts read included.
    acceptance
        [server] draft tokens accepted, and drafted.
    parted
        [server] answers whose tokens are not the base's.
    """

    servers: list[str]
    tokens_per_second: dict[str, list[float]] = field(default_factory=dict)
    acceptance: dict[str, tuple[int, int]] = field(default_factory=dict)
    parted: dict[str, int] = field(default_factory=dict)

    def ratio(self, name: str, base: str = BASE) -> Interval:
        """Median of the paired ratios of one server to another."""
        pairs = zip(self.tokens_per_second[name], self.tokens_per_second[base], strict=True)
        return median_interval([a / b for a, b in pairs])

    def speed(self, name: str) -> float:
        """Median tokens/s."""
        return statistics.median(self.tokens_per_second[name])


def post(url: str, body: Mapping[str, Any], seconds: float = 600.0) -> dict[str, Any]:
    """Send JSON, return the JSON that comes back.

    Raises
    ------
    DFlashError
        The server refuses or does not answer.
    """
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (urllib.error.URLError, TimeoutError) as error:
        raise DFlashError(f"{url}: {error}") from error


def measure(
    model: str,
    servers: Mapping[str, Sequence[str]],
    workloads: Mapping[str, Sequence[Turn]],
    *,
    clients: int,
    max_tokens: int,
    rounds: int,
    base: str = BASE,
    on_result: Callable[[], None] = lambda: None,
) -> dict[str, ServerRun]:
    """Start all servers and measure each workload.

    Parameters
    ----------
    model
        As `LLM` takes it.
    servers
        [name] arguments of llama-server.
    workloads
        [name] prompts.
    clients
        1, or how many ask at once (each server then has that many slots).
    max_tokens
        Per answer.
    rounds
        Of several clients, at most one per prompt.
    base
        Whose answers the others' are compared with.
    on_result
        Called after each prompt, or each round of many clients.

    Raises
    ------
    DFlashError
        A server does not start or stops answering.
    """
    path = str(models.resolve(model))
    with ExitStack() as stack:
        fixed = [str(server.binary()), "-m", path, "-np", str(clients), "-c", str(4096 * clients)]
        running = {
            name: stack.enter_context(server.running([*fixed, *arguments])) for name, arguments in servers.items()
        }

        def ask(name: str, item: Turn) -> dict[str, Any]:
            prompt: Any = item.prompt
            if not isinstance(prompt, str):
                prompt = post(f"{running[name].url}/apply-template", {"messages": list(prompt)})["prompt"]
            body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "cache_prompt": False,
                    "return_tokens": True}  # fmt: skip
            return post(f"{running[name].url}/completion", body)

        reports = {}
        for workload, prompts in workloads.items():
            run = reports[workload] = ServerRun(list(servers), {name: [] for name in servers})
            if clients == 1:
                _one_client(run, ask, prompts, base, on_result)
            else:
                _many_clients(run, ask, prompts, clients, rounds, base, on_result)
        return reports


Ask = Callable[[str, Turn], dict[str, Any]]


def _rotated(names: Sequence[str], by: int) -> list[str]:
    shift = by % len(names)
    return [*names[shift:], *names[:shift]]


def _book(run: ServerRun, name: str, answer: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    timings = answer["timings"]
    accepted, drafted = run.acceptance.get(name, (0, 0))
    run.acceptance[name] = (accepted + timings.get("draft_n_accepted", 0), drafted + timings.get("draft_n", 0))
    run.parted[name] = run.parted.get(name, 0) + (answer["tokens"] != expected["tokens"])


def _one_client(
    run: ServerRun, ask: Ask, prompts: Sequence[Turn], base: str, on_result: Callable[[], None]
) -> None:
    for index, item in enumerate(prompts):
        answers = {}
        for name in _rotated(run.servers, index):
            time.sleep(SETTLE_SECONDS)
            answers[name] = ask(name, item)
        for name in run.servers:
            run.tokens_per_second[name].append(answers[name]["timings"]["predicted_per_second"])
            _book(run, name, answers[name], answers[base])
        on_result()


def _many_clients(
    run: ServerRun, ask: Ask, prompts: Sequence[Turn], clients: int, rounds: int, base: str,
    on_result: Callable[[], None],
) -> None:  # fmt: skip
    for number in range(min(rounds, len(prompts))):
        dealt = prompts[number::rounds]
        answers: dict[str, list[dict[str, Any]]] = {}
        for name in _rotated(run.servers, number):
            time.sleep(SETTLE_SECONDS)
            start = time.monotonic()
            with ThreadPoolExecutor(clients) as pool:
                answers[name] = list(pool.map(lambda item, name=name: ask(name, item), dealt))
            tokens = sum(answer["timings"]["predicted_n"] for answer in answers[name])
            run.tokens_per_second[name].append(tokens / (time.monotonic() - start))
        for name, mine in answers.items():
            for answer, expected in zip(mine, answers[base], strict=True):
                _book(run, name, answer, expected)
        on_result()
