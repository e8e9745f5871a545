"""Federated functional gradient boosting: sites that do not pool their data train one function together."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ffgb._version import __version__

if TYPE_CHECKING:
    from ffgb.algorithms.ffgb import FFGB
    from ffgb.algorithms.ffgb_c import FFGBC
    from ffgb.algorithms.ffgb_l import FFGBL
    from ffgb.errors import FFGBError
    from ffgb.runs.config import Config
    from ffgb.runs.cox import CoxResult, cox
    from ffgb.runs.glm import GLMResult, glm
    from ffgb.runs.kaplan_meier import SurvivalResult, survival_curves
    from ffgb.runs.model import Model
    from ffgb.runs.training import Result, federate, train
    from ffgb.runs.withdraw import withdraw
    from ffgb.sklearn import FFGBClassifier, FFGBRegressor

__all__ = [
    "FFGB",
    "FFGBC",
    "FFGBL",
    "Config",
    "CoxResult",
    "FFGBClassifier",
    "FFGBError",
    "FFGBRegressor",
    "GLMResult",
    "Model",
    "Result",
    "SurvivalResult",
    "__version__",
    "citation",
    "cox",
    "federate",
    "glm",
    "survival_curves",
    "train",
    "withdraw",
]

_HOME = {
    "FFGB": "ffgb.algorithms.ffgb",
    "FFGBC": "ffgb.algorithms.ffgb_c",
    "FFGBL": "ffgb.algorithms.ffgb_l",
    "FFGBClassifier": "ffgb.sklearn",
    "FFGBError": "ffgb.errors",
    "FFGBRegressor": "ffgb.sklearn",
    "GLMResult": "ffgb.runs.glm",
    "Model": "ffgb.runs.model",
    "Config": "ffgb.runs.config",
    "CoxResult": "ffgb.runs.cox",
    "Result": "ffgb.runs.training",
    "cox": "ffgb.runs.cox",
    "SurvivalResult": "ffgb.runs.kaplan_meier",
    "federate": "ffgb.runs.training",
    "glm": "ffgb.runs.glm",
    "survival_curves": "ffgb.runs.kaplan_meier",
    "train": "ffgb.runs.training",
    "withdraw": "ffgb.runs.withdraw",
}


def __getattr__(name: str) -> Any:
    # On first use, because a worker process and `ffgb --version` need none of it, and pandas takes its time.
    if name not in _HOME:
        raise AttributeError(f"module 'ffgb' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def citation() -> str:
    """BibTeX of the paper whose method this is."""
    return (
        "@inproceedings{shen2022federated,\n"
        "  title     = {Federated Functional Gradient Boosting},\n"
        "  author    = {Shen, Zebang and Hassani, Hamed and Kale, Satyen and Karbasi, Amin},\n"
        "  booktitle = {International Conference on Artificial Intelligence and Statistics},\n"
        "  year      = {2022}\n"
        "}"
    )
