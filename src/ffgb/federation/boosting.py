"""A round of an algorithm that the server runs by asking for totals."""

from __future__ import annotations

import math
from dataclasses import replace

from ffgb.algorithms import Totals
from ffgb.federation.round import Round
from ffgb.federation.totals import RoundAsk
from ffgb.protocol.job import Update
from ffgb.protocol.messages import Along, Take
from ffgb.protocol.sending import Sending


def totals_round(ask: RoundAsk, algorithm: Totals, *, stop: bool) -> Round:
    """The server's procedure, with clients that answer; then everyone goes on to f^{t+1}."""
    state, clients = ask.state, ask.clients
    job = state.job
    step = algorithm.round(state.t, state.f, state.geometry, job.loss, ask, stop=stop)
    update = Update(state.t + 1, step.decay, step.h, step.length)
    if step.shown:
        update = update.as_travelled(job.precision)  # as clients have seen it
    state = ask.state.after(update)
    sending: Sending
    if step.shown:
        sending = Along(state.t, step.decay, step.length)
    else:
        sending = Take(state.form.sent(state.f, update), state.form.precision(job))
    delivered = ask.hand_over(state, update) if algorithm.silent else ask.deliver(state, sending)
    if step.shown or clients.m == clients.N or not state.form.delivered_later:
        # else: who is sampled now and then is sent the newest f when it is sampled again
        state = delivered.state.told(delivered.came)
    if ask.complete and math.isfinite(step.gradient_bound):
        state = replace(state, gradient_bound=step.gradient_bound)
    gamma = step.measured["gamma"]
    measured = {name: value for name, value in step.measured.items() if name != "gamma"}
    gammas = [] if gamma is None else [gamma]
    return Round(state, ask.present, ask.present, delivered.reports, gammas, measured, delivered.scores)
