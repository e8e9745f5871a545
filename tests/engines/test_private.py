"""What ffgb needs of flwr beyond its public interface: another release may change any of it, and must fail here."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("flwr")

from ffgb.engines import private
from ffgb.errors import FFGBError


@pytest.fixture(scope="module")
def names() -> Any:
    return private.names(private.MESSAGES, private.REQUESTS, private.SITE, private.SERVER)


def test_the_version_is_the_one_that_was_tried() -> None:
    from importlib.metadata import version

    assert version("flwr").startswith("1.41.")


def test_the_fleet_protocol_is_the_same(names: Any) -> None:
    fields = {
        "ActivateNodeRequest": {"public_key", "heartbeat_interval"},
        "DeactivateNodeRequest": {"node_id"},
        "PullMessagesRequest": {"node", "message_ids"},
        "PushMessagesRequest": {"node", "messages_list", "message_object_trees", "clientapp_runtime_list"},
        "SendNodeHeartbeatRequest": {"node", "heartbeat_interval"},
        "ConfirmMessageReceivedRequest": {"node", "run_id", "message_object_id"},
        "PullObjectRequest": {"node", "run_id", "object_id"},
        "PushObjectRequest": {"node", "run_id", "object_id", "object_content", "session_id"},
    }
    for name, expected in fields.items():
        assert {field.name for field in getattr(names, name).DESCRIPTOR.fields} == expected, name


def test_handlers_take_what_they_are_given(names: Any) -> None:
    handlers = {
        "activate_node": ["request", "state"],
        "deactivate_node": ["request", "state"],
        "send_node_heartbeat": ["request", "state"],
        "pull_messages": ["request", "state", "store"],
        "push_messages": ["request", "state"],
        "pull_object": ["request", "state"],
        "push_object": ["request", "state"],
        "confirm_message_received": ["request", "state", "store"],
    }
    for name, expected in handlers.items():
        assert list(inspect.signature(getattr(names.fleet_handlers, name)).parameters) == expected, name
    for name in ("get_nodes", "push_messages", "pull_messages", "push_object", "pull_object"):
        found = list(inspect.signature(getattr(names.runtime_handlers, name)).parameters)
        assert found == ["request", "state", "task"], name


def test_the_state_in_memory_is_as_it_was(names: Any) -> None:
    state = names.LinkStateFactory(
        ":flwr-in-memory:", names.NoOpFederationManager(), names.ObjectStoreFactory(":flwr-in-memory:")
    ).state()
    for name in ("message_ins_store", "message_ins_id_to_message_res_id"):
        assert isinstance(getattr(state, name), dict), name
    for name in ("create_node", "delete_node", "deactivate_node", "create_run", "claim_task", "activate_task",
                 "get_tasks", "acknowledge_task_heartbeat", "delete_messages"):  # fmt: skip
        assert callable(getattr(state, name)), name
    assert callable(state.object_store.delete)


def test_signatures_are_checked(names: Any) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    public = names.bytes_to_public_key(names.public_key_to_bytes(key.public_key()))
    signature = names.sign_message(key, b"words")
    assert names.verify_signature(public, b"words", signature)
    assert not names.verify_signature(public, b"other", signature)
    assert not names.verify_signature(public, b"words", names.sign_message(other, b"words"))


def test_the_client_can_be_given_our_connection_and_does_nothing_else(names: Any) -> None:
    client = names.FleetHttpClient("https://127.0.0.1:1")
    assert client._client.__class__.__name__ == "Client"
    assert client._interceptors == ()
    client._client.close()


def test_what_is_missing_is_said() -> None:
    with pytest.raises(FFGBError, match="this version of flwr lacks what ffgb needs"):
        private.names({"flwr.app": ("Nothing",)})
    with pytest.raises(FFGBError, match=r"install flwr>=1.41,<1.42"):
        private.names({"flwr.nowhere": ("x",)})


def test_what_should_be_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in private.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    private.flwr()
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
