"""The texts of `train eval`, written by the exact target, and the same decoded by the engine with the drafter."""

from __future__ import annotations

from typing import Any

from dflash_cpp import _core, chat
from dflash_cpp.train.answers import AnswerWriter, read_answer, read_answers
from dflash_cpp.train.eval_sets import KINDS, eval_prompts
from dflash_cpp.train.features import FeatureStore
from dflash_cpp.train.pipeline import Report, Run
from dflash_cpp.train.prompts import TrainingPrompt

TEMPERATURES = (0.0, 0.7)


def prepare(run: Run, *, humaneval: int, max_answer: int, report: Report) -> FeatureStore:
    """Write the answers to the evaluation prompts, greedy and at T = 0.7, and read their features. Resumable."""
    prompts = eval_prompts(humaneval)
    n = len(prompts)

    def prompt_of(index: int) -> TrainingPrompt | None:
        return prompts[index % n] if index < len(TEMPERATURES) * n else None

    folder = run.folder / "eval"
    folder.mkdir(exist_ok=True)
    config = run.drafter_config(0)
    store = FeatureStore(folder, config.taps, config.hidden)
    path = folder / "answers.jsonl"
    finished = folder / f"finished-{humaneval}-{max_answer}"
    if not finished.exists():
        target = run.load_target(sequences=min(32, n), exact=True)
        writer = AnswerWriter(
            path, target, prompt_of, max_answer=max_answer,
            temperature_of=lambda index: TEMPERATURES[index // n],
        )  # fmt: skip
        total = len(TEMPERATURES) * n
        for numbers in writer.write(1 << 60):
            report("texts to measure on", {"done": numbers["answers"], "total": total})
        del target
        finished.touch()
    records = read_answers(path)
    if len(store.texts) < len(records):
        target = run.load_target(exact=True)
        teacher = _core.Teacher(target, store.tap_layers)
        for record in records[len(store.texts) :]:
            prompt = prompt_of(record.index)
            assert prompt is not None
            tokens = chat.prompt_tokens(target, prompt.prompt)
            read_answer(store, teacher, tokens, record, held_out=True)
            report("reading them", {"done": len(store.texts), "total": len(records)})
    return store


def engine_acceptance(run: Run, store: FeatureStore, width: int, report: Report) -> dict[str, Any]:
    """Acceptance length per kind of the engine with the run's drafter.gguf on the same greedy texts."""
    from dflash_cpp.llm import LLM

    tokens = store.columns()["tokens"]
    texts = [text for text in store.texts if text.temperature == 0.0]
    counts = {kind: [0, 0] for kind in KINDS}
    path = run.folder / "drafter.gguf"
    with LLM(run.target, drafter=path, ngram=False, width=width, ahead="off", n_ctx=1024) as llm:
        for number, text in enumerate(texts):
            rows = tokens[text.start : text.start + text.length].tolist()
            llm.reset()
            completion = llm.generate(rows[: text.n_prompt], max_tokens=text.length - text.n_prompt)
            counts[text.kind][0] += completion.stats.completion_tokens
            counts[text.kind][1] += completion.stats.verifications
            report("decoding them", {"done": number + 1, "total": len(texts)})
    return {kind: committed / max(steps, 1) for kind, (committed, steps) in counts.items()}
