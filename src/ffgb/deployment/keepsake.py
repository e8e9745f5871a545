"""What a site has of a training that ended: the model, and how good it is at the site's own rows.

The model came from the server, so it is checked like everything that arrives, and tried on the site's own rows before
it is kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from ffgb.data.sites import Schema, Site
from ffgb.deployment.keys import private
from ffgb.errors import FFGBError, command
from ffgb.files import atomic_write
from ffgb.runs.config import Config
from ffgb.runs.model import Model

NEAR: Final = 1e-3
"""A model whose loss on the site's own rows is further than this from what was computed in training is another one."""


@final
@dataclass(frozen=True)
class Keepsake:
    """Keeps models in a folder of the site."""

    folder: Path
    settings: Mapping[str, Any]
    """The options of the job."""

    def keep(
        self, site: Site, schema: Schema, seed: int, own: Mapping[str, Any], parts: Mapping[str, bytes]
    ) -> list[str]:
        """Check and keep what the server sent; sentences for the owner."""
        try:
            model = Model.from_bytes(parts["model"])
            summary = json.loads(parts["summary"])
            rounds = int(summary["round"])
        except (FFGBError, KeyError, TypeError, ValueError) as error:
            raise FFGBError(f"training has ended, but what the server sent is not a model ({error})") from error
        if model.shape != schema.shape or model.classes != schema.classes:
            raise FFGBError("training has ended, but the server sent a model of other columns or classes")
        dataset = site.load(schema, seed)
        scores = {"to train with": {"rows": len(dataset.y), **model.score(dataset.x, dataset.y)}}
        if len(dataset.y_test):
            scores["held out"] = {"rows": len(dataset.y_test), **model.score(dataset.x_test, dataset.y_test)}
        place = self._place()
        private(place)
        for name, data in {
            "model.safetensors": parts["model"],
            "scores.json": json.dumps(scores, indent=1).encode(),
            "config.json": json.dumps(self._config(site), indent=1).encode(),  # last: now it is a run
        }.items():
            atomic_write(place / name, data, 0o600)
        return [
            *self._strange(own, scores, rounds),
            f"training has ended after {rounds} round{'s' * (rounds != 1)}; the model is in {place}",
            *(f"on its own rows {name}: {_in_words(line)}" for name, line in scores.items()),
            f"to predict new rows: {command('predict', place, 'FILE')}",
        ]

    @staticmethod
    def _strange(own: Mapping[str, Any], scores: Mapping[str, Any], rounds: int) -> list[str]:
        """The loss of the last round at these rows was computed here: a model that has another was not trained here."""
        for name, line in own.items():
            then, now = float(line["loss"]), float(scores.get(name, line)["loss"])
            if line["round"] == rounds and not math.isclose(then, now, rel_tol=NEAR, abs_tol=NEAR):
                return [
                    "the server sent another model than the one that was trained: its loss on the rows "
                    f"{name} is {now:.4g}, and was {then:.4g}; ask its operator"
                ]
        return []

    def _place(self) -> Path:
        n = 1
        while (place := self.folder / f"model-{n}").exists():
            n += 1
        return place

    def _config(self, site: Site) -> dict[str, Any]:
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in self.settings.items() if k != "data"}
        config = Config(**{**values, "data": ("sites",), "target": site.target, "task": site.task})
        content = hashlib.sha256(site.path.read_bytes()).hexdigest()
        return {**config.to_json(), "sha256": {str(site.path): content}}


def _in_words(line: Mapping[str, Any]) -> str:
    scores = [f"{name} {value:.3f}" for name, value in line.items() if name not in ("rows", "loss")]
    return f"{', '.join(scores)} ({line['rows']:,} rows)"
