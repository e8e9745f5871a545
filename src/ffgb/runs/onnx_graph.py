"""An ONNX graph on its way to a file: nodes, constants, and the library that makes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from ffgb.core.types import Array
from ffgb.errors import missing_extra

OPSET = 18
"""The version of the standard operators."""


@final
@dataclass
class Graph:
    """Nodes and constants on their way to a file; values are known by their names."""

    prefix: str = "ffgb_"
    """Of all names that are made here: no column's name begins with it."""
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def __call__(self, operator: str, *inputs: str | Array, name: str = "", domain: str = "", **settings: Any) -> str:
        """The name of what an operator makes of values and constants."""
        name = name or f"{self.prefix}v{len(self.nodes)}"
        return self.several(operator, [name], *inputs, domain=domain, **settings)[0]

    def several(
        self, operator: str, names: list[str], *inputs: str | Array, domain: str = "", **settings: Any
    ) -> list[str]:
        given = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(onnx_library().helper.make_node(operator, given, names, domain=domain, **settings))
        return names

    def constant(self, value: Array) -> str:
        name = f"{self.prefix}c{len(self.constants)}"
        tensor = onnx_library().numpy_helper.from_array(np.ascontiguousarray(value), name)
        self.constants.append(tensor)
        return name

    def cast(self, value: str, dtype: str, name: str = "") -> str:
        kind = getattr(onnx_library().TensorProto, {"float32": "FLOAT", "float64": "DOUBLE", "int64": "INT64"}[dtype])
        return self("Cast", value, name=name, to=kind)

    def reshape(self, value: str, *shape: int) -> str:
        """To this shape; 0 keeps a length, −1 is what remains."""
        return self("Reshape", value, np.array(shape, np.int64))


def onnx_library() -> Any:
    try:
        import onnx
        import onnx.compose
        import onnx.helper
        import onnx.numpy_helper
        import onnx.version_converter
    except ImportError as error:
        raise missing_extra("onnx", "onnx", "the export") from error
    return onnx


def f32(*values: float) -> Array:
    return np.array(values, np.float32)
