"""What clients have sent and received, in parameters, models and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import final

from ffgb.protocol.codec import Message, encode


@final
@dataclass(frozen=True)
class Costs:
    """What all clients together have sent and received so far, set-up included."""

    parameters_up: int = 0
    parameters_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def up(self, messages: Iterable[Message]) -> Costs:
        some = list(messages)
        return replace(
            self,
            parameters_up=self.parameters_up + sum(m.parameters for m in some),
            bytes_up=self.bytes_up + sum(m.size for m in some),
        )

    def down(self, message: Message, clients: int, *, known: Iterable[Message] = ()) -> Costs:
        """One message to several clients.

        Of what a client sent itself the parameters are not counted, as in the paper; the bytes are, for they do travel.
        """
        return replace(
            self,
            parameters_down=self.parameters_down + message.parameters * clients - sum(m.parameters for m in known),
            bytes_down=self.bytes_down + len(encode(message)) * clients,
        )

    def plus(self, other: Costs) -> Costs:
        """Both together."""
        return Costs(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    def since(self, before: Costs) -> Costs:
        """What came after."""
        return Costs(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))

    def mean(self, clients: int, model: int) -> dict[str, float]:
        """One client's mean, in the three units; a *model* is the number of parameters of one weak learner."""
        return {
            "parameters_up": self.parameters_up / clients,
            "parameters_down": self.parameters_down / clients,
            "models_up": self.parameters_up / clients / model,
            "models_down": self.parameters_down / clients / model,
            "bytes_up": self.bytes_up / clients,
            "bytes_down": self.bytes_down / clients,
        }


UNITS = {"mlp": 26_506, "cnn": 17_090}
"""Parameters of the paper's two nets: what comparisons across families count models in."""
