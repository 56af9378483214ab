"""A second device on this machine: the drafter in a process of its own, over llama.cpp's RPC on loopback.

Target and drafter get a core each. It is a real second device, only a slow one: what overlaps here overlaps
between two machines, too.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dflash_cpp.server import free_port

SERVE = """
import os, sys
from dflash_cpp import _core
endpoint, core = sys.argv[1:]
if core:
    os.sched_setaffinity(0, {int(core)})
_core.serve_rpc(endpoint, 1)
"""


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def second_device() -> Iterator[str]:
    """Start the server, pin it and this process, and give the device's name; afterwards all is as before.

    Raises
    ------
    ValueError
        The server does not start.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    pinned = len(cores) > 1
    port = free_port()
    command = [sys.executable, "-c", SERVE, f"127.0.0.1:{port}", str(cores[-1]) if pinned else ""]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up_at = time.monotonic() + 30
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > give_up_at:
                raise ValueError("the RPC server for the second device did not start")
            time.sleep(0.05)
        if pinned:
            os.sched_setaffinity(0, {cores[0]})
        yield f"rpc:127.0.0.1:{port}"
    finally:
        if pinned:
            os.sched_setaffinity(0, cores)
        server.kill()
        server.wait()
