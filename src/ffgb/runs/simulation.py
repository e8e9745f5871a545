"""Flower's simulation as the engine: clients are nodes under Ray, on this machine or on a cluster."""

from __future__ import annotations

import functools
import json
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ffgb.engines.flower import FOREVER, POLL, START, Counted, FlowerEngine, _ask_who, _replies
from ffgb.engines.node import pack, unpack
from ffgb.engines.private import flwr
from ffgb.errors import FFGBError, missing_extra, option
from ffgb.federation.host import Holding, Resident
from ffgb.hardware import one_blas_thread
from ffgb.protocol.codec import shown
from ffgb.runs.config import Config, load_data
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.user_code import allow

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid


_residents: OrderedDict[tuple[int, int], tuple[str, Resident]] = OrderedDict()
"""Clients that this process held last: it may be asked again, and then need not be told what they know."""
HELD = 64


def client_app(config: str) -> ClientApp:
    """The app of a simulation's nodes, for a training with this configuration, as JSON.

    Any of Ray's processes may be a node's next, so what its client knows travels with it, in its `Context.state`.
    """
    flower = flwr()
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train("ffgb")
    def answer(message: Message, context: Context) -> Message:
        data, said = unpack(message.content)
        i = int(context.node_config["partition-id"])
        if said.get("hello"):
            return flower.Message(pack({}, {"place": i}), reply_to=message)  # type: ignore[no-any-return]
        with one_blas_thread():
            resident = _resident(config, i, context)
            answers = resident.answer(data["message"], said["clients"])
        token = message.metadata.message_id
        _residents[context.run_id, i] = token, resident
        if len(_residents) > HELD:
            _residents.popitem(last=False)
        state = pack(resident.snapshot(), {"token": token})
        for name in state:
            context.state[name] = state[name]
        content = pack({str(i): a for i, a in answers.items()}, {})
        return flower.Message(content, reply_to=message)  # type: ignore[no-any-return]

    return app


def _resident(config: str, i: int, context: Context) -> Resident:
    """The client of a node, as the last message left it, whichever process that came to."""
    kept, known = unpack(context.state) if "said" in context.state else ({}, {})
    token, resident = _residents.pop((context.run_id, i), ("", None))
    if resident is None or token != known.get("token"):
        resident = Resident({i: _holdings(config)[i]})
        resident.restore(kept)
    return resident


@functools.lru_cache(maxsize=1)
def _holdings(config: str) -> list[Holding]:
    """Who holds what in a simulated training: read once by each process."""
    chosen = Config.from_json(json.loads(config))
    for module in chosen.code:
        allow(module)
    dataset = load_data(chosen)
    return make_holdings(chosen, dataset, make_parts(chosen, dataset))[0]


@contextmanager
def simulation(config: str, clients: int, workers: int | None = None) -> Iterator[FlowerEngine]:
    """An engine whose clients are nodes of Flower's simulation, under Ray: here, or on the cluster at RAY_ADDRESS.

    Every process reads the data itself, by the configuration (as JSON), so files must be where each can read them.
    """
    flwr()
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise missing_extra("ray", "simulation", option("engine", "flower")) from error
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    grids: queue.Queue[Grid | BaseException] = queue.Queue()
    over, server = threading.Event(), ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        grids.put(grid)
        over.wait()

    init: dict[str, Any] = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
    if workers is not None:
        init["num_cpus"] = max(workers, 1)
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": init}

    def simulate() -> None:
        try:
            run_simulation(server, client_app(config), clients, backend_config=backend)
        except BaseException as error:
            grids.put(error)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    thread = threading.Thread(target=simulate, daemon=True)
    thread.start()
    try:
        arrived = grids.get(timeout=START)
        if isinstance(arrived, BaseException):
            raise FFGBError(f"Flower's simulation did not start: {shown(arrived)}") from arrived
        grid = Counted(arrived)
        found: dict[str, int] = {}
        asked: dict[str, tuple[int, str]] = {}
        until = time.monotonic() + START
        while len(found) < clients and time.monotonic() < until:
            asked |= _ask_who(grid, asked, set(found.values()), START)
            time.sleep(POLL)
            found |= {str(unpack(content)[1]["place"]): node for node, content in _replies(grid, asked)}
        if len(found) < clients:
            raise FFGBError(f"only {len(found)} of {clients} simulated clients answered within {START:g} s")
        yield FlowerEngine(grid, found, {i: str(i) for i in range(clients)}, FOREVER)
    except queue.Empty:
        raise FFGBError(f"Flower's simulation did not start within {START:g} s") from None
    finally:
        over.set()
        thread.join(timeout=60.0)
