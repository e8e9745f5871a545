"""A worker process: hosts clients and answers what comes down its socket.  Started by `LocalEngine` alone."""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection

from ffgb.federation.host import Host
from ffgb.user_code import allow


def main(fd: int, modules: list[str]) -> None:
    """Serve until the other end closes."""
    for name in modules:
        allow(name)
    host, socket = Host(), Connection(fd)
    try:
        while True:
            clients = json.loads(socket.recv_bytes())
            for _, answer in host.answers(socket.recv_bytes(), clients):
                socket.send_bytes(answer)  # as raw bytes: nothing is pickled
    except (EOFError, OSError):
        return  # the server is gone


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
