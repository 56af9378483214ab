"""A 27B target with a public DFlash 2 drafter: fetch, convert, check that it fits, generate.

    pip install 'dflash-cpp[hf]'
    python examples/public_drafter.py unsloth/Qwen3.8-27B-GGUF Qwen3.8-27B-Q4_K_M.gguf z-lab/Qwen3.8-27B-DFlash2

The three names are a GGUF repository, a file in it, and the drafter's checkpoint; look for those of your target.
It needs the network once (17 GB and 4 GB), and a card of 24 GB or patience. Which names exist is the hub's affair:
where one does not, the program says so.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import dflash_cpp
from dflash_cpp import models
from dflash_cpp.convert import convert
from dflash_cpp.plan import parse_size, plan


def main() -> int:
    """Fetch, convert, plan, generate."""
    parser = argparse.ArgumentParser(description="Run a public DFlash 2 drafter.")
    parser.add_argument("repository", help="of the target's GGUF, as user/repo")
    parser.add_argument("file", help="the GGUF in it")
    parser.add_argument("drafter", help="the drafter's checkpoint, as user/repo, or a folder that holds it")
    parser.add_argument("--prompt", default="Write a Python class for an LRU cache, with tests.")
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--device-memory", default="24G")
    args = parser.parse_args()
    try:
        target = models.resolve(f"hf:{args.repository}/{args.file}", print)
        drafter = Path(f"{Path(args.file).stem}-dflash2-q8_0.gguf")
        if not drafter.exists():
            convert(checkpoint(args.drafter), target, drafter, outtype="q8_0", report=print)
        fit = plan(target, drafter, n_ctx=args.ctx, device_memory=parse_size(args.device_memory))
        print(f"{fit.total / 2**30:.1f} GiB in all", *fit.advice, sep="\n")
        with dflash_cpp.LLM(target, drafter=drafter, n_ctx=args.ctx) as llm:
            stats = llm.chat([{"role": "user", "content": args.prompt}], max_tokens=512).stats
    except dflash_cpp.DFlashError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{stats.tokens_per_second:.1f} tokens/s, {stats.acceptance_length:.2f} tokens a verification")
    print("is that faster than plain? dflash-cpp bench run -m", target, "-d", drafter)
    return 0


def checkpoint(name: str) -> Path:
    """Return a checkpoint's folder, fetched from the hub where it is none here."""
    if Path(name).is_dir():
        return Path(name)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise dflash_cpp.ModelError("this needs huggingface_hub: pip install 'dflash-cpp[hf]'") from error
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise dflash_cpp.ModelError(f"cannot download {name}: {reason[0] if reason else error}") from error


if __name__ == "__main__":
    sys.exit(main())
