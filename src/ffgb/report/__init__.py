"""The page a person looks at: one run, or several side by side, as one HTML file that needs nothing else.

Plots are SVG that is written here, complete without any script; the script adds a read-out under the pointer.  Names of
clients, classes and columns come from outside: every text is escaped, and the page forbids all scripts but its own.

`past` reads runs, and `words` writes numbers and texts.  Figures are drawn in `axes`, `curves`, `histogram` and `rows`;
`pieces`, `document` and `pages` put pages together.  `one` is the page of a run, with longer sections in `clients`,
`measured` and `costs`; `several` is that of runs side by side.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ffgb.report.pages import page, write

__all__ = ["page", "write"]


def __getattr__(name: str) -> Any:
    # On first use: `ffgb --help` needs `words` alone, and pages need NumPy.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("ffgb.report.pages"), name)
