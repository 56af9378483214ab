"""The artefact guard: does an answer loop? Then its speed says nothing about text that somebody wants.

A table, and a drafter too, is right about every token of a loop; a record is easily set with a prompt that makes
the model repeat itself. Three signs, each on the answer alone (copying from the prompt is an honest use):

- the longest run: a piece repeated at least three times in a row, and how much of the answer that is;
- the entropy of its 4-grams, as a share of what as many different ones would have;
- how far zlib compresses the text, indentation aside: loops with a counter or a changing word in them show here.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MIN_TOKENS = 24
"""Shorter answers are not judged."""
RUN_SHARE = 1 / 3
"""An answer of which more is one repeated piece loops."""
ENTROPY = 0.74
"""Below, the same 4-grams come again and again; people's prose, JSON and code stay above 0.76."""
COMPRESSION = 4.2
"""Above, there is little in the text that was not in it before; people's stay below 3.95. From MIN_BYTES on."""
MIN_BYTES = 200


@dataclass(frozen=True)
class Repetition:
    """How much an answer repeats itself.

    Attributes
    ----------
    run
        Share of the answer's tokens in its longest run of a piece repeated three times or more.
    period
        Tokens of that piece.
    entropy
        Of the 4-grams, 0 to 1.
    compression
        Bytes of the text, with single spaces, over bytes of it compressed.
    reason
        Why it counts as a loop; "" where it does not.
    """

    run: float
    period: int
    entropy: float
    compression: float
    reason: str

    @property
    def loops(self) -> bool:
        """Whether the answer counts as an artefact."""
        return bool(self.reason)


def longest_run(tokens: Sequence[int], times: int = 3) -> tuple[int, int]:
    """Return the length of the longest stretch that is one piece `times` in a row or more, and the piece's."""
    best = (0, 0)
    for period in range(1, len(tokens) // times + 1):
        same = 0
        for index in range(period, len(tokens) + 1):
            if index < len(tokens) and tokens[index] == tokens[index - period]:
                same += 1
                continue
            if same >= (times - 1) * period and same + period > best[0]:
                best = (same + period, period)
            same = 0
    return best


def ngram_entropy(tokens: Sequence[int], n: int = 4) -> float:
    """Return the entropy of the n-grams over that of as many different ones; 1 where there are fewer than two."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    if len(grams) < 2:
        return 1.0
    shares = [count / len(grams) for count in Counter(grams).values()]
    return -sum(share * math.log2(share) for share in shares) / math.log2(len(grams))


def judge(tokens: Sequence[int], text: str) -> Repetition:
    """Measure an answer's repetition and say whether it is an artefact."""
    length, period = longest_run(tokens)
    run = length / len(tokens) if tokens else 0.0
    entropy = ngram_entropy(tokens)
    raw = " ".join(text.split()).encode()
    compression = len(raw) / len(zlib.compress(raw, 9)) if raw else 1.0
    reason = ""
    if len(tokens) >= MIN_TOKENS:
        if run > RUN_SHARE:
            reason = f"{run:.0%} of it is one piece of {period} tokens, over and over"
        elif entropy < ENTROPY:
            reason = f"its 4-grams repeat (entropy {entropy:.2f} of 1)"
        elif len(raw) >= MIN_BYTES and compression > COMPRESSION:
            reason = f"it compresses {compression:.1f} times"
    return Repetition(run, period, entropy, compression, reason)
