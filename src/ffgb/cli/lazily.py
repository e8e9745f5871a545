"""`ffgb train` is made of the settings of all parts, which take a second to import: only when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ffgb.cli.common import app

HELP = "Train across clients, and write a run directory with the model."


@app.command(name="train", help=HELP, add_help_option=False)
def _train() -> None:  # in its place in the list of commands
    raise AssertionError("load_train comes first")


def wants_train(words: Sequence[str]) -> bool:
    """Does this command line call `ffgb train`?"""
    return next((word for word in words if not word.startswith("-")), "") == "train"


def load_train() -> None:
    """Put the command itself in place of its entry."""
    entry = next((i for i, command in enumerate(app.registered_commands) if command.callback is _train), None)
    if entry is not None:
        importlib.import_module("ffgb.cli.train")
        app.registered_commands[entry] = app.registered_commands.pop()
