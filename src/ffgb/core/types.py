"""The types that everything is made of: arrays, and arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


Parameters: TypeAlias = Mapping[str, Array]
"""Arrays by name: of one member, or of a stack of members (then every array has one more, leading axis)."""


Tensors: TypeAlias = Mapping[str, Array]
