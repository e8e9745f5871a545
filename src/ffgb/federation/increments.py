"""A round of Algorithm 1 for algorithms whose clients send increments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ffgb.algorithms import Increments
from ffgb.core.functions import Function, from_tensors
from ffgb.core.gradients import SlopesOf, best_length
from ffgb.core.means import Aggregate
from ffgb.core.types import Parameters
from ffgb.errors import FFGBError
from ffgb.federation.conversation import Conversation
from ffgb.federation.round import Round
from ffgb.federation.state import State
from ffgb.federation.totals import InARound
from ffgb.protocol.codec import Message
from ffgb.protocol.job import Job, Update
from ffgb.protocol.messages import Along, Take, Train


def increments_round(
    conversation: Conversation, algorithm: Increments, state: State, S: Sequence[int], aggregate: Aggregate
) -> Round:
    """Lines 4 and 5 of Algorithm 1: the sampled clients' increments, their mean, and f^{t+1}."""
    t, clients = state.t, conversation.clients
    train = Train(t, {str(i): state.memory[i][0] for i in S if i in state.memory})
    answers = conversation.trained(state, train, S)  # each client's g^{K+1,t} = decay · f^t + its increment
    state = replace(state, costs=state.costs.down(train.message(), len(S)).up(answers.values()))
    increments, notes = _sound(conversation, algorithm, state.job, answers)
    S = list(increments)
    mean, of_mean = aggregate.of_round(t, list(increments.values()), clients.weights(S), state.f)
    mean = algorithm.pooled(state.f, mean, clients.share(S))
    state = replace(state, memory=_remembered(algorithm, state, increments))
    update = Update(t + 1, algorithm.decay(t), mean)  # f^{t+1} = decay · f^t + the mean of the increments
    go = algorithm.length.choose(whole=_deliver, searched=_search)
    state, S, reports = go(conversation, state, update, aggregate, {i: answers[i] for i in S})
    measured = {name: float(total(notes[name])) for name, total in algorithm.totals.items() if notes[name]}
    return Round(state, S, list(increments), reports, notes["gamma"], measured | dict(of_mean))


def _sound(
    conversation: Conversation, algorithm: Increments, job: Job, answers: Mapping[int, Message]
) -> tuple[dict[int, Function], dict[str, list[float]]]:
    """The increments that are sound, and what those clients noted."""
    increments, noted = dict[int, Function](), dict[int, dict[str, list[float]]]()
    names = ("gamma", *algorithm.totals)
    for i, answer in answers.items():
        try:
            noted[i] = _notes(answer, names, algorithm.K)
            increments[i] = from_tensors(algorithm.answers(job.family, answer.round), answer.tensors)
        except FFGBError as error:
            conversation.clients.leave_out(i, FFGBError(f"sent an increment that is refused: {error}"))
    conversation.clients.enough(list(increments), "answered")
    return increments, {name: [v for i in increments for v in noted[i].get(name, ())] for name in names}


def _notes(answer: Message, known: Sequence[str], K: int) -> dict[str, list[float]]:
    """What a client noted in a round, by name, a number a step; checked, for it came from outside."""
    sent: dict[str, Any] = answer.values["notes"]
    if not sent.keys() <= set(known):
        raise FFGBError(f"its notes are not {', '.join(known)}")
    for name, values in sent.items():
        fits = isinstance(values, list) and len(values) <= K
        if not fits or not all(isinstance(v, float) and math.isfinite(v) for v in values):
            raise FFGBError(f"its {name} is not a finite number a local step")
    return dict(sent)


def _remembered(
    algorithm: Increments, state: State, answered: Mapping[int, Function]
) -> dict[int, tuple[int, Parameters]]:
    """What clients keep after round t, as the server knows it from what they were given and answered."""
    memory = dict(state.memory)
    for i, g in answered.items():
        _, before = memory.get(i, (0, {}))
        if after := algorithm.remember(before, state.f, g):
            memory[i] = state.t + 1, after
    return memory


def _deliver(
    conversation: Conversation, state: State, update: Update, aggregate: Aggregate, answers: Mapping[int, Message]
) -> tuple[State, list[int], dict[int, Message]]:
    """Send the clients that answered f^{t+1}, and hear what they think of it.

    Of what is a client's own in it, the parameters are not counted.
    """
    S, form, clients = list(answers), state.form, conversation.clients
    update = form.applied(update, state.job)
    state = state.after(update)
    take = Take(form.sent(state.f, update), form.precision(state.job))
    reports = conversation.ask(state, take, [*S, *clients.tests])
    going_on = state.t % state.job.algorithm.phases != 0  # the same clients come next
    if clients.m < clients.N and form.delivered_later and not going_on:
        # That we look at f^{t+1} at its points already is a measurement, as on the test set.
        return state, S, reports
    came = [i for i in S if i in reports]
    known = list(answers.values()) if form.counts_own and aggregate.keeps_members else ()
    costs = state.costs.down(take.message(), len(S), known=known).up(reports[i] for i in came)
    return replace(state, costs=costs).told(came), S, reports


def _search(
    conversation: Conversation, state: State, update: Update, aggregate: Aggregate, answers: Mapping[int, Message]
) -> tuple[State, list[int], dict[int, Message]]:
    """f^{t+1} = f^t + s(g − f^t), g the mean of the clients' functions: the best s, by slopes along the line."""
    algorithm, tests = state.job.algorithm, conversation.clients.tests
    update = update.as_travelled(state.job.precision)  # everyone goes on with that
    ask = InARound(conversation, state, list(answers), aggregate)
    slopes, _ = ask(SlopesOf(state.job.loss, update.decay, algorithm.mu), update.increment)
    s = best_length(slopes)
    step = Along(state.t + 1, 1.0 + s * (update.decay - 1.0), s)
    state = ask.state.after(Update(step.round, step.decay, update.increment, s))
    reports = conversation.ask(state, step, [*ask.present, *tests])
    came = [i for i in ask.present if i in reports]
    costs = state.costs.down(step.message(), len(ask.present)).up(reports[i] for i in came)
    return replace(state, costs=costs).told(came), ask.present, reports
