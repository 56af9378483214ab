"""The k4v table through its Python face; tests/../cpp/tests holds the rest."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dflash_cpp import NgramMap

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]


def test_proposes_what_followed() -> None:
    table = NgramMap()
    assert len(table) == 0
    table.extend(TEXT)
    assert len(table) == len(TEXT)
    proposal = table.propose()
    assert proposal.tokens[:5] == [4, 5, 6, 7, 8]
    assert len(proposal.probabilities) == len(proposal.tokens) == len(proposal)
    assert all(0 < p < 1 for p in proposal.probabilities)
    assert table.propose(max_tokens=2).tokens == [4, 5]
    assert table.propose(0).tokens == []


def test_accept_truncate_clear() -> None:
    table = NgramMap(size_n=6, size_m=4, size_n_min=2)
    table.extend(TEXT)
    before = table.propose().probabilities[0]
    table.accept(0)
    assert table.propose().probabilities[0] < before
    table.accept(4)
    table.truncate(3)
    assert len(table) == 3
    assert table.propose().tokens == [4, 5, 6, 7]
    table.clear()
    assert len(table) == 0 and table.n_keys == 0
    assert bool(table)  # an empty table is still a table


def test_save_and_load(tmp_path: Path) -> None:
    table = NgramMap(size_n=5, size_m=7, size_n_min=2)
    table.extend(TEXT)
    path = tmp_path / "table"
    table.save(path)
    table.save(str(path))  # over an old one
    loaded = NgramMap.load(path)
    assert (loaded.size_n, loaded.size_m, loaded.size_n_min) == (5, 7, 2)
    assert len(loaded) == len(table)
    assert loaded.propose().tokens == table.propose().tokens
    assert [p.name for p in tmp_path.iterdir()] == ["table"]


@given(st.lists(st.one_of(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 20)), max_size=40))
def test_context_follows_any_edits(edits: list[list[int] | int]) -> None:
    """Lists are appended, numbers truncate; a proposal always continues something that was once there."""
    table = NgramMap(size_n=4, size_m=5, size_n_min=1)
    context: list[int] = []
    texts: list[list[int]] = []
    for edit in edits:
        if isinstance(edit, int):
            texts.append(list(context))
            del context[edit:]
            table.truncate(edit)
        else:
            context += edit
            table.extend(edit)
        assert len(table) == len(context)
        proposal = table.propose()
        if proposal.tokens:
            pair = [context[-1], proposal.tokens[0]]
            assert any(text[i : i + 2] == pair for text in [*texts, context] for i in range(len(text)))
            table.accept(len(proposal.tokens) // 2)
