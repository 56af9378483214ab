"""Any OpenAI-compatible server (llama-server, vLLM, SGLang, ...), driven with the bench's workloads by N clients.

Measured from outside: the time to the first piece of an answer, the speed from there to the last, and what all
clients get together. Several servers answer the same items in turn, the order rotated, and are compared in pairs.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

from dflash_cpp.bench.guard import Repetition, judge
from dflash_cpp.bench.intervals import Interval, median_interval
from dflash_cpp.bench.workloads import Item
from dflash_cpp.errors import DFlashError

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True)
class Request:
    """One answered turn.

    Attributes
    ----------
    name
        The turn's.
    n_tokens, prompt_tokens
        As the server counts them; pieces received, and 0, where it does not tell.
    first_seconds
        From asking to the first piece.
    seconds
        From asking to the last.
    repetition
        How much the answer repeats itself, judged by its words.
    timings
        What llama-server adds, {} of others.
    """

    name: str
    n_tokens: int
    prompt_tokens: int
    first_seconds: float
    seconds: float
    text: str
    repetition: Repetition
    timings: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """From the first piece to the last."""
        return (self.n_tokens - 1) / max(1e-9, self.seconds - self.first_seconds) if self.n_tokens > 1 else 0.0


@dataclass
class ServerReport:
    """What one server did with one workload."""

    requests: list[Request]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of all clients together, reading included."""
        return sum(request.n_tokens for request in self.requests) / max(1e-9, self.seconds)

    @property
    def speed(self) -> float:
        """Median of the single answers'."""
        return statistics.median(request.tokens_per_second for request in self.requests)

    @property
    def first_seconds(self) -> float:
        """Median time to the first piece."""
        return statistics.median(request.first_seconds for request in self.requests)

    @property
    def n_loops(self) -> int:
        """Answers that the guard flags."""
        return sum(request.repetition.loops for request in self.requests)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "requests": [asdict(request) for request in self.requests], "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second, "speed": self.speed, "first_seconds": self.first_seconds,
        }  # fmt: skip


def connect(url: str, api_key: str | None, seconds: float = 600.0) -> OpenAI:
    """Return a client of a server; its address may end in /v1 or not.

    Raises
    ------
    ValueError
        The address is none, or the package openai is missing.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--url is '{url}'; write http://HOST:PORT")
    try:
        from openai import OpenAI
    except ImportError as error:
        raise ValueError("bench serve needs the package openai: pip install 'dflash-cpp[serve]'") from error
    base = url.rstrip("/")
    base = base if base.endswith("/v1") else f"{base}/v1"
    return OpenAI(base_url=base, api_key=api_key or "none", timeout=seconds, max_retries=0)


def first_model(client: OpenAI) -> str:
    """Return the name of the first model that the server offers.

    Raises
    ------
    DFlashError
        It does not answer, or offers none.
    """
    import openai

    try:
        models = [model.id for model in client.models.list()]
    except openai.OpenAIError as error:
        raise DFlashError(f"{client.base_url} does not answer as an OpenAI server: {error}") from error
    if not models:
        raise DFlashError(f"{client.base_url} offers no model; name one with --served-model")
    return models[0]


def ask(client: OpenAI, model: str, item: Item, index: int, answers: Sequence[str], max_tokens: int) -> Request:
    """Ask one turn, streamed, greedy.

    Raises
    ------
    DFlashError
        The server refuses, or stops answering.
    """
    import openai

    prompt = item.prompt(index, answers)
    options: dict[str, Any] = {"model": model, "max_tokens": item.max_tokens or max_tokens, "temperature": 0,
                               "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    began = time.perf_counter()
    first = last = 0.0
    pieces: list[str] = []
    usage: Any = None
    timings: dict[str, Any] = {}
    try:
        if isinstance(prompt, str):
            stream: Any = client.completions.create(prompt=prompt, **options)
        else:
            if item.json_schema:
                schema = {"name": "answer", "schema": item.json_schema, "strict": True}
                options["response_format"] = {"type": "json_schema", "json_schema": schema}
            stream = client.chat.completions.create(messages=cast(Any, list(prompt)), **options)
        for chunk in stream:
            usage = chunk.usage or usage
            timings = getattr(chunk, "timings", None) or timings
            choice = chunk.choices[0] if chunk.choices else None
            text = (choice.text if isinstance(prompt, str) else choice.delta.content) if choice else None
            if text:
                last = time.perf_counter()
                first = first or last
                pieces.append(text)
    except openai.OpenAIError as error:
        raise DFlashError(f"{client.base_url}: {item.turns[index].name}: {error}") from error
    answer = "".join(pieces)
    words = answer.split()
    known = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return Request(
        name=item.turns[index].name,
        n_tokens=usage.completion_tokens if usage else len(pieces),
        prompt_tokens=usage.prompt_tokens if usage else 0,
        first_seconds=(first or time.perf_counter()) - began,
        seconds=(last or time.perf_counter()) - began,
        text=answer,
        repetition=judge([known[word] for word in words], answer),
        timings=dict(timings),
    )


def drive(
    client: OpenAI, model: str, items: Sequence[Item], *, clients: int, max_tokens: int,
    on_turn: Callable[[], None] = lambda: None,
) -> ServerReport:  # fmt: skip
    """Let N clients ask a server all items; an item's turns are asked in order, each after its own answers.

    Raises
    ------
    DFlashError
        A request failed; the others are given up.
    """
    stop = threading.Event()

    def talk(item: Item) -> list[Request]:
        requests: list[Request] = []
        for index in range(len(item.turns)):
            if stop.is_set():
                break
            try:
                requests.append(ask(client, model, item, index, [r.text for r in requests], max_tokens))
            except BaseException:
                stop.set()
                raise
            on_turn()
        return requests

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answered = [request for requests in pool.map(talk, items) for request in requests]
    return ServerReport(answered, time.perf_counter() - began)


Reports = dict[str, dict[str, ServerReport]]
"""[workload][server]."""


def measure(
    servers: Mapping[str, tuple[OpenAI, str]], workloads: Mapping[str, Sequence[Item]], *, clients: int,
    max_tokens: int, on_turn: Callable[[], None] = lambda: None,
) -> Reports:  # fmt: skip
    """Drive every server with every workload.

    One client: the servers take turns item by item. More: a server at a time answers the whole workload.

    Parameters
    ----------
    servers
        [name] a client and the model to ask for.
    workloads
        [name] items.
    clients
        How many ask at once.
    max_tokens
        Per answer.

    Raises
    ------
    DFlashError
        A request failed.
    """
    reports: Reports = {}
    names = list(servers)
    for number, (workload, items) in enumerate(workloads.items()):
        mine = reports[workload] = {name: ServerReport([], 0.0) for name in names}
        dealt = [[item] for item in items] if clients == 1 else [list(items)]
        for turn, some in enumerate(dealt):
            shift = (number + turn) % len(names)
            for name in [*names[shift:], *names[:shift]]:
                client, model = servers[name]
                got = drive(client, model, some, clients=clients, max_tokens=max_tokens, on_turn=on_turn)
                mine[name].requests += got.requests
                mine[name].seconds += got.seconds
    return reports


def ratio(report: ServerReport, base: ServerReport) -> Interval:
    """Paired ratio of the single answers' speeds, over those that loop in neither."""
    pairs = zip(report.requests, base.requests, strict=True)
    return median_interval([
        a.tokens_per_second / b.tokens_per_second for a, b in pairs
        if b.tokens_per_second > 0 and not (a.repetition.loops or b.repetition.loops)
    ])  # fmt: skip
