"""The bench: its arithmetic on numbers worked out by hand, what it reads, keeps, refuses and prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_drafters import write_drafter

from dflash_cpp import LLM, Stats, cli
from dflash_cpp.bench import ALL_MODES, MODES, STATIC_MODES, BenchResult, parse_mode, parse_modes, pictures
from dflash_cpp.bench.arguments import parse_drafters, parse_pace
from dflash_cpp.bench.guard import Repetition
from dflash_cpp.bench.intervals import median_interval
from dflash_cpp.bench.modes import split_modes
from dflash_cpp.bench.record import (
    Generation,
    Journal,
    TurnResult,
    acceptance_by_position,
    load_result,
    summarise,
)
from dflash_cpp.bench.report import markdown
from dflash_cpp.bench.runner import divergence, middle
from dflash_cpp.results import TimelineEvent

HONEST = Repetition(run=0.0, period=0, entropy=1.0, compression=1.5, reason="")
LOOP = Repetition(run=0.9, period=4, entropy=0.3, compression=9.0, reason="it loops")


def generation(speed: float, *, verdict: str = "", repetition: Repetition = HONEST, n: int = 100) -> Generation:
    stats = Stats(completion_tokens=n, decode_seconds=n / speed, tokens_per_second=speed, prompt_tokens=10,
                  prefill_seconds=0.1, verifications=n, acceptance_length=1.0)  # fmt: skip
    return Generation(n, n / speed, verdict, repetition, stats)


def turn(name: str, plain: list[float], k4v: list[float], verdict: str = "",
         repetition: Repetition = HONEST) -> TurnResult:  # fmt: skip
    return TurnResult(name, {
        "plain": [generation(speed, repetition=repetition) for speed in plain],
        "k4v": [generation(speed, verdict=verdict, repetition=repetition) for speed in k4v],
    })  # fmt: skip


# -- arithmetic -------------------------------------------------------------------------------------------------


def test_ratio_pairs_the_rounds() -> None:
    # Pairs 2.0, 3.0 and 1.5: the machine slowed down between them, the ratio does not care.
    assert turn("a", [10, 5, 2], [20, 15, 3]).ratio("k4v", "plain") == 2.0


def test_wrong_tokens_have_no_speed() -> None:
    turns = [turn("a", [10], [20]), turn("b", [10], [90], "WRONG at 3"), turn("c", [10], [20], "near-tie at 2")]
    summary = summarise(turns, "k4v", "plain")
    assert (summary.ratio.value, summary.ratio.n, summary.n_wrong, summary.n_near_ties) == (2.0, 2, 1, 1)


def test_loops_never_enter_the_headline() -> None:
    turns = [turn("a", [10], [20]), turn("b", [10], [80], repetition=LOOP)]
    summary = summarise(turns, "k4v", "plain")
    assert (summary.ratio.value, summary.looped.value) == (2.0, 8.0)
    # 100 tokens at 10/s and 20/s save 5 s; at 10/s and 80/s they save 8.75 s.
    assert summary.saved_by_loops == pytest.approx(8.75 / 13.75)
    assert summarise(turns, "plain", "plain").saved_by_loops is None


def test_interval_holds_the_median_and_shrinks_to_a_constant() -> None:
    interval = median_interval([1.0, 1.1, 1.2, 1.3, 5.0])
    assert 1.0 <= interval.low <= interval.value == 1.2 <= interval.high <= 5.0
    constant = median_interval([2.0] * 7)
    assert (constant.low, constant.high) == (2.0, 2.0)
    assert median_interval([]).n == 0 and str(median_interval([])) == "-"


def test_acceptance_by_position_weighs_by_offers() -> None:
    short = Stats(sources={"ngram": {"acceptance_by_position": [1.0], "offered_by_position": [1]}})
    long = Stats(sources={"drafter": {"acceptance_by_position": [0.5, 0.2], "offered_by_position": [4, 5]}})
    assert acceptance_by_position([short, long]) == pytest.approx([3 / 5, 0.2])


def test_the_middle_of_a_timeline() -> None:
    events = [TimelineEvent("target", "verify", i, i + 0.9) for i in range(40)]
    events += [TimelineEvent("host", "sample", i + 0.9, i + 1) for i in range(40)]
    shown = middle(events, 10)
    assert [e.start for e in shown if e.name == "verify"] == list(range(15, 25))
    assert middle([TimelineEvent("host", "begin", 0, 1)]) == []


def test_divergence_is_judged_by_the_replayed_gap(plain: LLM) -> None:
    prompt = plain.tokenize("The capital of France is")
    base = plain.generate(prompt, max_tokens=6).tokens
    assert divergence(plain, prompt, base, base) == ""
    wrong = [*base]
    wrong[2] += 1
    assert divergence(plain, prompt, base, wrong) == "WRONG at 2"


@pytest.mark.parametrize("length", [0, 3])
def test_shorter_text_is_a_divergence(plain: LLM, length: int) -> None:
    prompt = plain.tokenize("The capital of France is")
    base = plain.generate(prompt, max_tokens=6).tokens
    assert divergence(plain, prompt, base, base[:length]) in (f"WRONG at {length}", f"near-tie at {length}")


# -- modes and options ------------------------------------------------------------------------------------------


def test_modes_by_name() -> None:
    both = parse_mode("w5+k4v+ahead")
    assert (both.ngram, both.drafter, both.width, both.ahead) == (True, "drafter", 5, "on")
    assert parse_mode("ahead+w5").ahead == "on"
    assert parse_mode("w5").ahead == "off"
    free = parse_mode("drafter")
    assert (free.ngram, free.width, free.ahead) == (False, "auto", "auto")
    auto = parse_mode("auto")
    assert (auto.name, auto.ngram, auto.drafter, auto.width) == ("auto", True, "drafter", "auto")
    assert not parse_mode("k4v").drafter
    table = parse_mode("w2+k4v:6:16")
    assert (table.ngram, table.size_n, table.size_m) == (True, 6, 16)
    assert parse_mode("small+w3", ["drafter", "small"]).drafter == "small"
    assert [parse_mode(name).name for name in [*MODES, *STATIC_MODES, *ALL_MODES]]
    for bad in ("", "fast", "w0", "w64", "wide", "plain+k4v", "k4v+", "upstream:", "upstream:draft-dflash@0"):
        with pytest.raises(ValueError, match="mode"):
            parse_mode(bad)


def test_upstream_modes_keep_their_commas() -> None:
    names = split_modes("plain,upstream:draft-dflash,ngram-map-k4v@5,upstream:none,w5,k4v")
    assert names == ["plain", "upstream:draft-dflash,ngram-map-k4v@5", "upstream:none", "w5", "k4v"]
    mode = parse_mode(names[1])
    assert (mode.upstream, mode.width, mode.drafter) == ("draft-dflash,ngram-map-k4v", 5, "drafter")
    assert parse_mode("upstream:ngram-map-k4v").drafter == ""


def test_sets_leave_out_what_wants_a_drafter() -> None:
    assert [mode.name for mode in parse_modes(None, [])] == ["plain", "k4v"]
    assert [mode.name for mode in parse_modes("all", [])] == [
        "plain", "k4v", "upstream:none", "upstream:ngram-map-k4v",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="give --drafter"):
        parse_modes("w3", [])


def test_drafters_by_name(tiny_path: Path) -> None:
    path = str(tiny_path)
    assert parse_drafters([path, f"small={path}"], "x") == {"drafter": path, "small": path}
    assert parse_drafters(["none"], "smollm2") == {}
    assert list(parse_drafters(None, "smollm2")) == ["drafter"]
    for bad in ([path, path], [f"k4v={path}"]):
        with pytest.raises(ValueError, match="is taken"):
            parse_drafters(bad, "x")


def test_pace() -> None:
    assert parse_pace(None) == (0.0, 0.0)
    assert parse_pace("target=60,drafter=18") == (60.0, 18.0)
    assert parse_pace("drafter=1.5") == (0.0, 1.5)
    for bad in ("60", "target", "target=x", "target=-1", "host=3", "target=nan", "target=1e9"):
        with pytest.raises(ValueError, match="--pace"):
            parse_pace(bad)


# -- the journal ------------------------------------------------------------------------------------------------


def test_a_journal_gives_back_its_rounds_but_for_half_a_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", {"model": "m"})
    journal.add("edit", "a", 0, {"plain": [generation(10)], "k4v": [generation(20, repetition=LOOP)]})
    journal.add("edit", "a", 1, {"plain": [generation(11)], "k4v": [generation(22)]})
    path = tmp_path / "run" / "rounds.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])  # killed while it wrote
    again = Journal(tmp_path / "run", {"model": "m"})
    assert list(again.rounds) == [("edit", "a", 0)]
    assert again.rounds["edit", "a", 0] == journal.rounds["edit", "a", 0]
    again.add("edit", "a", 1, journal.rounds["edit", "a", 1])
    assert path.read_bytes() == whole


def test_a_journal_refuses_other_settings_and_damage(tmp_path: Path) -> None:
    Journal(tmp_path, {"model": "m"}).add("edit", "a", 0, {"plain": [generation(10)]})
    with pytest.raises(ValueError, match="other settings"):
        Journal(tmp_path, {"model": "n"})
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"workload": 3}\n')
    with pytest.raises(ValueError, match="line 3: damaged"):
        Journal(tmp_path, {"model": "m"})
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write"):
        Journal(tmp_path / "file" / "run", {})


# -- the command ------------------------------------------------------------------------------------------------


@pytest.fixture()
def tiny_bench(tiny_path: Path, tmp_path: Path) -> list[str]:
    """Arguments that measure tiny models on two prompts."""
    drafter = write_drafter(tmp_path, tiny_path, hidden=32, vocab=31)
    lines = ['{"prompt": "abc abc abc"}', '{"prompt": "hello there", "name": "second", "max_tokens": 6}']
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    return ["--model", str(tiny_path), "--drafter", str(drafter), "--n-ctx", "128", "--n-threads", "1",
            "--prompts", str(tmp_path / "prompts.jsonl"), "-n", "12", "--repetitions", "1"]  # fmt: skip


def test_run_with_a_drafter_paced_and_drawn(
    tiny_bench: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures_ = ["--picture", str(tmp_path / "ratios.svg"), "--timeline", str(tmp_path / "lanes.png")]
    options = ["--modes", "w3,w3+ahead,auto", "--pace", "target=4,drafter=1", "--details", *pictures_]
    assert cli.main(["bench", "run", *tiny_bench, *options]) == 0
    printed = capsys.readouterr().out
    assert "paced: verification 4 ms, drafter's pass 1 ms" in printed
    assert "w3+ahead" in printed and "WRONG" not in printed and "ahead hits" in printed
    assert (tmp_path / "ratios.svg").read_text().lstrip().startswith("<?xml")
    assert (tmp_path / "lanes.png").read_bytes()[1:4] == b"PNG"
    assert not list(tmp_path.glob("*partial*"))


def test_run_keeps_everything_in_its_folder(
    tiny_bench: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["bench", "run", *tiny_bench, "--modes", "k4v,w3,w3+ahead,upstream:none,upstream:draft-dflash@3",
               "--out", str(out), "--json"]  # fmt: skip
    assert cli.main(command) == 0
    printed = json.loads(capsys.readouterr().out)
    result = load_result(out / "results.json")
    assert result.to_dict() == printed
    assert result.modes[0] == "plain" and [t.name for t in result.workloads["prompts.jsonl"]] == [
        "prompts/1", "second",
    ]  # fmt: skip
    second = result.workloads["prompts.jsonl"][1]
    assert {second.last(mode).n_tokens for mode in result.modes} == {6}
    assert result.workloads["prompts.jsonl"][0].last("w3+ahead").stats.ahead["launched"] > 0
    assert all(not t.verdict(mode) for t in result.workloads["prompts.jsonl"] for mode in result.modes)
    assert result.environment["machine"]["cores"] >= 1 and len(result.environment["files"]) == 2
    assert set(result.timelines) == set(result.modes)
    page = (out / "report.md").read_text()
    assert "| w3+ahead |" in page and "Nowhere: every mode" in page and "SHA-256" in page
    for name in ("ratios", "acceptance", "curve", "timeline"):
        assert (out / f"{name}.png").read_bytes()[1:4] == b"PNG" and f"({name}.png)" in page
    # Nothing is measured again.
    journal = (out / "rounds.jsonl").read_bytes()
    assert cli.main(command) == 0
    assert (out / "rounds.jsonl").read_bytes() == journal


def test_a_killed_run_goes_on_where_it_was(tiny_bench: list[str], tmp_path: Path) -> None:
    prompts = tmp_path / "many.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"abc {'de ' * (i % 9)}"}) + "\n" for i in range(300)))
    command = [
        "bench",
        "run",
        *tiny_bench,
        "--prompts",
        str(prompts),
        "--modes",
        "k4v",
        "--out",
        str(tmp_path / "o"),
    ]
    journal = tmp_path / "o" / "rounds.jsonl"
    process = subprocess.Popen([sys.executable, "-m", "dflash_cpp.cli", *command], stdout=subprocess.DEVNULL)
    give_up_at = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 5):
        assert process.poll() is None and time.monotonic() < give_up_at
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = journal.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert 6 <= kept.count(b"\n") < 301
    assert not (tmp_path / "o" / "results.json").exists()
    assert cli.main(command) == 0
    assert journal.read_bytes().startswith(kept) and journal.read_bytes().count(b"\n") == 301
    assert len(load_result(tmp_path / "o" / "results.json").workloads["many.jsonl"]) == 300


def test_curve(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "curve", "--model", str(tiny_path), "--n-ctx", "128", "--n-threads", "1", "--json"]
    assert cli.main([*command, "--picture", str(tmp_path / "curve.png")]) == 0
    curve = json.loads(capsys.readouterr().out)
    assert set(curve["best_width"]) == {"0.3", "0.5", "0.7", "0.9"} and curve["verification_ms"]["1"] > 0
    assert (tmp_path / "curve.png").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--modes", "fast"], "mode 'fast'"),
        (["--modes", "w3", "--drafter", "none"], "there is none; give --drafter"),
        (["--modes", "upstream:eagle"], "'eagle' cannot be measured"),
        (["--modes", "upstream:draft-mtp"], "no layers for draft-mtp"),
        (["--pace", "fast"], "--pace"),
        (["--picture", "ratios.txt"], "no picture's name"),
        (["--timeline", "nowhere/lanes.png"], "folder"),
        (["--workload", "fun"], "unknown workload 'fun'"),
        (["--prompts", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["--base", "k4v", "--modes", "plain"], "--base is 'k4v'"),
        (["--repetitions", "0"], "--repetitions"),
    ],
)
def test_run_refuses_before_measuring(
    tiny_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["bench", "run", "--model", str(tiny_path), "--n-ctx", "128", *options])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_lanes_without_verifications_are_drawn_empty(tmp_path: Path) -> None:
    pictures.draw_timeline({"none": [TimelineEvent("host", "begin", 0, 1)]}, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()


def test_the_report_shows_losses_and_loops() -> None:
    settings = {"model": "m", "modes": ["plain", "k4v"], "base": "plain", "max_tokens": 9, "repetitions": 1}
    turns = [turn(str(i), [10], [8]) for i in range(5)]
    workloads = {"slow": turns, "boat": [turn("x", [10], [80], repetition=LOOP)]}
    result = BenchResult(settings, {}, workloads)
    page = markdown(result, {"ratios": "ratios.png"})
    assert "| k4v | **0.80 (0.80 - 0.80)** | - |" in page
    assert "boat 1 of 1" in page and "| boat | k4v | - | 8.00 | 100% |" in page
    assert "(ratios.png)" in page


def test_results_that_are_none_are_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "m", "modes": ["plain", "k4v"], "base": "plain", "max_tokens": 9}
    good = BenchResult(settings, {}, {"w": [turn("a", [10], [20])]}).to_dict()
    path = tmp_path / "results.json"
    for change in ({"format": 9}, {"workloads": {"w": [{}]}}, {"settings": {}}, {"timelines": 3}):
        path.write_text(json.dumps(good | change))
        with pytest.raises(ValueError, match="results.json: it"):
            load_result(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="cannot read"):
        load_result(path)
    path.write_text(json.dumps(good))
    assert load_result(path).summary("w", "k4v").ratio.value == 2.0
