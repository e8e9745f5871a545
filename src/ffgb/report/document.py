"""The document around the pieces of a page, with its style and its script."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from ffgb._version import __version__
from ffgb.report.words import escaped


def _file(name: str) -> str:
    """A file beside this one, from a line of its own on."""
    return "\n" + resources.files("ffgb.report").joinpath(name).read_text(encoding="utf-8")


STYLE = _file("page.css")
# No "<" and no "&", so that the page is XML, too.
SCRIPT = _file("page.js")


def document(title: str, body: str) -> str:
    """The page around its parts.  The policy allows our own script, by its hash, and nothing from anywhere else."""
    own = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/><link rel="icon" href="data:,"/>'
        f"<title>{escaped(title)} – ffgb report</title><style>{STYLE}</style></head>\n"
        f"<body><main>{body}<footer>Written by ffgb {__version__}. This page is one file: it loads nothing, and can be "
        f"mailed or printed.</footer></main><script>{SCRIPT}</script></body></html>\n"
    )
