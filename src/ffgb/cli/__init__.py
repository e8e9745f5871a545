"""The command line.  Everything it does is a library call; here are only options, display and exit codes.

A command imports what it calls inside its function: `ffgb --help` is to take half a second, and the settings of all
parts, pandas and scikit-learn take more.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from ffgb._version import __version__
from ffgb.cli.common import INTERRUPTED, app
from ffgb.cli.lines import tell
from ffgb.errors import FFGBError, printable

# isort: off
# their commands, in the order of the help
import ffgb.cli.lazily
import ffgb.cli.models
import ffgb.cli.statistics
import ffgb.cli.withdraw
import ffgb.cli.studies
import ffgb.cli.sites
import ffgb.cli.analyses
import ffgb.cli.data
import ffgb.cli.schemas
import ffgb.cli.doctor
# isort: on


class _Lines(logging.Formatter):
    """Log lines as a terminal may show them."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def main() -> None:
    """The entry point: a user's mistake becomes one sentence and exit code 2."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("ffgb: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    completed = os.environ.get("_TYPER_COMPLETE_ARGS", os.environ.get("COMP_WORDS", ""))  # a shell asks what may follow
    if ffgb.cli.lazily.wants_train(sys.argv[1:] or completed.split()[1:]):
        ffgb.cli.lazily.load_train()
    try:
        app()
    except FFGBError as error:
        tell(Console(stderr=True), str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except MemoryError:
        print("ffgb: not enough memory; choose a smaller learner or fewer workers", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        tell(Console(stderr=True), _of_the_system(error))
        sys.exit(2)


def _of_the_system(error: OSError) -> str:
    """What the operating system would not do, and the remedy.

    >>> _of_the_system(OSError(errno.ENOSPC, "No space left on device"))
    'the disk is full; make room on it, and start the same command again'
    """
    where = "" if error.filename is None else f" ({error.filename})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{where}; make room on it, and start the same command again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename or 'a file'}: {error.strerror}; change its permissions, or choose another place"
    return f"{error.filename or 'a file'}: {error.strerror or error}; choose another place"


def _version(value: bool) -> None:
    if value:
        print(f"ffgb {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None: ...
