"""A round of an algorithm that the server runs by asking for totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ffgb.algorithms import Totals
from ffgb.core.means import Aggregate
from ffgb.federation.conversation import Conversation
from ffgb.federation.round import Round
from ffgb.federation.state import State
from ffgb.federation.totals import InARound
from ffgb.protocol.job import Update
from ffgb.protocol.messages import Along, Sending, Take


def totals_round(
    conversation: Conversation, state: State, S: Sequence[int], aggregate: Aggregate, *, stop: bool
) -> Round:
    """The server's procedure, with clients that answer; then everyone goes on to f^{t+1}."""
    algorithm, job = state.job.algorithm, state.job
    assert isinstance(algorithm, Totals)
    assert state.geometry is not None
    ask = InARound(conversation, state, S, aggregate)
    step = algorithm.round(state.t, state.f, state.geometry, job.loss, ask, stop=stop)
    update = Update(state.t + 1, step.decay, step.h, step.length)
    if step.shown:
        update = update.as_travelled(job.precision)  # as clients have seen it
    state = ask.state.after(update)
    sending: Sending
    if step.shown:
        sending = Along(state.t, step.decay, step.length)
    else:
        sending = Take(state.form.sent(state, update), state.form.precision(job))
    clients = conversation.clients
    reports = conversation.ask(state, sending, [*ask.present, *clients.tests])
    if step.shown or clients.m == clients.N:
        # else: who is sampled now and then is sent the newest f when it is sampled again
        came = [i for i in ask.present if i in reports]
        costs = state.costs.down(sending.message(), len(ask.present)).up(reports[i] for i in came)
        state = replace(state, costs=costs).told(came)
    if ask.complete and math.isfinite(step.gradient_bound):
        state = replace(state, gradient_bound=step.gradient_bound)
    gamma = step.measured["gamma"]
    measured = {name: value for name, value in step.measured.items() if name != "gamma"}
    return Round(state, ask.present, ask.present, reports, [] if gamma is None else [gamma], measured)
