"""The Python API: `LLM` keeps a model loaded, `generate` is one call."""

from __future__ import annotations

import copy
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from dflash_cpp import _core, chat, models
from dflash_cpp._core import NgramMap
from dflash_cpp.errors import BusyError, DFlashError
from dflash_cpp.results import Chunk, Completion, FinishReason, Stats

Prompt = str | Sequence[int] | Sequence[chat.Message]
Ahead = Literal["auto", "on", "off"]
Progress = Callable[[str, int, int], None]
"""Called as progress(stage, done, total): "load" in percent, "prefill" in tokens."""

MAX_SEED = 2**64 - 1


def _sampler_options(
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    typical_p: float,
    repeat_penalty: float,
    frequency_penalty: float,
    presence_penalty: float,
    penalty_last_n: int,
    seed: int,
    logit_bias: Mapping[int, float] | None,
    grammar: str | None,
    json_schema: Mapping[str, Any] | str | None,
) -> _core.SamplerOptions:
    if grammar and json_schema:
        raise ValueError("grammar and json_schema are both given; use one")
    options = _core.SamplerOptions()
    options.temperature = temperature
    options.top_k = top_k
    options.top_p = top_p
    options.min_p = min_p
    options.typical_p = typical_p
    options.repeat_penalty = repeat_penalty
    options.frequency_penalty = frequency_penalty
    options.presence_penalty = presence_penalty
    options.penalty_last_n = penalty_last_n
    options.seed = seed
    options.logit_bias = list((logit_bias or {}).items())
    if json_schema:
        text = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
        options.grammar = _core.grammar_of_schema(text)
    else:
        options.grammar = grammar or ""
    return options


def _load_drafter(
    path: str, target: _core.Target, n_gpu_layers: int, n_threads: int, device: str
) -> _core.ModelDrafter:
    """Load a drafter of either kind; the file's architecture tells which."""
    if _core.Drafter.is_drafter_file(path):
        return _core.Drafter(path, target, n_gpu_layers=n_gpu_layers, n_threads=n_threads, device=device)
    if device:
        raise ValueError("drafter_device is for DFlash drafters; a small language model takes n_gpu_layers")
    return _core.SmallModelDrafter(
        path, target, n_ctx=target.n_ctx, n_gpu_layers=n_gpu_layers, n_threads=n_threads
    )


class LLM:
    """A loaded model that writes text, faster where text repeats, with the tokens of plain decoding.

    Parameters
    ----------
    model
        A path to a GGUF, a built-in name (`smollm2`), or `hf:user/repo/file.gguf`.
    drafter
        A path, or `hf:user/repo/file.gguf`: a DFlash or DFlash 2 drafter for this model, or any smaller GGUF
        of the same vocabulary, which then drafts token by token. "auto": the one that this package carries
        for the model, where it carries one. None for no drafter.
    width
        Tokens that the drafter is asked for in each step. "auto": as many as promise the most tokens per second
        by what verifications, drafts and acceptance were measured to be, none where plain decoding is faster.
    ahead
        Whether the drafter works on the next draft while the model verifies the present one: "on", "off", or
        "auto" for as it pays. "on" takes a DFlash drafter.
    ngram
        The k4v table: "auto" or True for a new one, an `NgramMap` to share or keep one, False for none.
    n_ctx
        Tokens that the context holds, prompt and answer together; 0 for the model's own maximum.
    n_gpu_layers
        Layers to keep on the GPU; -1 for all. Without a GPU backend it has no effect.
    n_threads
        CPU threads; None for one per core.
    drafter_device
        Where the drafter's layers go: ggml's name of a device (`CUDA1`, `CPU`), or `rpc:HOST:PORT` for a
        llama.cpp RPC server of the same version; None lets llama.cpp choose.
    drafter_threads
        CPU threads of the drafter; None shares the model's own, which is best where both run on the CPU.
    ahead_outcomes
        Outcomes of a verification that an ahead pass drafts for, 1 to 8.
    n_batch
        Tokens per pass while a prompt is read.
    type_k, type_v
        Types of the KV cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl.
    flash_attention
        "auto", "on" or "off".
    progress
        Called as progress(stage, done, total) while loading ("load", percent) and while a prompt is read
        ("prefill", tokens).
    report
        Called with a line of text per stage of a model download.

    Raises
    ------
    ModelError
        The model is missing, damaged, or not a causal language model.
    IncompatibleDrafterError
        The drafter belongs to another model.
    NgramMapError
        The table belongs to another tokenizer.
    ValueError
        An option is out of range.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2",
        *,
        drafter: str | os.PathLike[str] | None = "auto",
        ngram: Literal["auto"] | bool | NgramMap = "auto",
        width: int | Literal["auto"] = "auto",
        ahead: Ahead = "auto",
        n_ctx: int = 4096,
        n_gpu_layers: int = -1,
        n_threads: int | None = None,
        drafter_device: str | None = None,
        drafter_threads: int | None = None,
        ahead_outcomes: int = 4,
        n_batch: int = 512,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attention: str = "auto",
        progress: Progress | None = None,
        report: models.Report | None = None,
    ) -> None:
        self._target: _core.Target | None = None
        self._session: _core.Session | None = None
        self._in_use = threading.Lock()  # held by a generation from its first token to its last
        self._stepping = threading.Lock()  # held while the core is at work
        self._closing = False
        self._progress = progress
        if not isinstance(ngram, bool | NgramMap) and ngram != "auto":
            raise ValueError(f"ngram is {ngram!r}; use 'auto', True, False or an NgramMap")
        if n_threads is not None and n_threads < 1:
            raise ValueError(f"n_threads is {n_threads}; use 1 or more, or None for one per core")
        if drafter_threads is not None and drafter_threads < 1:
            raise ValueError(f"drafter_threads is {drafter_threads}; use 1 or more, or None to share the model's")
        if width != "auto" and (not isinstance(width, int) or not 1 <= width <= 63):
            raise ValueError(f"width is {width!r}; use 1 to 63, or 'auto'")
        if ahead not in ("auto", "on", "off"):
            raise ValueError(f"ahead is {ahead!r}; use 'auto', 'on' or 'off'")
        if not isinstance(ahead_outcomes, int) or not 1 <= ahead_outcomes <= 8:
            raise ValueError(f"ahead_outcomes is {ahead_outcomes!r}; use 1 to 8")
        path = models.resolve(model, report)
        if drafter == "auto":
            drafter_path = models.shipped_drafter(model)
        else:
            drafter_path = models.resolve(drafter, report) if drafter is not None else None
        self._target = _core.Target(
            str(path),
            n_ctx=n_ctx,
            n_gpu_layers=n_gpu_layers,
            n_threads=n_threads or 0,
            n_batch=n_batch,
            type_k=type_k,
            type_v=type_v,
            flash_attention=flash_attention,
            progress=self._report_load if progress else None,
        )
        self._ngram = ngram if isinstance(ngram, NgramMap) else NgramMap() if ngram else None
        self._drafter: _core.ModelDrafter | None = None
        if drafter_path is not None:
            self._drafter = _load_drafter(
                str(drafter_path), self._target, n_gpu_layers, drafter_threads or 0, drafter_device or ""
            )
        self._session = self._new_session(self._ngram, width, ahead, ahead_outcomes)
        if self._drafter is not None and (costs := models.cost_dir()) is not None:
            self._session.keep_costs(str(costs))

    def _new_session(self, ngram: NgramMap | None, width: int | str, ahead: str, outcomes: int) -> _core.Session:
        assert self._target is not None
        number = 0 if isinstance(width, str) else width
        return _core.Session(self._target, ngram, self._drafter, number, ahead, outcomes)

    def _variant(
        self, *, ngram: NgramMap | None, width: int | Literal["auto"], ahead: str, ahead_outcomes: int = 4
    ) -> LLM:
        """Return another way to decode on the same loaded models; after one has run, reset before another does."""
        other = copy.copy(self)
        other._in_use, other._stepping = threading.Lock(), threading.Lock()
        other._ngram = ngram
        other._session = self._new_session(other._ngram, width, ahead, ahead_outcomes)
        return other

    # -- what it is -----------------------------------------------------------------------------------

    @property
    def ngram(self) -> NgramMap | None:
        """The k4v table in use, None where there is none."""
        return self._ngram

    @property
    def n_ctx(self) -> int:
        """Tokens that the context holds."""
        return self._open_target().n_ctx

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._open_target().vocab_size

    @property
    def description(self) -> str:
        """What the model is: architecture, size, quantisation."""
        return self._open_target().description

    @property
    def chat_template(self) -> str:
        """The model's own chat template; empty where it has none."""
        return self._open_target().chat_template

    # -- text and tokens ------------------------------------------------------------------------------

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Turn text into token ids.

        With `special`, control tokens in the text are recognised and the model's BOS is put in front where
        it wants one.
        """
        return self._open_target().tokenize(text, special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Turn token ids into text, control tokens left out; ValueError on an id out of range."""
        return self._open_target().detokenize(list(tokens), False).decode("utf-8", "replace")

    def render_chat(self, messages: Sequence[chat.Message], **variables: Any) -> str:
        """Render messages with the model's chat template, up to where the answer begins."""
        return chat.render_for(self._open_target(), messages, **variables)

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt in any of its forms: text, token ids or chat messages."""
        items = prompt if isinstance(prompt, str) else list(prompt)
        if isinstance(items, str) or (items and isinstance(items[0], Mapping)):
            return chat.prompt_tokens(self._open_target(), items)  # type: ignore[arg-type]
        for item in items:
            # bool is an int; a list of truths is no prompt.
            if isinstance(item, bool) or not hasattr(item, "__index__"):
                raise ValueError(f"the prompt holds {item!r}; use text, token ids or chat messages")
        return [int(item) for item in items]  # type: ignore[call-overload]

    # -- generation -----------------------------------------------------------------------------------

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Generate a completion of a prompt.

        Parameters
        ----------
        prompt
            Text, token ids, or chat messages.
        max_tokens : int | None
            Most tokens to generate (256); None for as many as the context holds.
        temperature : float
            0 (default) takes the likeliest token; above, tokens are drawn.
        seed : int | None
            The same seed gives the same text; None draws one, `stats.seed` tells which.
        stop : str | Sequence[str] | None
            The text ends before the first of these strings.
        top_k, top_p, min_p, typical_p
            Truncation of the distribution; 0, 1, 0 and 1 (the defaults) are off.
        repeat_penalty, frequency_penalty, presence_penalty, penalty_last_n
            Penalties on the last `penalty_last_n` (64) tokens, the prompt's included; 1, 0 and 0 are off.
        logit_bias : Mapping[int, float] | None
            Added to the logits of these token ids; -inf forbids one.
        grammar : str | None
            A GBNF grammar, with a rule named root, that the text must follow.
        json_schema : Mapping | str | None
            A JSON schema that the text must follow.
        sampling : "coupled" | "rejection"
            How drafts are verified above temperature 0. Coupled (default): the same seed gives the text of
            plain sampling, whatever was drafted. Rejection: accepts the most, follows the same distribution,
            but the text depends on the drafts.

        Returns
        -------
        Completion
            After Ctrl-C the KeyboardInterrupt comes through and the LLM stays usable.

        Raises
        ------
        ValueError
            An option is out of range, the prompt is empty, a token id is out of range.
        ContextOverflowError
            The prompt is longer than the context.
        BusyError
            Another thread, or an open stream, is using this LLM.
        """
        text: list[str] = []
        tokens: list[int] = []
        last: Chunk | None = None
        for last in self.stream(prompt, **options):
            text.append(last.text)
            tokens.extend(last.tokens)
        assert last is not None and last.finish_reason is not None and last.stats is not None
        return Completion("".join(text), tokens, last.finish_reason, last.stats)

    def chat(self, messages: Sequence[chat.Message], **options: Any) -> Completion:
        """Answer chat messages ({"role": ..., "content": ...}); options as for `generate`."""
        chat.check_messages(messages)
        return self.generate(messages, **options)

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        penalty_last_n: int = 64,
        logit_bias: Mapping[int, float] | None = None,
        grammar: str | None = None,
        json_schema: Mapping[str, Any] | str | None = None,
        sampling: Literal["coupled", "rejection"] = "coupled",
    ) -> Iterator[Chunk]:
        """Generate like `generate`, yielding a `Chunk` per step as soon as it is verified.

        Every chunk's text consists of whole characters. Closing the iterator ends the generation. Bad
        options raise here, before the first chunk is asked for.
        """
        if seed is None:
            seed = secrets.randbits(63)
        if not 0 <= seed <= MAX_SEED:
            raise ValueError(f"seed is {seed}; use 0 to 2**64 - 1, or None for a random one")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; use 1 or more, or None for what the context holds")
        options = _core.GenerationOptions()
        options.max_tokens = self.n_ctx if max_tokens is None else min(max_tokens, 2**31 - 1)
        options.stop = [stop] if isinstance(stop, str) else list(stop or [])
        if sampling not in ("coupled", "rejection"):
            raise ValueError(f"sampling is {sampling!r}; use 'coupled' or 'rejection'")
        options.rejection = sampling == "rejection"
        options.sampler = _sampler_options(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            penalty_last_n=penalty_last_n,
            seed=seed,
            logit_bias=logit_bias,
            grammar=grammar,
            json_schema=json_schema,
        )
        tokens = self.prompt_tokens(prompt)
        self._acquire()
        try:
            with self._stepping:
                session = self._open_session()
                session.begin(tokens, options)
        except BaseException:
            self._in_use.release()
            raise
        return _Stream(self, session, seed)

    def _acquire(self) -> None:
        if not self._in_use.acquire(blocking=False):
            raise BusyError(
                "this LLM is generating on another thread, or a stream is still open; "
                "finish or close it, or use one LLM per thread"
            )

    def _steps(self, session: _core.Session, seed: int) -> Iterator[Chunk]:
        """Run a begun generation to its end."""
        total = session.stats.n_prompt
        left = total
        while left > 0 and not self._closing:
            left = session.prefill(2**30)  # one pass of n_batch tokens
            if self._progress:
                self._progress("prefill", total - left, total)
        while not session.finished and not self._closing:
            step = session.step()
            text = step.text.decode("utf-8", "replace")
            if not session.finished:
                yield Chunk(text, step.tokens)
                continue
            reason: FinishReason = "length" if step.finish_reason == "length" else "stop"
            yield Chunk(text, step.tokens, reason, Stats.of(session.stats, seed))
        if not session.finished:
            yield Chunk("", [], "cancelled", Stats.of(session.stats, seed))

    def next_logits(self, tokens: Sequence[int], n_single: int = 1) -> list[float]:
        """Return the logits that follow `tokens`: one number per token id.

        The last `n_single` tokens are decoded one by one, as plain decoding would, the others in batches.
        It is the way to check a near-tie: replay a text and look at its top two.
        """
        self._acquire()
        try:
            with self._stepping:
                return self._open_session().logits(list(tokens), n_single)
        finally:
            self._in_use.release()

    def distribution(self, tokens: Sequence[int], **options: Any) -> dict[int, float]:
        """Return the probabilities that the sampler options give the token after `tokens`.

        Options as for `generate`; tokens of probability 0 are left out, the likeliest comes first.
        Penalties look at no history here.
        """
        defaults: dict[str, Any] = dict(
            temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, repeat_penalty=1.0,
            frequency_penalty=0.0, presence_penalty=0.0, penalty_last_n=64, seed=0, logit_bias=None,
            grammar=None, json_schema=None,
        )  # fmt: skip
        if unknown := options.keys() - defaults.keys():
            raise ValueError(f"unknown sampler option {sorted(unknown)[0]!r}")
        sampler = _sampler_options(**(defaults | options))
        logits = self.next_logits(tokens)
        return dict(_core.distribution(self._open_target(), sampler, logits))

    # -- life -----------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget the KV cache: the next prompt is read from its start. The table keeps what it learned."""
        self._acquire()
        try:
            with self._stepping:
                self._open_session().reset()
        finally:
            self._in_use.release()

    def close(self) -> None:
        """Free the model. An open stream, and a generation on another thread, end as "cancelled"."""
        self._closing = True
        with self._stepping:
            self._session = None
            self._drafter = None
            self._target = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_target(self) -> _core.Target:
        if self._target is None or self._closing:
            raise DFlashError("this LLM is closed")
        return self._target

    def _open_session(self) -> _core.Session:
        if self._session is None or self._closing:
            raise DFlashError("this LLM is closed")
        return self._session

    def _report_load(self, share: float) -> None:
        if self._progress:
            self._progress("load", round(100 * share), 100)


class _Stream(Iterator[Chunk]):
    """The iterator that `LLM.stream` returns; gives the LLM free at its end, at `close`, or when dropped."""

    def __init__(self, llm: LLM, session: _core.Session, seed: int) -> None:
        self._llm: LLM | None = llm
        self._steps = llm._steps(session, seed)

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Chunk:
        if self._llm is None:
            raise StopIteration
        try:
            with self._llm._stepping:
                return next(self._steps)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the generation."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm._in_use.release()

    def __del__(self) -> None:
        self.close()


_LLM_OPTIONS = frozenset(
    ["drafter", "width", "ahead", "ahead_outcomes", "drafter_device", "drafter_threads", "ngram", "n_ctx",
     "n_gpu_layers", "n_threads", "n_batch", "type_k", "type_v", "flash_attention", "progress", "report"]
)  # fmt: skip
_loaded_lock = threading.Lock()
_loaded: tuple[object, LLM] | None = None


def _load(model: str | os.PathLike[str], options: dict[str, Any]) -> LLM:
    """Return the LLM of the last call where model and options are the same, else a new one."""
    global _loaded
    key = (os.fspath(model), tuple(sorted(options.items(), key=lambda item: item[0])))
    if _loaded is not None and _loaded[0] == key:
        return _loaded[1]
    if _loaded is not None:
        _loaded[1].close()
        _loaded = None
    llm = LLM(model, **options)
    _loaded = (key, llm)
    return llm


def generate(
    prompt: Prompt,
    *,
    model: str | os.PathLike[str] = "smollm2",
    drafter: str | os.PathLike[str] | None = "auto",
    max_tokens: int | None = 256,
    temperature: float = 0.0,
    seed: int | None = None,
    **options: Any,
) -> Completion:
    """Generate a completion in one call.

    Takes the options of `LLM` and of `LLM.generate`. The model stays loaded for the next call with the same
    model and load options; calls from several threads take turns.

    Examples
    --------
    >>> import dflash_cpp
    >>> dflash_cpp.generate("Once upon a time", max_tokens=8).text  # doctest: +SKIP
    """
    options["drafter"] = os.fspath(drafter) if drafter is not None else None
    load_options = {name: value for name, value in options.items() if name in _LLM_OPTIONS}
    rest = {name: value for name, value in options.items() if name not in _LLM_OPTIONS}
    with _loaded_lock:
        llm = _load(model, load_options)
        return llm.generate(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed, **rest)
