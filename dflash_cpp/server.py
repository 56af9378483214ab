"""llama-server with our drafting: where the binary is, how it is called, and one that runs while a block does."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflash_cpp import models
from dflash_cpp.errors import DFlashError

BINARY = "DFLASH_LLAMA_SERVER"
"""Environment variable that names another llama-server than the package's own."""


def binary() -> Path:
    """Return the llama-server to run.

    Raises
    ------
    DFlashError
        This build has none.
    """
    given = os.environ.get(BINARY)
    path = Path(given) if given else Path(__file__).parent / "bin" / "llama-server"
    if not path.is_file():
        raise DFlashError(
            f"{path} does not exist; {BINARY} names it"
            if given
            else "this build has no llama-server; install with -C cmake.define.DFLASH_SERVER=ON, or let "
            f"{BINARY} name one that was built with our patch (dflash-cpp patch)"
        )
    return path


def command(model: str, drafter: str | None = "auto", arguments: Sequence[str] = ()) -> list[str]:
    """Return the words that start the server.

    Parameters
    ----------
    model
        As `LLM` takes it.
    drafter
        "auto" (the one that this package carries for the model, if any), the path of one, or None: the k4v table
        drafts alone.
    arguments
        More of llama-server's; they come last, and so override ours.

    Raises
    ------
    DFlashError
        There is no such file, or no llama-server in this build.
    """
    words = [str(binary()), "-m", str(models.resolve(model)), "--spec-type", "draft-dflash-parallel"]
    found = models.shipped_drafter(model) if drafter == "auto" else drafter and models.resolve(drafter)
    if found:
        words += ["-md", str(found)]
    if costs := models.cost_dir():
        words += ["--spec-parallel-costs", str(costs)]
    return [*words, *arguments]


def free_port() -> int:
    """Return a TCP port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Running:
    """A server that answers on loopback."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def resident_bytes(self) -> int:
        """Memory that it holds (Linux)."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def raise_if_ended(self, cause: Exception | None = None) -> None:
        """Raise DFlashError, with what it said last, where it runs no more."""
        if self.process.poll() is not None:
            raise DFlashError(f"llama-server ended with {self.process.returncode}: {self.end_of_log()}") from cause

    def end_of_log(self) -> str:
        """What it said last."""
        return self.log.read_text(errors="replace")[-2000:]


@contextmanager
def running(words: Sequence[str], *, seconds: float = 120.0) -> Iterator[Running]:
    """Run a server on a free port of loopback until the block ends.

    Raises
    ------
    DFlashError
        It does not answer within `seconds`, or ends by itself; the message holds the end of its log.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="dflash-server-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*words, "--host", "127.0.0.1", "--port", str(port)], stdout=output, stderr=subprocess.STDOUT
            )
        server = Running(port, process, log)
        try:
            give_up_at = time.monotonic() + seconds
            while not _healthy(server.url):
                if process.poll() is not None or time.monotonic() > give_up_at:
                    raise DFlashError(f"llama-server does not answer: {server.end_of_log()}")
                time.sleep(0.1)
            try:
                yield server
            except Exception as error:
                server.raise_if_ended(error)
                raise
            server.raise_if_ended()
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
