"""What secure totals cost: bytes, time and memory, against the same training in the open.

    python benchmarks/secure.py [--learner features] [--rounds 10] [--json FILE]

The Adult job (from FFGB_DATA) on 20 sites runs in one process, in the open, strict, and tolerant with 14 of 20, in
turns; by default it trains a blend.  Seconds are those of the processor, so that a busy machine does not matter, and of
a whole run: data are read, all sites and the server work, the model is scored.  A site of 56 masks a Gram of 1.5
million numbers.  The server adds up a question of 2 million numbers from 4, 16 and 64 sites: memory is what Python has
at most.

It fails if a strict run takes more than 1.2 times the seconds or 1.15 times the bytes, a site more than 1 second for
its masks, or the server more memory with more sites.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np

from ffgb.core.moments import MomentsOf
from ffgb.core.questions import Sum
from ffgb.core.weighting import Weighting
from ffgb.engines.local import InProcess
from ffgb.features.basic import Flatten
from ffgb.federation.conversation import Conversation
from ffgb.federation.masked import Masked
from ffgb.federation.participants import Participants
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.privacy.ciphers import new_key, public_of
from ffgb.privacy.masks import Masks, Roster
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.engine import Engine
from ffgb.protocol.messages import Asked
from ffgb.runs.config import Config, load_data
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss

TURNS, SITES = 3, 20
WAYS: dict[str, dict[str, Any]] = {
    "in the open": {"secure": False},
    "strict": {"secure": True},
    "tolerant": {"secure": True, "minimum": 14},
}
MOST_SECONDS, MOST_BYTES, MOST_MASKING, MOST_MEMORY = 1.2, 1.15, 1.0, 1.1


def run(settings: dict[str, Any], **more: Any) -> State:
    config = Config(data=("adult",), clients=SITES, **settings)
    dataset = load_data(config)
    config = config.resolved(dataset)
    assert config.rounds is not None
    clients, options = make_holdings(config, dataset, make_parts(config, dataset))
    loss = make_loss(config, dataset)
    with InProcess(clients) as engine:
        server = Server(engine, **{**options, **more})
        state = server.start(make_algorithm(config), make_learner(config, dataset), loss)
        for after, _ in server.rounds(state, config.rounds, stop=bool(config.stop)):
            state = after
    return state


def adult(settings: dict[str, Any]) -> dict[str, Any]:
    """The job on 20 sites, each way in turn."""
    found: dict[str, Any] = {way: {"seconds": []} for way in WAYS}
    weights: dict[str, bytes] = {}
    run(settings, **WAYS["strict"])  # what is imported or read for the first time is no one's
    for _ in range(TURNS):
        for way, more in WAYS.items():
            began = time.process_time()
            state = run(settings, **more)
            found[way]["seconds"].append(time.process_time() - began)
            costs = state.costs
            found[way] |= {"rounds": state.t, "bytes a site": (costs.bytes_up + costs.bytes_down) // SITES}
            weights[way] = b"".join(array.tobytes() for array in state.f.tensors().values())
    assert len(set(weights.values())) == 1  # to the bit
    plain = found["in the open"]
    for line in found.values():
        ratios = [mine / other for mine, other in zip(line["seconds"], plain["seconds"], strict=True)]
        line |= {
            "times the seconds": statistics.median(ratios),
            "times the bytes": line["bytes a site"] / plain["bytes a site"],
        }
    return found


def masking(sites: int = 56, numbers: int = 1_500_000) -> dict[str, Any]:
    """Processor seconds in which one site masks a part, once it has everyone's keys; and for those."""
    keys = [new_key() for _ in range(sites)]
    names = tuple(f"site {i:02d}" for i in range(sites))
    began = time.process_time()
    masks = Masks(names[0], keys[0], Roster("run", names, tuple(map(public_of, keys))))
    found: dict[str, Any] = {"keys": time.process_time() - began}
    for bits in (32, 64):
        sums, part = {"gram": Sum((numbers,), 1.0, bits)}, {"gram": np.zeros(numbers, f"int{bits}")}
        seconds = []
        for turn in range(TURNS):
            began = time.process_time()
            masks.masked(part, sums, f"{bits} {turn}".encode())
            seconds.append(time.process_time() - began)
        found[f"{bits} bits"] = min(seconds)
    return found


class Uniform(Engine):
    """Clients whose parts have the right form, and are no one's: the server cannot tell."""

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        message = decode(data)
        answers = {}
        for i in clients:
            if message.kind == "introduction":
                key = np.frombuffer(public_of(new_key()), np.uint8)
                answer = Message("key", client=i, values={"signature": ""}, tensors={"key": key})
            elif message.kind == "roster":
                answer = Message("ready", client=i)
            else:
                size = len(QUESTION.centre)
                sizes = {"mean": size, "square": size, "#share": 1, "#rows": 1}
                tensors = {name: np.full(n, i, np.int64) for name, n in sizes.items()}
                answer = Message("masked", -1, i, tensors=tensors)
            answers[i] = encode(answer)
        return answers

    def close(self, *, at_once: bool = False) -> None:
        pass


QUESTION = MomentsOf(Flatten(1_000_000), np.zeros(1_000_000), np.ones(1_000_000))


def memory(sites: int) -> int:
    """Bytes that a server has at most while it adds up a question of two million numbers."""
    conversation = Conversation(Uniform(), Participants([1] * sites))
    masked = Masked(conversation)
    asked = Asked(QUESTION, Weighting(float(sites)))
    tracemalloc.start()
    found, _, _ = masked.total(asked, lambda s, some: conversation.exchange(s, some, None), range(sites), 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found[0].came) == sites
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learner", default="auto")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    settings = {"learner": given.learner, "rounds": given.rounds}
    found: dict[str, Any] = {"adult, 20 sites": adult(settings), "masks of a site of 56": masking()}
    found["memory of the server"] = {str(sites): memory(sites) for sites in (4, 16, 64)}
    for title, lines in found.items():
        print(title)
        for name, line in lines.items():
            print(f"  {name}: {line}")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    strict, own, needed = (
        found["adult, 20 sites"]["strict"],
        found["masks of a site of 56"],
        found["memory of the server"],
    )
    assert strict["times the seconds"] <= MOST_SECONDS
    assert strict["times the bytes"] <= MOST_BYTES
    assert max(own["32 bits"], own["64 bits"]) <= MOST_MASKING
    assert needed["64"] <= MOST_MEMORY * needed["4"]


if __name__ == "__main__":
    main()
