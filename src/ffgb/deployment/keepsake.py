"""What a site has of a training that ended: the model, how good it is at the site's own rows, and a report.

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
from ffgb.deployment.agreement import encoders, form
from ffgb.deployment.keys import private
from ffgb.deployment.site_report import REPORT, SCORES, site_report
from ffgb.errors import FFGBError, command
from ffgb.files import atomic_write
from ffgb.protocol.codec import decode
from ffgb.runs.certainty import of_accuracy
from ffgb.runs.config import Config
from ffgb.runs.conformal import FILE as CONFORMAL
from ffgb.runs.conformal import calibrated
from ffgb.runs.fit_times import FILE as BASELINE
from ffgb.runs.fit_times import baseline_of
from ffgb.runs.headline import headline
from ffgb.runs.held_out import HeldOut
from ffgb.runs.model import Model

HELD_OUT: Final = "held out"
NEAR: Final = 1e-3
"""A model whose loss on the site's own rows is further than this from what was computed in training is another one."""


@final
@dataclass(frozen=True)
class Keepsake:
    """Keeps models in a folder of the site."""

    folder: Path
    settings: Mapping[str, Any]
    """The options of the job."""
    files: frozenset[str] = frozenset()
    """Hashes of the ONNX files that the owner has agreed to: a model with another one is not tried."""

    def keep(
        self,
        site: Site,
        schema: Schema,
        seed: int,
        own: Mapping[str, Any],
        parts: Mapping[str, bytes],
        seen: Mapping[str, Any],
    ) -> list[str]:
        """Check and keep what the server sent; sentences for the owner.

        `own` are the site's scores in the last round, `parts` what the server sent, and `seen` is a snapshot of the
        site's board.
        """
        try:
            model = Model.from_bytes(parts["model"])
            sent = decode(parts["model"])
            if strange := encoders(form(sent.values["recipe"], sent.tensors)) - self.files:
                raise FFGBError(
                    f"it has an ONNX file that this site has not agreed to, with the SHA-256 {min(strange)}"
                )
            summary = json.loads(parts["summary"])
            rounds = int(summary["round"])
        except (FFGBError, KeyError, TypeError, ValueError) as error:
            raise FFGBError(f"training has ended, but what the server sent is not a model ({error})") from error
        if model.shape != schema.shape or model.classes != schema.classes:
            raise FFGBError("training has ended, but the server sent a model of other columns or classes")
        dataset = site.load(schema, seed)
        scores = {"to train with": {"rows": len(dataset.y), **model.score(dataset.x, dataset.y)}}
        if len(dataset.y_test):
            scores[HELD_OUT] = {"rows": len(dataset.y_test), **model.score(dataset.x_test, dataset.y_test)}
        place = self._place()
        private(place)
        if len(dataset.y_test) and (thresholds := calibrated(model, HeldOut(dataset.x_test, dataset.y_test, (), None))):
            atomic_write(place / CONFORMAL, json.dumps(thresholds.to_json(), indent=1).encode(), 0o600)
        if not model.job.loss.alone and (hazards := baseline_of(model, dataset)) is not None:
            atomic_write(place / BASELINE, json.dumps(hazards.to_json()).encode(), 0o600)
        for name, data in {
            "model.safetensors": parts["model"],
            SCORES: json.dumps(scores, indent=1).encode(),
            REPORT: site_report(scores, summary, self._options(site), seen).encode(),
            "config.json": json.dumps(self._config(site), indent=1).encode(),  # last: now it is a run
        }.items():
            atomic_write(place / name, data, 0o600)
        return [
            *self._strange(own, scores, rounds),
            f"training has ended after {rounds} round{'s' * (rounds != 1)}; the model is in {place}",
            *(f"on its own rows {name}: {_in_words(name, line)}" for name, line in scores.items()),
            f"what left this site, its own scores and the result of all: {place / REPORT}",
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

    def _options(self, site: Site) -> dict[str, Any]:
        return {**self.settings, "target": site.target, "task": site.task}

    def _config(self, site: Site) -> dict[str, Any]:
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in self._options(site).items()}
        config = Config(**{**values, "data": ("sites",)})
        content = hashlib.sha256(site.path.read_bytes()).hexdigest()
        return {**config.to_json(), "sha256": {str(site.path): content}}


def _in_words(name: str, line: Mapping[str, Any]) -> str:
    """Scores of a model at some rows, as they are told everywhere; training rows have no interval."""
    told = {f"test_{score}": value for score, value in line.items()}
    if name == HELD_OUT and "accuracy" in line:
        told |= of_accuracy(line["accuracy"], line["rows"])
    return f"{headline(told)[0].removeprefix('test ')} ({line['rows']:,} rows)"
