"""Where a text begins to go round in circles. Small models do, and a drafter learns nothing from it."""

from __future__ import annotations

from collections.abc import Sequence

GRAM, TIMES = 8, 3


def loop_start(tokens: Sequence[int]) -> int:
    """Index at which some 8 tokens in a row begin for the third time; the length where none do.

    What lies before that index is worth keeping: each phrase stands in it twice at most.
    """
    seen: dict[tuple[int, ...], int] = {}
    for i in range(len(tokens) - GRAM + 1):
        gram = tuple(tokens[i : i + GRAM])
        seen[gram] = seen.get(gram, 0) + 1
        if seen[gram] == TIMES:
            return i
    return len(tokens)
