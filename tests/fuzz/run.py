"""Fuzz one target: `python tests/fuzz/run.py checkpoint --minutes 30`. Needs `pip install atheris`.

What libFuzzer finds stands in the working folder as `crash-...`; put it into the target's corpus with its mending.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# The installed package, as in the tests: the source folder has no compiled core.
installed = [entry for entry in sys.path[1:] if Path(entry or ".") != HERE.parents[1]]
sys.path[:] = [str(HERE), str(HERE.parent), *installed]

import atheris

with atheris.instrument_imports(include=["dflash_cpp"]):
    import dflash_cpp.bench.workloads
    import dflash_cpp.convert  # noqa: F401

from targets import CORPUS, TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--minutes", type=float, default=30.0)
    arguments = parser.parse_args()
    finds = tempfile.mkdtemp(prefix="dflash-fuzz-corpus-")
    limits = [f"-max_total_time={60 * arguments.minutes:.0f}", "-rss_limit_mb=8192", "-timeout=60"]
    atheris.Setup([sys.argv[0], finds, str(CORPUS / arguments.target), *limits], TARGETS[arguments.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
