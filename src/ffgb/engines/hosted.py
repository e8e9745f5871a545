"""An engine whose clients are made by the caller, all in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ffgb.federation.host import Answering, Host
from ffgb.hardware import one_blas_thread
from ffgb.protocol.engine import Engine


@final
class Hosted(Engine):
    """Clients in this process: what they hold is theirs."""

    def __init__(self, clients: Sequence[Answering]) -> None:
        self._host = Host()
        self._host.clients.update(enumerate(clients))

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        with one_blas_thread():
            return dict(self._host.answers(data, clients))

    def close(self, *, at_once: bool = False) -> None:
        self._host = Host()
