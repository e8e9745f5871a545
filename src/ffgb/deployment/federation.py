"""The same training as an ordinary Flower app, for organisations that operate a Flower federation already.

Their SuperLink carries the messages, by its own rules and at its own pace; who may start an app there can run code at
every SuperNode (docs/sites.md says what its operator must lock).  An app of two lines a side:

    # server.py                                                 # client.py
    from ffgb.deployment.federation import server_app           from ffgb.deployment.federation import site_app
    app = server_app()                                          app = site_app()

A SuperNode is started with its site's file in its node configuration: `data="/path/site.csv" name="north"
target="outcome"`, and `config="/path/run.toml"`, the job's options as its owner knows them.  Starting it so is the
owner's consent to that job, and to nothing else: the same agreement and ledger as for `ffgb client`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffgb.data.reading import Reading
from ffgb.data.sites import Site
from ffgb.deployment.agreement import Ledger
from ffgb.deployment.attendant import Attendant, Least, rehearse
from ffgb.deployment.board import ServerBoard
from ffgb.deployment.identity import SiteIdentity
from ffgb.deployment.policy import Policy
from ffgb.deployment.server import Service, Task, federate
from ffgb.deployment.site import Home, inputs_of
from ffgb.engines.flower import Counted
from ffgb.engines.node import pack, unpack
from ffgb.engines.private import flwr
from ffgb.errors import FFGBError
from ffgb.runs.config import read_settings

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp


def server_app() -> ServerApp:
    """The app of the server's side: one training, described by one JSON object in the run's configuration (`job`).

    It has `clients`, `out`, `settings` (options of `ffgb train`), and may have `minimum`, `target`, `task`, `deadline`
    and `patience`, as `ffgb server` does.
    """
    flwr()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        job: dict[str, Any] = json.loads(str(context.run_config["job"]))
        clients = int(job["clients"])
        limits = float(job.get("deadline", 300.0)), float(job.get("patience", 600.0))
        service = Service(clients, int(job.get("minimum", clients)), "", 0, None, *limits)
        task = Task({**job.get("settings", {}), "data": ["sites"]}, job.get("target"), job.get("task"))
        out = Path(job["out"])
        federate(Counted(grid), service, task, out, board=ServerBoard(str(out), clients), say=print)

    return app


def site_app(config_of: Callable[[Context], Mapping[str, Any]] | None = None) -> ClientApp:
    """The app of a SuperNode; `config_of` says where its site's file is, unless the node's own configuration does."""
    flower = flwr()
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train("ffgb")
    def answer(message: Message, context: Context) -> Message:
        data, said = unpack(message.content)
        attendant = _attendant(context.node_config if config_of is None else config_of(context))
        if "said" in context.state:
            attendant.go_on(*unpack(context.state))
        data, said = attendant.answer(data, said)
        state = pack(*attendant.kept())
        for name in state:
            context.state[name] = state[name]
        return flower.Message(pack(data, said), reply_to=message)  # type: ignore[no-any-return]

    return app


def _attendant(config: Mapping[str, Any]) -> Attendant:
    """The site that a node's configuration describes, with what its owner has agreed to by writing it."""
    try:
        data, name = Path(str(config["data"])), str(config["name"])
    except KeyError as error:
        raise FFGBError(f"the node's configuration lacks {error}; it needs data, name, and target") from error
    file = config.get("config")
    settings = {**read_settings(None if file is None else Path(str(file))), "data": ["sites"]}
    target, task = (settings.pop(word, None) or config.get(word) for word in ("target", "task"))
    known = {word: settings[word] for word in ("categories", "rare") if word in settings}
    site = Site(name, data.absolute(), target, task, **known, reading=Reading.of(settings))
    home = Home.of("flower:1", name)
    inputs = inputs_of(data, settings, target, task, name)
    agreement = home.agreed(inputs)
    policy = Policy(secure=settings.get("secure") != "off")
    if "policy" in config:
        policy = Policy.read(Path(str(config["policy"])))
    if agreement is None:
        Least(policy.least_rows, policy.least_class, policy.least_cell).check(site.describe(), {})
        _, agreement = rehearse(site, settings, trainings=policy.trainings)
        home.agree(inputs, agreement)
    identity = SiteIdentity.of(name, home.folder, None, policy)
    return Attendant(site, settings, agreement, Ledger(home.ledger), policy=policy, identity=identity)
