"""The one error that users meet: what went wrong and what to do, in a sentence."""

from __future__ import annotations


class FFGBError(Exception):
    """Something the user can put right.  The command line prints its message and exits with code 2."""


class DivergedError(FFGBError):
    """Steps were too large: values became infinite."""


def missing_extra(package: str, extra: str, what: str) -> FFGBError:
    """The error for an optional dependency that is not installed."""
    return FFGBError(f"{what} needs {package}, which is not installed; run: pip install 'ffgb[{extra}]'")
