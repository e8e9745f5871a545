"""What is told of a training while it goes on: a callback is an object with some of these methods.

A callback for an experiment tracker is a few lines:

    class TensorBoard(Callback):
        def __init__(self, folder):
            self.writer = torch.utils.tensorboard.SummaryWriter(folder)

        def round(self, metrics):
            for name in ("train_loss", "test_loss"):
                if metrics.get(name) is not None:  # private trainings report none
                    self.writer.add_scalar(name, metrics[name], metrics["round"])

    train(config, callbacks=[TensorBoard("logs")])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from ffgb.data import Dataset
from ffgb.runs.config import Config


class Callback:
    """Told of a training; a subclass overrides what it wants to know."""

    def start(self, config: Config, dataset: Dataset) -> None:
        """The settings are chosen, and the data are read."""

    def setup(self, what: str, done: int, clients: int) -> None:
        """Before the first round clients are asked for `what`; so many have been."""

    def round(self, metrics: dict[str, Any]) -> None:
        """A round is over, and written down."""

    def end(self, result: Any) -> None:
        """The training is over (`ffgb.Result`)."""


@final
@dataclass(frozen=True)
class Functions(Callback):
    """Functions in place of an object."""

    on_start: Callable[[Config, Dataset], None]
    on_setup: Callable[[str, int, int], None]
    on_round: Callable[[dict[str, Any]], None]

    def start(self, config: Config, dataset: Dataset) -> None:
        self.on_start(config, dataset)

    def setup(self, what: str, done: int, clients: int) -> None:
        self.on_setup(what, done, clients)

    def round(self, metrics: dict[str, Any]) -> None:
        self.on_round(metrics)


@final
@dataclass(frozen=True)
class Told(Callback):
    """All who are told, and whether anyone wants to stop."""

    callbacks: Sequence[Callback]
    should_stop: Callable[[], bool]

    def start(self, config: Config, dataset: Dataset) -> None:
        for callback in self.callbacks:
            callback.start(config, dataset)

    def setup(self, what: str, done: int, clients: int) -> None:
        for callback in self.callbacks:
            callback.setup(what, done, clients)
        if self.should_stop():
            raise KeyboardInterrupt  # there is no round to finish yet

    def round(self, metrics: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.round(metrics)

    def end(self, result: Any) -> None:
        for callback in self.callbacks:
            callback.end(result)
