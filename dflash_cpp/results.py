"""What a generation returns: text, tokens, statistics and the timeline."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dflash_cpp import _core

FinishReason = Literal["stop", "length", "cancelled"]


def _by_position(accepted_at: list[int], offered_at: list[int]) -> list[float]:
    return [accepted / offered for accepted, offered in zip(accepted_at, offered_at, strict=True)]


def _source(raw: _core.SourceStats) -> dict[str, Any]:
    return {
        "proposals": raw.n_proposals,
        "proposed": raw.n_proposed,
        "accepted": raw.n_accepted,
        "acceptance_by_position": _by_position(raw.accepted_at, raw.offered_at),
        "offered_by_position": list(raw.offered_at),
    }


def _choice(raw: _core.SourceStats) -> dict[str, float]:
    def rate(tokens: float, us: float) -> float:
        return 1e6 * tokens / us if us > 0 else 0.0

    return {
        "steps": raw.n_steps,
        "expected_tokens_per_second": rate(raw.expected_tokens, raw.expected_us),
        "realised_tokens_per_second": rate(raw.tokens, raw.us),
    }


def _shares(timeline: list[TimelineEvent]) -> tuple[float, float]:
    """Shares of the time from the first verification to the last: target idle, drafter busy."""
    verifications = [e for e in timeline if e.name == "verify"]
    if not verifications:
        return 0.0, 0.0
    begin, end = verifications[0].start, verifications[-1].end
    busy = sum(e.end - e.start for e in verifications)
    drafting = sum(max(0.0, min(e.end, end) - max(e.start, begin)) for e in timeline if e.lane == "drafter")
    return max(0.0, 1.0 - busy / (end - begin)), min(1.0, drafting / (end - begin))


@dataclass(frozen=True)
class TimelineEvent:
    """A stretch of time on one lane.

    Attributes
    ----------
    lane
        "target" (a pass of the target), "drafter" (a pass of the drafter) or "host" (everything else).
    name
        "prefill" and "verify" on the target's lane; "inject", "draft" and "ahead" (beside a verification) on the
        drafter's; "begin", "propose", "sample", "commit", "wait" (for an ahead pass) and "learn" on the host's.
    start, end
        Seconds since the generation began.
    rows
        Tokens in the pass, where it is one.
    accepted
        Of a verification: draft tokens accepted.
    """

    lane: str
    name: str
    start: float
    end: float
    rows: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Stats:
    """How a generation ran.

    Attributes
    ----------
    prompt_tokens, reused_tokens
        Length of the prompt; how much of it was still in the KV cache.
    completion_tokens
        Tokens generated.
    prefill_seconds, decode_seconds
        Time spent reading the prompt and generating.
    tokens_per_second
        completion_tokens / decode_seconds.
    verifications
        Passes of the target while generating.
    acceptance_length
        Tokens committed per verification, the bonus token included; 1.0 is plain decoding.
    acceptance_by_position
        For each position of a draft, the share of drafts offered so far that were accepted up to and
        including it.
    sources
        For each draft source ("ngram", "drafter": drafted while the target waited, "continued": the rest of an
        earlier block, "ahead": drafted while the target verified) the drafts offered ("proposals"), the tokens
        in them ("proposed"), those accepted ("accepted"), "acceptance_by_position", and the drafts that reached
        each position ("offered_by_position"). Tokens of the table behind a drafter's count as a proposal of the
        table.
    choices
        What each step chose, and why: for "plain" and each source its steps, and the tokens per second that
        were expected of them and came true.
    ahead
        Drafting ahead: verifications that it ran beside ("launched"), outcomes drafted for ("outcomes"), those
        that came true ("hits"), and the same by rank, likeliest first ("hits_by_rank").
    target_idle_share, drafter_busy_share
        Of the time from the first verification to the last, what the target did not work and the drafter did.
    seed
        The seed that was used: pass it again for the same text.
    timeline
        What ran when.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    tokens_per_second: float = 0.0
    verifications: int = 0
    acceptance_length: float = 0.0
    acceptance_by_position: list[float] = field(default_factory=list)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    choices: dict[str, dict[str, float]] = field(default_factory=dict)
    ahead: dict[str, Any] = field(default_factory=dict)
    target_idle_share: float = 0.0
    drafter_busy_share: float = 0.0
    seed: int = 0
    timeline: list[TimelineEvent] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, raw: _core.Stats, seed: int) -> Stats:
        """Turn the core's counters (microseconds) into this form (seconds, ratios)."""
        decode_seconds = raw.decode_us / 1e6
        timeline = [
            TimelineEvent(e.lane, e.name, e.start_us / 1e6, e.end_us / 1e6, e.n_rows, e.n_accepted)
            for e in raw.timeline
        ]
        sources = raw.sources
        idle, busy = _shares(timeline)
        return cls(
            prompt_tokens=raw.n_prompt,
            reused_tokens=raw.n_reused,
            completion_tokens=raw.n_completion,
            prefill_seconds=raw.prefill_us / 1e6,
            decode_seconds=decode_seconds,
            tokens_per_second=raw.n_completion / decode_seconds if decode_seconds > 0 else 0.0,
            verifications=raw.n_verifications,
            acceptance_length=raw.n_committed / raw.n_verifications if raw.n_verifications else 0.0,
            acceptance_by_position=_by_position(raw.accepted_at, raw.offered_at),
            sources={name: _source(source) for name, source in sources.items() if name != "plain"},
            choices={name: _choice(source) for name, source in sources.items()},
            ahead={
                "launched": raw.ahead.n_launched,
                "outcomes": raw.ahead.n_outcomes,
                "hits": raw.ahead.n_hits,
                "hits_by_rank": raw.ahead.hits_at,
            },
            target_idle_share=idle,
            drafter_busy_share=busy,
            seed=seed,
            timeline=timeline,
        )


@dataclass(frozen=True)
class Completion:
    """A finished generation.

    Attributes
    ----------
    text
        The generated text, without the stop string.
    tokens
        The generated token ids, without the end-of-generation token.
    finish_reason
        "stop" (the model or a stop string ended it), "length" (max_tokens or the context did) or
        "cancelled" (Ctrl-C or `close` did).
    stats
        How it ran.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    stats: Stats

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain dicts and lists, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed generation: the text and tokens of one step.

    `finish_reason` and `stats` are set in the last chunk only.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason | None = None
    stats: Stats | None = None
