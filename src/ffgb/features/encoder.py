"""A frozen encoder of the user's own as a feature map: a Python callable, or an ONNX file.

A callable is named package.module:function, takes points (n, ...) and returns features (n, D); its code runs only
where the local user has named it.  An ONNX file becomes part of the map: it is sent to the clients once (and counted),
and stored in the model, which then needs nothing else to predict.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array
from ffgb.errors import FFGBError, missing_extra
from ffgb.features.onnx_files import refuse_external_data
from ffgb.user_code import named

POINTS_AT_ONCE = 256


@final
@dataclass(frozen=True, eq=False)
class Encoder(FeatureMap):
    """x to the encoder's output, flattened to one row a point."""

    name: str
    shape: tuple[int, ...]
    outputs: int
    onnx: Array
    """The file's bytes, or none for a callable."""

    @staticmethod
    def names(name: str) -> bool:
        """Is this the name of an encoder, rather than of a map of our own?"""
        return name.endswith(".onnx") or ":" in name

    @staticmethod
    def load(name: str, shape: tuple[int, ...]) -> Encoder:
        """The encoder of this name, tried on one point: that tells how many features it has."""
        content = np.empty(0, np.uint8)
        if name.endswith(".onnx"):
            try:
                content = np.frombuffer(Path(name).read_bytes(), np.uint8)
            except OSError as error:
                raise FFGBError(f"the encoder {name} cannot be read ({error.strerror})") from error
            if not len(content):
                raise FFGBError(f"the encoder {name} is an empty file")
        trial = Encoder(Path(name).name if len(content) else name, shape, 0, content)
        z = trial._encode(np.zeros((1, *shape), np.float32))
        return Encoder(trial.name, shape, z.shape[1], content)

    @property
    def file(self) -> bytes:
        """The ONNX file, which names no other: it may have come in a message."""
        data = self.onnx.tobytes()
        refuse_external_data(data, self.name)
        return data

    @property
    def dimension(self) -> int:
        return self.outputs

    def __call__(self, x: Array) -> Array:
        points = np.ascontiguousarray(x, np.float32).reshape(len(x), *self.shape)
        z = np.empty((len(x), self.outputs), np.float32)
        for start in range(0, len(x), POINTS_AT_ONCE):
            rows = slice(start, start + POINTS_AT_ONCE)
            part = self._encode(points[rows])
            if part.shape[1] != self.outputs:
                raise FFGBError(f"the encoder {self.name} gave {part.shape[1]} features, and before {self.outputs}")
            z[rows] = part
        if not np.isfinite(z).all():
            raise FFGBError(f"the encoder {self.name} gave features that are not finite")
        return z

    def _encode(self, x: Array) -> Array:
        try:
            z = self._session(x) if len(self.onnx) else named(self.name, "map")(x)
            features = np.asarray(z, np.float32)
            if features.shape[:1] != (len(x),):
                raise FFGBError(f"the encoder {self.name} gave an array {features.shape} for {len(x)} points")
            features = features.reshape(len(x), -1)
        except FFGBError:
            raise
        except Exception as error:  # a user's own encoder may fail in any way at all
            raise FFGBError(f"the encoder {self.name} fails on points of shape {self.shape}: {error}") from error
        return features

    @cached_property
    def _session(self) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            raise missing_extra("onnxruntime", "onnx", f"the encoder {self.name}") from error
        data = self.file
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.load_model_format", "ONNX")  # another one was not looked at
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # as everywhere at a client: the same bits
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        batch = given.shape[0] if given.shape and isinstance(given.shape[0], int) else None

        def run(x: Array) -> Array:
            if batch is None:
                return np.asarray(session.run(None, {given.name: x})[0])
            parts = []
            for start in range(0, len(x), batch):  # a file with a fixed batch: the last one is filled up
                part = x[start : start + batch]
                full = np.concatenate([part, np.zeros((batch - len(part), *self.shape), np.float32)])
                parts.append(np.asarray(session.run(None, {given.name: full})[0])[: len(part)])
            return np.concatenate(parts)

        return run
