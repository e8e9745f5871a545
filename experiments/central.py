"""A central fit on the same features, by other means: what a shared geometry is held to.

The features of a trained model, all rows in one place, and scipy's L-BFGS on the loss plus λ‖W‖² (for regression: the
normal equations).  λ is the best of a grid on a tenth of the training rows; then all rows are used.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from threadpoolctl import threadpool_limits

from ffgb import Config, Model, train
from ffgb.core.types import Array
from ffgb.runs.config import load_data
from shared import RUNS

HERE = Path(__file__).parent / "shared"
GRID = 10.0 ** np.arange(-9.0, -2.0, 0.5)


def _features(model: bytes, x: Array) -> Array:
    with threadpool_limits(1):
        return Model.from_bytes(model).family.features(x)


def features(model: Model, x: Array) -> Array:
    """The model's features of these points, all cores busy."""
    parts = np.array_split(x, max(1, len(x) // 500))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(_features, [model.to_bytes()] * len(parts), parts)))


def logistic(z: Array, y: Array, c: int, ridge: float, start: Array) -> Array:
    """Multinomial logistic regression by L-BFGS; intercept last, not penalised."""
    n, rows = len(y), np.arange(len(y))

    def objective(flat: Array) -> tuple[float, Array]:
        w = flat.reshape(-1, c)
        f = z @ w[:-1].astype(np.float32) + w[-1].astype(np.float32)
        value = -float(log_softmax(f, axis=1)[rows, y].mean()) + 0.5 * ridge * float(np.square(w[:-1]).sum())
        g = softmax(f, axis=1)
        g[rows, y] -= 1.0
        gradient = np.vstack([z.T @ g, g.sum(axis=0)[None]]).astype(np.float64) / n
        gradient[:-1] += ridge * w[:-1]
        return value, gradient.ravel()

    found = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 300, "maxcor": 20})
    return found.x.reshape(-1, c)


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ("cifar10-s0-0", "fashion-0", "housing-0", "adult-0", "mnist-0"):
        config = Config(**RUNS[name])
        result, data = train(config), load_data(config)
        z, zt = (features(result.model, x).astype(np.float32) for x in (data.x, data.x_test))
        scale = float(np.sqrt(z.var(axis=0).sum()))
        z, zt = z / np.float32(scale), zt / np.float32(scale)  # unit total variance: λ has a meaning
        keep = np.random.default_rng(0).permutation(len(z)) >= len(z) // 10
        outcome: dict[str, Any] = {"name": name, "federated": result.model.score(data.x_test, data.y_test)}
        if data.classes:
            c, tried = len(data.classes), {}
            w = np.zeros((z.shape[1] + 1, c))
            for ridge in GRID[::-1]:  # from smooth to rough, each from where the last ended
                w = logistic(z[keep], data.y[keep], c, ridge, w)
                right = (z[~keep] @ w[:-1] + w[-1]).argmax(axis=1) == data.y[~keep]
                tried[float(ridge)] = float(right.mean())
                if max(tried.values()) > tried[float(ridge)] + 0.01:
                    break
            best = max(tried, key=lambda ridge: tried[ridge])
            w = logistic(z, data.y, c, best, np.zeros_like(w))
            right = (zt @ w[:-1] + w[-1]).argmax(axis=1) == data.y_test
            outcome |= {"central": {"accuracy": float(right.mean())}, "ridge": best, "validation": tried}
        else:
            mean = z.mean(axis=0, dtype=np.float64)

            def solve(rows: Array, ridge: float, z: Array = z, mean: Array = mean, y: Array = data.y) -> Any:
                a = (z[rows] - mean).astype(np.float64)
                gram = a.T @ a / len(a)
                gram[np.diag_indices_from(gram)] += ridge
                w = cho_solve(cho_factor(gram), a.T @ (y[rows] - y[rows].mean()) / len(a))
                return lambda points: (points - mean) @ w + y[rows].mean()

            rows = np.flatnonzero(keep)
            errors = {
                float(r): float(np.sqrt(np.square(solve(rows, r)(z[~keep]) - data.y[~keep]).mean())) for r in GRID
            }
            best = min(errors, key=lambda ridge: errors[ridge])
            error = solve(np.arange(len(z)), best)(zt) - data.y_test
            outcome |= {
                "central": {"rmse": float(np.sqrt(np.square(error).mean()))},
                "ridge": best,
                "validation": errors,
            }
        (HERE / f"central-{name}.json").write_text(json.dumps(outcome, indent=1) + "\n")
        print(name, outcome["federated"], outcome["central"], flush=True)


if __name__ == "__main__":
    main()
