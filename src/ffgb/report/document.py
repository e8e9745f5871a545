"""The document around the pieces of a page, with its style and its script."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from ffgb._version import __version__
from ffgb.report.words import escaped


def page_file(name: str, package: str = "ffgb.report") -> str:
    """A file of a package, from a line of its own on."""
    return "\n" + resources.files(package).joinpath(name).read_text(encoding="utf-8")


STYLE = page_file("page.css")
# No "<" and no "&", so that the page is XML, too.
SCRIPT = page_file("page.js")
FOOT = "This page is one file: it loads nothing, and can be mailed or printed."


def policy_for(script: str) -> str:
    """The policy that allows our own script, by its hash, and nothing from anywhere else."""
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'; img-src data:"


def document(
    title: str,
    body: str,
    *,
    kind: str = "report",
    foot: str = FOOT,
    style: str = STYLE,
    script: str = SCRIPT,
    policy: str = policy_for(SCRIPT),
) -> str:
    """The page around its parts, which are escaped already; the title is not."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/><link rel="icon" href="data:,"/>'
        f"<title>{escaped(title)} – ffgb {kind}</title><style>{style}</style></head>\n"
        f"<body><main>{body}<footer>Written by ffgb {__version__}. {foot}</footer></main>"
        f"<script>{script}</script></body></html>\n"
    )
