"""A Flower grid in one process: nodes that answer at once, or as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from ffgb.data.files import Columns


class InProcessGrid(Grid):
    """Nodes by number, each with its configuration; what is pushed is answered when it is pulled."""

    def __init__(self, app: ClientApp, nodes: Mapping[int, Mapping[str, Any]]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.app = app
        self.contexts = {node: Context(1, node, dict(config), RecordDict(), {}) for node, config in nodes.items()}
        self.before: Callable[[], None] = lambda: None
        """What happens before each message is answered."""
        self.sent = 0
        self.bytes = 0
        """Of all messages, as Flower serialises them, there and back."""
        self.echoes = False
        """Every answer comes twice, and once more with the next ones, when no one waits for it."""
        self.late: list[Message] = []
        self.described: dict[str, Columns] = {}
        """What sites know of their files, for those who need not find it out by sums."""
        self.pending: dict[str, Message] = {}
        self.fault: Callable[[Message, Message], Message | None] = lambda question, reply: reply

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.sent += 1
            name = f"m{self.sent}"
            message.metadata.__dict__["_message_id"] = name
            ids.append(name)
            self.pending[name] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for name in list(message_ids):
            message = self.pending.pop(name, None)
            if message is None or message.metadata.dst_node_id not in self.contexts:
                continue
            self.before()
            node = message.metadata.dst_node_id
            reply = self.fault(message, self.app(_travelled(message), self.contexts[node]))
            self.bytes += message_to_proto(message).ByteSize()
            if reply is not None:
                replies.append(_travelled(reply))
                self.bytes += message_to_proto(reply).ByteSize()
        if self.echoes:
            before, self.late = self.late, replies if replies else self.late
            return [*before, *replies, *replies]
        return replies

    def send_and_receive(self, *args: Any, **more: Any) -> Iterable[Message]:
        raise NotImplementedError


def _travelled(message: Message) -> Message:
    return message_from_proto(message_to_proto(message))
