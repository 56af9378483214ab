"""A coding assistant in one file: it edits a program turn by turn, with one k4v table for the whole session.

    python examples/coding_assistant.py program.py        # asks what to change, writes what came
    python examples/coding_assistant.py program.py --model t.gguf --drafter d.gguf --table session.k4v

Each turn sends the file as it is now and gets it back changed. What stays the same the table has seen, and
proposes many tokens at a time; the more often a file comes by, the faster it comes.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import dflash_cpp

SYSTEM = "You are a careful programmer. You answer with the whole changed file in one Python code block."


def code_in(answer: str) -> str | None:
    """Return the first code block of an answer, None where it has none that is closed."""
    found = re.search(r"```(?:python)?\n(.*?)```", answer, re.DOTALL)
    return found[1] if found else None


def main() -> int:
    """Run the session until standard input ends."""
    parser = argparse.ArgumentParser(description="Edit a program turn by turn.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--table", type=Path, help="load the table from there, and save it at the end")
    parser.add_argument("--max-tokens", type=int, default=1024)
    args = parser.parse_args()

    if args.table and args.table.exists():
        table = dflash_cpp.NgramMap.load(str(args.table))
    else:
        table = dflash_cpp.NgramMap()
    try:
        with dflash_cpp.LLM(args.model, drafter=args.drafter, ngram=table) as llm:
            print("What shall change? (an empty line ends)", file=sys.stderr)
            for line in sys.stdin:
                wish = line.strip()
                if not wish:
                    break
                code = args.file.read_text(encoding="utf-8") if args.file.exists() else ""
                messages = [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"{args.file.name}:\n```python\n{code}```\n{wish}"},
                ]
                answer = ""
                for chunk in llm.stream(messages, max_tokens=args.max_tokens):
                    print(chunk.text, end="", flush=True)
                    answer += chunk.text
                stats = chunk.stats
                assert stats is not None
                print(
                    f"\n[{stats.tokens_per_second:.0f} tokens/s, {stats.acceptance_length:.1f} a verification, "
                    f"table holds {len(table)} tokens]",
                    file=sys.stderr,
                )
                changed = code_in(answer)
                if changed is None:
                    print("[no code block in the answer; the file stays as it is]", file=sys.stderr)
                else:
                    args.file.write_text(changed, encoding="utf-8")
    finally:
        if args.table:
            table.save(str(args.table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
