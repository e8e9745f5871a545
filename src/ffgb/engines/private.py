"""Every name of Flower's that is not part of its public interface, in one place.

`ffgb` speaks Flower's Fleet protocol without Flower's launchers, so it needs parts of flwr that may change with any
release: `flwr>=1.41,<1.42` is pinned, and tests/engines/test_private.py says what each name must do.  Nothing else in
ffgb imports flwr, except engines/flower.py, which uses what Flower documents.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ffgb.errors import FFGBError, missing_extra

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""What Flower does unless it is told not to: telemetry, a look for updates, and installing packages at run time."""


def flwr() -> Any:
    """Flower's public module `flwr.app`, imported after all that should be off is switched off."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import flwr.app
    except ImportError as error:
        raise missing_extra("flwr", "flower", "training between sites") from error
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it prints what others have sent as it is
    return flwr.app


MESSAGES = {
    "flwr.app.message": ("remove_content_from_message",),
    "flwr.common.serde": ("message_from_proto", "message_to_proto"),
    "flwr.supercore.inflatable.inflatable_object": (
        "get_all_nested_objects",
        "get_object_tree",
        "iterate_object_tree",
        "no_object_id_recompute",
    ),
    "flwr.supercore.inflatable.inflatable_utils": ("inflate_object_from_contents",),
}
"""How a Flower message is taken apart into objects, and put together again."""
REQUESTS = {
    "flwr.proto.fleet_pb2": (
        "ActivateNodeRequest",
        "DeactivateNodeRequest",
        "PullMessagesRequest",
        "PushMessagesRequest",
    ),
    "flwr.proto.heartbeat_pb2": ("SendNodeHeartbeatRequest",),
    "flwr.proto.message_pb2": ("ConfirmMessageReceivedRequest", "PullObjectRequest", "PushObjectRequest"),
}
"""The eight calls of the Fleet protocol that a node makes."""
SITE = {
    "flwr.proto.node_pb2": ("Node",),
    "flwr.supercore.primitives.asymmetric": ("public_key_to_bytes", "sign_message"),
    "flwr.supernode.fleet_http_client": ("FleetHttpClient",),
}
"""Flower's client of that protocol."""
SERVER = {
    "flwr.common.constant": ("NOOP_ACCOUNT_NAME", "NOOP_FLWR_AID"),
    "flwr.server.superlink.linkstate": ("LinkStateFactory",),
    "flwr.supercore.constant": ("NOOP_FEDERATION_ID", "TaskType"),
    "flwr.supercore.error": ("FlowerError",),
    "flwr.supercore.error.catalog": ("API_ERROR_MAP",),
    "flwr.supercore.inflatable.inflatable_object": ("iterate_object_tree",),
    "flwr.supercore.object_store": ("ObjectStoreFactory",),
    "flwr.supercore.primitives.asymmetric": ("bytes_to_public_key", "verify_signature"),
    "flwr.supercore.task_identity": ("TaskIdentity",),
    "flwr.superlink.federation": ("NoOpFederationManager",),
    "flwr.superlink.grid": ("HttpGrid",),
    "flwr.superlink.servicer.fleet.fleet_handlers": (),
    "flwr.superlink.servicer.runtime.runtime_handlers": (),
}
"""Flower's handlers of that protocol, its state in memory, and its grid."""


def names(*tables: Mapping[str, Sequence[str]]) -> Any:
    """These names of Flower's, as attributes; of a module without a list, the module itself."""
    flwr()
    found: dict[str, Any] = {}
    for module, wanted in (pair for table in tables for pair in table.items()):
        try:
            loaded = importlib.import_module(module)
            found |= {name: getattr(loaded, name) for name in wanted} or {module.rpartition(".")[2]: loaded}
        except (ImportError, AttributeError) as error:
            raise FFGBError(
                f"this version of flwr lacks what ffgb needs ({error}); install flwr>=1.41,<1.42"
            ) from error
    return SimpleNamespace(**found)
