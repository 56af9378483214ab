"""Paired measurement: every mode on every turn, interleaved, the order rotated by turn and round.

The target is loaded once per drafter and its memory shared by all modes, so that nothing but the mode differs.
Tables start empty with each item and are kept through its turns; the KV cache starts empty with each generation,
another mode has used it meanwhile. Earlier turns' answers, where a turn is asked with them, are the base's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from dflash_cpp.bench.guard import judge
from dflash_cpp.bench.modes import Decoder, Mode
from dflash_cpp.bench.record import Generation, Round, TurnResult, without_timeline
from dflash_cpp.bench.workloads import Item
from dflash_cpp.llm import LLM
from dflash_cpp.results import Completion, TimelineEvent

NEAR_TIE = 0.05
"""Logit gap below which batched and single-row kernels may disagree on the argmax."""
TIMELINE_PASSES = 12
"""Verifications of a turn whose timeline is kept."""


def top_two_gap(llm: LLM, tokens: Sequence[int], n_single: int) -> float:
    """Gap between the two largest logits after `tokens`, replayed as plain decoding would."""
    largest = sorted(llm.next_logits(tokens, n_single), reverse=True)[:2]
    return largest[0] - largest[1]


def divergence(llm: LLM, prompt: Sequence[int], base: Sequence[int], other: Sequence[int]) -> str:
    """Compare two greedy answers: "" where equal, else where they part and whether a near-tie excuses it."""
    if list(base) == list(other):
        return ""
    shorter = min(len(base), len(other))
    at = next((i for i, (a, b) in enumerate(zip(base, other, strict=False)) if a != b), shorter)
    gap = top_two_gap(llm, [*prompt, *base[:at]], at + 1)
    return f"near-tie at {at}" if gap < NEAR_TIE else f"WRONG at {at}"


def middle(timeline: Sequence[TimelineEvent], n_passes: int = TIMELINE_PASSES) -> list[TimelineEvent]:
    """Return what ran during some verifications in the middle of a generation."""
    passes = [event for event in timeline if event.name == "verify"]
    first = max(0, len(passes) // 2 - n_passes // 2)
    shown = passes[first : first + n_passes]
    if not shown:
        return []
    begin, end = shown[0].start, shown[-1].end
    return [event for event in timeline if event.end > begin and event.start < end]


class Runner:
    """Measures items in modes.

    Parameters
    ----------
    decoder_of
        Gives the decoder of a mode.
    judge_with
        An LLM without a drafter, to replay where two modes' tokens part; a grammar is left out of the replay,
        which only widens what counts as wrong.
    modes
        The base first.
    max_tokens
        Per answer, where an item says nothing else.
    """

    def __init__(
        self, decoder_of: Callable[[Mode], Decoder], judge_with: LLM, modes: Sequence[Mode], *, max_tokens: int
    ) -> None:
        self._decoder_of, self._llm, self._max_tokens = decoder_of, judge_with, max_tokens
        self.modes = list(modes)
        self.timelines: dict[str, list[TimelineEvent]] = {}
        self._warm: set[str] = set()

    def round(self, item: Item, shift: int, on_turn: Callable[[], None] = lambda: None) -> Round:
        """Measure one round of all modes over an item's turns, beginning with the mode number `shift`."""
        measured: Round = {mode.name: [] for mode in self.modes}
        for mode in self.modes:
            self._decoder(mode, item).forget()
        answers: list[str] = []
        for index in range(len(item.turns)):
            prompt = item.prompt(index, answers)
            start = (shift + index) % len(self.modes)
            completions: dict[str, Completion] = {}
            seconds: dict[str, float] = {}
            for mode in [*self.modes[start:], *self.modes[:start]]:
                decoder = self._decoder_of(mode)
                began = time.perf_counter()
                completions[mode.name] = decoder.generate(
                    prompt, max_tokens=item.max_tokens or self._max_tokens, json_schema=item.json_schema
                )
                seconds[mode.name] = time.perf_counter() - began
            base = completions[self.modes[0].name]
            tokens = self._llm.prompt_tokens(prompt)
            for name, completion in completions.items():
                measured[name].append(
                    Generation(
                        n_tokens=len(completion.tokens),
                        wall_seconds=seconds[name],
                        verdict=divergence(self._llm, tokens, base.tokens, completion.tokens),
                        repetition=judge(completion.tokens, completion.text),
                        stats=without_timeline(completion.stats),
                        text=completion.text if completion is base else "",
                    )
                )
            if not self.timelines:
                self.timelines = {name: middle(c.stats.timeline) for name, c in completions.items()}
            answers.append(base.text)
            on_turn()
        return measured

    def _decoder(self, mode: Mode, item: Item) -> Decoder:
        """The mode's decoder, warmed up: the first passes of a process load pages and measure costs."""
        decoder = self._decoder_of(mode)
        if mode.name not in self._warm:
            self._warm.add(mode.name)
            decoder.generate(item.prompt(0, []), max_tokens=8)
        return decoder


def join_rounds(item: Item, rounds: Sequence[Round]) -> list[TurnResult]:
    """Return the item's turns with all rounds' generations."""
    turns = [TurnResult(turn.name, {mode: [] for mode in rounds[0]}) for turn in item.turns]
    for measured in rounds:
        for mode, generations in measured.items():
            for turn, generation in zip(turns, generations, strict=True):
                turn.generations[mode].append(generation)
    return turns


def measure(
    runner: Runner,
    workloads: Mapping[str, Sequence[Item]],
    *,
    repetitions: int,
    known: Mapping[tuple[str, str, int], Round] | None = None,
    on_round: Callable[[str, Item, int, Round], None] = lambda *_: None,
    on_turn: Callable[[], None] = lambda: None,
) -> dict[str, list[TurnResult]]:
    """Measure every item.

    Parameters
    ----------
    runner
        Measures a round.
    workloads
        [name] items.
    repetitions
        Rounds over an item that does not say itself.
    known
        [workload, item, round] rounds that need not be measured.
    on_round, on_turn
        Called with each measured round, and after each turn; known ones too.

    Returns
    -------
    dict
        [workload] turns.
    """
    known = known or {}
    results: dict[str, list[TurnResult]] = {}
    for name, items in workloads.items():
        results[name] = []
        for number, item in enumerate(items):
            rounds = []
            for round_number in range(item.repetitions or repetitions):
                measured = known.get((name, item.name, round_number))
                if measured is None:
                    measured = runner.round(item, number + round_number, on_turn)
                    on_round(name, item, round_number, measured)
                else:
                    for _ in item.turns:
                        on_turn()
                rounds.append(measured)
            results[name] += join_rounds(item, rounds)
    return results
