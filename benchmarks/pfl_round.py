"""Seconds of a FedAvg round in pfl (pfl-research, Apple) 0.6.0 with torch, for comparison with fedavg_round.py.

    torchrun --standalone --nnodes=1 --nproc_per_node=2 pfl_round.py DATA.npz STEPS SHARE RATE

It runs in an environment of its own, which has `pfl[pytorch]==0.6.0`; with plain `python` instead of `torchrun` it is
one process.  DATA.npz has x (clients, points, 784) float32 and y (clients, points) int64.  All clients take part in
every round, and pfl shares them out among the processes; each process uses one thread.  A round begins when a line
comes in on standard input, so that methods can take turns; the first process prints `round SECONDS` when it is over:
local training of all clients, aggregation, and the update of the model.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset, MinimizeReuseUserSampler
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

ROUNDS, FEATURES, HIDDEN, CLASSES = 1000, 784, 32, 10


class Classifier(nn.Sequential):
    """The MLP, with the two methods that pfl asks of a module."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(FEATURES, HIDDEN),
            nn.LeakyReLU(0.01),
            nn.Linear(HIDDEN, HIDDEN),
            nn.LeakyReLU(0.01),
            nn.Linear(HIDDEN, CLASSES),
        )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Stopwatch(TrainingProcessCallback):  # type: ignore[misc]
    """Waits for a turn, and prints how long it took; not of the first, in which pfl always evaluates all clients."""

    def __init__(self) -> None:
        self.first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        self.began = time.perf_counter()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if self.first:
            print(f"round {time.perf_counter() - self.began:.6f}", flush=True)
            if not sys.stdin.readline():
                os._exit(0)  # no more turns
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # the others must not begin before the turn
        self.began = time.perf_counter()
        return False, Metrics()


def federated(path: Path) -> tuple[FederatedDataset, int, int]:
    """The clients' tensors, ready in memory, with the number of clients and of points at each."""
    with np.load(path) as arrays:
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    # Kept from round to round, so that pfl's own cache of a client's batches is kept as well.
    clients = [PyTorchTensorDataset((x[i], y[i]), user_id=str(i)) for i in range(len(x))]
    # In turn: a cohort as large as the population is everyone once.  As all clients have equally many points there is
    # nothing to balance between processes, and no need of `user_id_to_weight`.
    return FederatedDataset(clients.__getitem__, MinimizeReuseUserSampler(range(len(x)))), len(x), x.shape[1]


def training(points: int, steps: int, share: float, rate: float) -> NNTrainHyperParams:
    """Local SGD as near to `steps` steps on `share` of the points as pfl has it.

    pfl counts in epochs (`local_num_steps` cannot go past one), over consecutive batches, the last of them what is left
    over; it neither draws nor shuffles.  With 1,071 points, batches of 214 would leave one of a single point, and 30
    steps in 5 epochs.  So the size is rounded up: 4 batches of 215 and one of 211, 5 times, are 25 steps exactly.
    """
    batches = round(1 / share)
    size = math.ceil(points / batches)
    if steps % batches or math.ceil(points / size) != batches:
        raise SystemExit(f"{steps} steps on {share} of {points} points are not a whole number of epochs")
    return NNTrainHyperParams(local_num_epochs=steps // batches, local_learning_rate=rate, local_batch_size=size)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("share", type=float)
    parser.add_argument("rate", type=float)
    options = parser.parse_args()

    torch.set_num_threads(1)
    # pfl has every process draw the same model and the same cohorts, so they must have the same seeds.
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (pfl uses NumPy's global state)

    dataset, clients, points = federated(options.data)
    network = Classifier()
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),  # with rate 1, the mean of the clients' models
    )
    FederatedAveraging().run(
        # Evaluation in iteration 0 cannot be switched off: it is one more, a warm-up, and no other iteration has any.
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS + 1,
            evaluation_frequency=ROUNDS + 1,
            train_cohort_size=clients,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByUser()]),
        model=model,
        model_train_params=training(points, options.steps, options.share, options.rate),
        callbacks=[Stopwatch()],
        send_metrics_to_platform=False,
    )
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
