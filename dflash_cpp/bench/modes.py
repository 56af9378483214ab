"""Ways to decode, by name: ours, and llama.cpp's own at the pin, on the same loaded weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from dflash_cpp import _core
from dflash_cpp._core import NgramMap
from dflash_cpp.llm import LLM, Ahead, Prompt
from dflash_cpp.results import Completion, Stats

UPSTREAM = "upstream:"
UPSTREAM_PARTS = ("none", "draft-", "ngram-")
"""How the names of llama.cpp's types begin: after an upstream mode and a comma, these go on with it."""
DRAFTER = "drafter"
"""The name of the drafter that was given without one."""


@dataclass(frozen=True)
class Mode:
    """A way to decode.

    Attributes
    ----------
    name
        As it was asked for.
    ngram
        Whether our k4v table drafts.
    size_n, size_m
        Its longest key and value.
    drafter
        Name of the drafter; "" for none.
    width, ahead
        As for `LLM`; of llama.cpp's own speculation `width` only, 0 for its default.
    upstream
        llama.cpp's speculative types, with commas; "" for our own drafting.
    """

    name: str
    ngram: bool = False
    size_n: int = 12
    size_m: int = 48
    drafter: str = ""
    width: int | Literal["auto"] = "auto"
    ahead: Ahead = "auto"
    upstream: str = ""


PLAIN = Mode("plain")
MODES = ["plain", "k4v", "drafter", "auto"]
"""Measured where nothing else is asked for."""
STATIC_MODES = [
    "plain", "k4v", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w2+k4v", "w5+k4v", "w2+ahead", "w5+ahead",
    "drafter", "auto",
]  # fmt: skip
"""The automatic choice (the last two) against what could be set by hand."""
PEER_MODES = [
    "upstream:none", "upstream:ngram-map-k4v", "upstream:draft-dflash@3", "upstream:draft-dflash@5",
    "upstream:draft-dflash,ngram-map-k4v@5",
]  # fmt: skip
"""llama.cpp's own."""
ALL_MODES = ["plain", "k4v", "w3", "w5", "w7", "w5+k4v", "w5+ahead", "drafter", "auto", *PEER_MODES]
"""What docs/results.md compares."""
MODE_SETS: dict[str | None, list[str]] = {None: MODES, "static": STATIC_MODES, "all": ALL_MODES}


def split_modes(text: str) -> list[str]:
    """Split a list of modes at its commas, but for those within an upstream mode.

    >>> split_modes("k4v,upstream:draft-dflash,ngram-map-k4v@5,w5")
    ['k4v', 'upstream:draft-dflash,ngram-map-k4v@5', 'w5']
    """
    names: list[str] = []
    for part in text.split(","):
        goes_on = names and names[-1].startswith(UPSTREAM) and "@" not in names[-1]
        if goes_on and part.startswith(UPSTREAM_PARTS):
            names[-1] += f",{part}"
        else:
            names.append(part)
    return names


def parse_mode(name: str, drafters: Sequence[str] = (DRAFTER,)) -> Mode:
    """Return the mode of a name.

    "plain"; "auto", which is "drafter+k4v"; of k4v (or k4v:N:M, its longest key and value), a drafter's name, wN
    (a fixed width) and ahead those joined by "+"; or "upstream:" and llama.cpp's speculative types, "@N" behind
    them for a width. A fixed width drafts in turn unless "ahead" stands with it; a drafter alone decides both.

    Raises
    ------
    ValueError
        The name has another part.
    """
    if name == "plain":
        return PLAIN
    if name.startswith(UPSTREAM):
        return _upstream_mode(name)
    mode = Mode(name)
    for part in ("drafter+k4v" if name == "auto" else name).split("+"):
        if part == "k4v":
            mode = replace(mode, ngram=True)
        elif match := re.fullmatch(r"k4v:(\d{1,3}):(\d{1,3})", part):
            mode = replace(mode, ngram=True, size_n=int(match[1]), size_m=int(match[2]))
        elif part in drafters:
            mode = replace(mode, drafter=part)
        elif part == "ahead":
            mode = replace(mode, ahead="on")
        elif part[:1] == "w" and part[1:].isdecimal() and 1 <= int(part[1:]) <= 63:
            mode = replace(mode, width=int(part[1:]))
        else:
            raise ValueError(
                f"mode '{name}' has a part '{part}'; join k4v, {', '.join(drafters)}, wN and ahead by +, or say "
                "plain, auto, or upstream: and llama.cpp's types"
            )
    if mode.width != "auto" or mode.ahead == "on":
        mode = replace(mode, drafter=mode.drafter or DRAFTER, ahead="on" if mode.ahead == "on" else "off")
    return mode


def _upstream_mode(name: str) -> Mode:
    types, at, width = name.removeprefix(UPSTREAM).partition("@")
    if not types or (at and not (width.isdecimal() and 1 <= int(width) <= 63)):
        raise ValueError(
            f"mode '{name}' is none of llama.cpp's; write upstream:draft-dflash or upstream:draft-dflash@5"
        )
    uses_drafter = any(kind in types.split(",") for kind in ("draft-dflash", "draft-simple"))
    return Mode(name, drafter=DRAFTER if uses_drafter else "", width=int(width or 0), upstream=types)


def parse_modes(text: str | None, drafters: Sequence[str] = (DRAFTER,)) -> list[Mode]:
    """Return the modes of a list with commas, or of a set by its name (static, all; None for the default).

    Of a set those that want a drafter are left out where there is none.

    Raises
    ------
    ValueError
        A mode is unknown, or was asked for by name and wants a drafter that there is none of.
    """
    is_set = text in MODE_SETS
    names = MODE_SETS[text] if is_set else split_modes(text or "")
    modes = [parse_mode(name, drafters or (DRAFTER,)) for name in names]
    missing = [mode for mode in modes if mode.drafter and mode.drafter not in drafters]
    if missing and not is_set:
        raise ValueError(f"mode '{missing[0].name}' asks for a drafter and there is none; give --drafter")
    return [mode for mode in modes if mode not in missing]


class Decoder(Protocol):
    """What a mode is measured through."""

    def generate(self, prompt: Prompt, *, max_tokens: int, json_schema: Any = None) -> Completion:
        """Decode greedily after a prompt."""

    def forget(self) -> None:
        """Start over: no table entries, no cached text."""


class OwnDecoder:
    """One of our modes: a variant of a loaded LLM."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def generate(self, prompt: Prompt, *, max_tokens: int, json_schema: Any = None) -> Completion:
        """Decode greedily; the KV cache is read anew, another mode has used it meanwhile."""
        self.llm.reset()
        return self.llm.generate(prompt, max_tokens=max_tokens, json_schema=json_schema)

    def forget(self) -> None:
        """Empty the table."""
        if isinstance(self.llm.ngram, NgramMap):
            self.llm.ngram.clear()


class UpstreamDecoder:
    """llama.cpp's own speculative decoding on the weights of a loaded LLM.

    Raises
    ------
    ValueError, ModelError, IncompatibleDrafterError
        The types, the drafter, or llama.cpp itself.
    """

    def __init__(self, llm: LLM, mode: Mode, drafter: str, n_gpu_layers: int = -1) -> None:
        self._llm = llm
        width = mode.width if isinstance(mode.width, int) else 0

        def peer() -> _core.Peer:
            return _core.Peer(
                llm._open_target(), types=mode.upstream, drafter=drafter, width=width, n_gpu_layers=n_gpu_layers
            )

        self._make, self._peer = peer, peer()

    def generate(self, prompt: Prompt, *, max_tokens: int, json_schema: Any = None) -> Completion:
        """Decode greedily."""
        schema = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
        grammar = _core.grammar_of_schema(schema) if json_schema else ""
        tokens = self._peer.generate(self._llm.prompt_tokens(prompt), max_tokens, grammar)
        reason: Literal["length", "stop"] = "length" if len(tokens) >= max_tokens else "stop"
        return Completion(self._llm.detokenize(tokens), tokens, reason, Stats.of(self._peer.stats, 0))

    def forget(self) -> None:
        """Start llama.cpp's speculation anew, its tables empty."""
        self._peer.reset()


class ModePool:
    """Decoders by mode: each pair of target and drafter is loaded once and shared by all its modes.

    Parameters
    ----------
    load
        Loads the model with the drafter of a path, or with None.
    drafters
        [name] path.
    pace
        Milliseconds that a verification and a drafter's pass take at least, the rest slept; of our modes.
    outcomes
        As `LLM`'s ahead_outcomes.
    n_gpu_layers
        Of llama.cpp's draft models.
    """

    def __init__(
        self,
        load: Callable[[str | None], LLM],
        drafters: Mapping[str, str],
        *,
        pace: tuple[float, float] = (0.0, 0.0),
        outcomes: int = 4,
        n_gpu_layers: int = -1,
    ) -> None:
        self._load, self._drafters = load, dict(drafters)
        self._pace, self._outcomes, self._n_gpu_layers = pace, outcomes, n_gpu_layers
        self._bases: dict[str, LLM] = {}
        self._decoders: dict[str, Decoder] = {}

    def base(self, drafter: str = "") -> LLM:
        """Return the loaded LLM with a drafter, or the one without."""
        if drafter not in self._bases:
            base = self._bases[drafter] = self._load(self._drafters[drafter] if drafter else None)
            base._open_target().set_pace(round(1e3 * self._pace[0]))
            if isinstance(base._drafter, _core.Drafter):
                base._drafter.set_pace(round(1e3 * self._pace[1]))
        return self._bases[drafter]

    def __call__(self, mode: Mode) -> Decoder:
        """Return the decoder of a mode, always the same one."""
        if mode.name not in self._decoders:
            self._decoders[mode.name] = self._decoder(mode)
        return self._decoders[mode.name]

    def _decoder(self, mode: Mode) -> Decoder:
        if mode.upstream:
            drafter = self._drafters[mode.drafter] if mode.drafter else ""
            return UpstreamDecoder(self.base(), mode, drafter, self._n_gpu_layers)
        table = NgramMap(mode.size_n, mode.size_m, min(3, mode.size_n)) if mode.ngram else None
        ahead = mode.ahead if mode.drafter else "auto"
        variant = self.base(mode.drafter)._variant(
            ngram=table, width=mode.width, ahead=ahead, ahead_outcomes=self._outcomes
        )
        return OwnDecoder(variant)

    def close(self) -> None:
        """Free the models."""
        own = [decoder.llm for decoder in self._decoders.values() if isinstance(decoder, OwnDecoder)]
        self._decoders.clear()
        for llm in [*own, *self._bases.values()]:
            llm.close()
