"""The first screen: how good the model is, who took part, and what it is for, in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffgb.report.fit import shown_as
from ffgb.report.judged import Judged, Score
from ffgb.report.past import Past, finite
from ffgb.report.pieces import method
from ffgb.report.words import (
    THIN,
    bytes_text,
    capital,
    chosen_of,
    column_name,
    count_text,
    escaped,
    figure_text,
    models_text,
    plural,
    seconds_text,
    value_text,
)

SITES = 6
"""Names of sites that are written out."""
CARE_CLASS, FACT_CLASS = ' class="care"', ""


def opening(past: Past) -> str:
    """The result in a sentence, what a reader must know about it, and a few big numbers."""
    judged = past.judged
    head = _headline(past) if judged is None else _result(past, judged)
    facts = _known(past) if judged is None else _facts(past, judged)
    listed = "".join(f"<li{look}><b>{title}</b>{text}</li>" for title, text, look in facts)
    numbers = _run_numbers(past) if judged is None else _judged_numbers(past, judged)
    big = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in numbers.items())
    said = f'<p class="lead">{_lead(past)}</p>' if judged is None else ""
    ended, run = _private(past) + _ended(past), ""
    if judged is not None:
        run, ended = f'<p class="say">{_headline(past)}. {_lead(past)}</p>{ended}', ""
    return (
        f'<header><p class="eyebrow">ffgb run <b>{escaped(past.name)}</b></p><h1>{head}</h1>{said}{ended}'
        f'<dl class="numbers">{big}</dl></header>'
        + (f'<section><ul class="facts">{listed}</ul>{run}</section>' if listed else "")
    )


def _headline(past: Past) -> str:
    """The last score and the rounds."""
    count = finite(past.config.get("clients"))
    clients = "" if count is None else f" with {plural(count, 'client')}"
    score = value_text(past.score, past.last(past.score))
    return f"{capital(column_name(past.score))} {score} after {plural(past.used, 'round')}{clients}"


def _result(past: Past, judged: Judged) -> str:
    """How good the model is, in one line."""
    target, rows = past.config.get("target"), f"{plural(judged.whole.rows, 'held-out row')}"
    scores = judged.whole.scores
    if judged.times:
        pairs = f"the right order for {percent(scores['c_index'].value)} of pairs"
        return f"Says who has the event earlier: {pairs}, on {rows}"
    if not judged.classes:
        of = f" {escaped(target, 40)}" if target else ""
        return f"Predicts{of} with a typical error of {figure_text(scores['rmse'].value)} on {rows}"
    right = percent(scores["accuracy"].value)
    if judged.two:
        no, yes = (escaped(c, 30) for c in judged.classes)
        of = f"{escaped(target, 40)}: t" if target else "T"
        return f"{of}ells ‘{yes}’ from ‘{no}’, and is right for {right} of {rows}"
    return f"Tells {len(judged.classes)} classes apart, and is right for {right} of {rows}"


def _facts(past: Past, judged: Judged) -> list[tuple[str, str, str]]:
    """What a reader must know: a title, sentences, and whether care is needed."""
    of_kind = _of_times if judged.times else _of_classes if judged.classes else _of_numbers
    found = [*of_kind(judged), _taking_part(past, judged)]
    return [*found, _use()]


def _known(past: Past) -> list[tuple[str, str, str]]:
    """The same where held-out rows are at the sites: only their totals are known."""
    if past.config.get("data") != ["sites"] or past.summary is None:
        return []
    score = value_text(past.score, past.last(past.score))
    part = "held-out" if past.score.startswith("test") else "training"
    text = f"{capital(column_name(past.score))} {score}, over all {part} rows of all sites."
    if (loss := past.last("test_loss")) is not None:
        text += f" The mean loss there is {value_text('test_loss', loss)}."
    text += " How sure this is, and whether probabilities are right, each site can see on its own rows"
    text += " (<code>ffgb evaluate</code>): rows did not leave the sites, so it is not known here."
    return [("How good it is", text, CARE_CLASS), _taking_part(past, None), _use()]


def _use() -> tuple[str, str, str]:
    text = (
        "The held-out rows are of the sites that trained the model. Elsewhere it may do worse: score it on rows of "
        "that place first (<code>ffgb evaluate RUN --data FILE</code>)."
    )
    return "What it may be used for", text, FACT_CLASS


def _of_classes(judged: Judged) -> list[tuple[str, str, str]]:
    scores, rows = judged.whole.scores, judged.whole.rows
    found = []
    accuracy = scores["accuracy"]
    text = f"It is right for {percent(accuracy.value)} of {plural(rows, 'row')}{_interval(judged, accuracy)}."
    care = FACT_CLASS
    if judged.two:
        base = scores["base_rate"].value
        most = max(base, 1.0 - base)
        text += f" Always naming the more frequent class would be right for {percent(most)}."
        if accuracy.low is not None and accuracy.low <= most:
            text, care = f"{text} The rows do not show that the model does better.", CARE_CLASS
    found.append(("How often it is right", text, care))
    if (auc := scores.get("auc")) is not None:
        yes = escaped(judged.classes[1], 40)
        text = (
            f"Of two rows, one of which is ‘{yes}’, it gives that one the higher probability in "
            f"{percent(auc.value)} of all pairs{_interval(judged, auc)}. Chance is 50{THIN}%."
        )
        found.append(("How well it ranks", text, FACT_CLASS if auc.low is None or auc.low > 0.5 else CARE_CLASS))
    if (slope := scores.get("calibration_slope")) is not None:
        found.append(_calibrated(judged, slope))
    return found


def _calibrated(judged: Judged, slope: Score) -> tuple[str, str, str]:
    """Whether probabilities can be taken at their word."""
    observed, expected = judged.whole.scores["base_rate"], judged.whole.scores["expected"].value
    text = f"It expects {percent(expected)} of rows to be ‘{escaped(judged.classes[1], 40)}’, "
    text += f"and {percent(observed.value)} are. "
    good = slope.low is not None and slope.high is not None and slope.low <= 1.0 <= slope.high
    if good:
        text += "High and low probabilities are as far apart as they should be, within what these rows can tell"
    elif slope.value < 1.0:
        text += "High probabilities are too high, and low ones too low: recalibrate them before you act on a number"
    else:
        text += "High probabilities are too low, and low ones too high: recalibrate them before you act on a number"
    shown = shown_as("calibration_slope")
    ends = "" if slope.low is None or slope.high is None else f", {shown(slope.low)} to {shown(slope.high)}"
    return (
        "Whether its probabilities are right",
        f"{text} (slope {shown(slope.value)}{ends}; 1 is right).",
        FACT_CLASS if good else CARE_CLASS,
    )


def _of_numbers(judged: Judged) -> list[tuple[str, str, str]]:
    scores = judged.whole.scores
    rmse = scores["rmse"]
    text = f"The root of the mean squared error is {figure_text(rmse.value)}{_interval(judged, rmse, figure_text)}."
    care = FACT_CLASS
    if (r2 := scores.get("r2")) is not None:
        text += f" It explains {percent(max(r2.value, 0.0))} of the variance"
        text += "." if r2.low is None or r2.low > 0 else ", and the rows do not show that this is more than nothing."
        care = FACT_CLASS if r2.low is None or r2.low > 0 else CARE_CLASS
    return [("How far it is off", text, care)]


def _of_times(judged: Judged) -> list[tuple[str, str, str]]:
    c = judged.whole.scores["c_index"]
    text = (
        f"Of two rows of one site, it gives the one with the earlier event the higher risk in {percent(c.value)} of "
        f"pairs{_interval(judged, c)}. Chance is 50{THIN}%."
    )
    found = [("How well it ranks", text, FACT_CLASS if c.low is None or c.low > 0.5 else CARE_CLASS)]
    known = [each for each in judged.horizons if each[0] == "all"]
    if known:
        _, _, time, expected, came = known[len(known) // 2]
        good = came.low is not None and came.high is not None and came.low <= expected <= came.high
        text = (
            f"Until {figure_text(time)} it expects {percent(expected)} of rows to have the event, and "
            f"{percent(came.value)} have{_interval(judged, came)}."
        )
        found.append(("Whether its chances are right", text, FACT_CLASS if good else CARE_CLASS))
    if (gain := judged.whole.scores.get("brier_gain")) is not None and gain.low is not None and gain.low <= 0:
        text = "Its chances over time are not shown to be better than those of a curve for all rows alike."
        found.append(("Whether it is better than no model", text, CARE_CLASS))
    return found


def _taking_part(past: Past, judged: Judged | None) -> tuple[str, str, str]:
    """Who took part, and how different the model is for them."""
    clients = past.clients or ()
    count = len(clients) or int(finite(past.config.get("clients")) or 0)
    rows = [c.points for c in clients if c.points is not None]
    text = f"{plural(count, 'site')} took part" + (f", with {sum(rows):,.0f} rows to train on" if rows else "")
    if 0 < len(clients) <= SITES:
        text += f": {', '.join(escaped(c.name, 40) for c in clients)}"
    if judged is None:
        return "Who took part", f"{text}.", FACT_CLASS
    name = "c_index" if judged.times else "auc" if judged.two else "accuracy" if judged.classes else "rmse"
    known = sorted((p.scores[name].value, p.name) for p in judged.sites if name in p.scores)
    if len(known) > 1:
        shown = percent if judged.classes or judged.times else figure_text
        pairs = "The share of pairs in the right order"
        what = {"c_index": pairs, "auc": pairs, "accuracy": "Right answers", "rmse": "The error"}[name]
        ends = [f"{shown(value)} ({escaped(site, 40)})" for value, site in (known[0], known[-1])]
        text += f". {what} by site: from {ends[0]} to {ends[1]}"
    return "Who took part", f"{text}.", FACT_CLASS


def percent(value: float) -> str:
    """A share in whole percent; in tenths near the ends."""
    digits = 1 if 0.995 <= value < 1.0 or 0.0 < value < 0.005 else 0
    return f"{100 * value:.{digits}f}{THIN}%"


def _interval(judged: Judged, score: Score, shown: Any = percent) -> str:
    if score.low is None or score.high is None:
        return ""
    return f" ({100 * judged.level:g}{THIN}% interval {shown(score.low)} to {shown(score.high)})"


def _judged_numbers(past: Past, judged: Judged) -> Mapping[str, str]:
    """Few numbers, each with its interval below it."""
    names = {
        "c_index": "c-index", "integrated_brier": "Brier score over time",
        "auc": "AUC", "accuracy": "accuracy", "base_rate": "base rate", "rmse": "RMSE", "r2": "R²",
        "calibration_slope": "calibration slope",
    }  # fmt: skip
    found = {}
    for name, title in names.items():
        if (score := judged.whole.scores.get(name)) is None:
            continue
        shown = shown_as(name) if name not in ("accuracy", "base_rate") else percent
        ends = "" if score.low is None or score.high is None else f"{shown(score.low)} to {shown(score.high)}"
        found[title] = f"{shown(score.value)}<small>{ends or 'no interval'}</small>"
    count = finite(past.config.get("clients"))
    found["sites"] = "–" if count is None else f"{count_text(count)}<small>took part</small>"
    found["held-out rows"] = f"{count_text(judged.whole.rows)}<small>not trained on</small>"
    return found


def _run_numbers(past: Past) -> Mapping[str, str]:
    count = finite(past.config.get("clients"))
    return {
        column_name(past.score): value_text(past.score, past.last(past.score)),
        "round" if past.rounds == 1 else "rounds": count_text(past.rounds),
        "client" if count == 1 else "clients": "–" if count is None else count_text(count),
        "models a client": value_text("models", past.last("models")),
        "traffic a client": value_text("bytes", past.last("bytes")),
        "time": value_text("seconds", past.seconds),
    }


def _lead(past: Past) -> str:
    """What it cost, and how it was trained on what."""
    models, traffic, cost = past.last("models"), past.last("bytes"), []
    if models is not None and traffic is not None:
        cost.append(
            f"each client sent and received {models_text(models)} models ({bytes_text(traffic)}) in all, "
            "set-up included"
        )
    if past.seconds is not None:
        cost.append(f"the {'run' if past.summary else 'rounds so far'} took {seconds_text(past.seconds)}")
    lead = f"{capital('; '.join(cost))}. {method(past)} on {escaped(past.data)}, {_split(past.config)}."
    said = chosen_of(past.summary or {})
    return f"{lead} {escaped(said, 600)}" if said else lead


def _split(config: Mapping[str, Any]) -> str:
    """How points came to clients."""
    match config.get("split"):
        case "similarity":
            by = f" by {escaped(config['by'], 40)}" if config.get("by") else ""
            return f"dealt out sorted{by}, similarity s{THIN}={THIN}{escaped(config.get('similarity'))}"
        case "dirichlet":
            return f"dealt out by a Dirichlet law, α{THIN}={THIN}{escaped(config.get('alpha'))}"
        case "labels":
            labels = config.get("labels")
            return f"dealt out with {escaped(labels)} {'class' if labels == 1 else 'classes'} a client"
        case "iid":
            return "dealt out evenly"
    return "as clients hold them"


def _private(past: Past) -> str:
    """What a private training promises."""
    promise = (past.summary or {}).get("privacy")
    if not isinstance(promise, Mapping):
        return ""
    epsilon, delta = (finite(promise.get(name)) for name in ("epsilon", "delta"))
    if epsilon is None or delta is None:
        return ""
    public = promise.get("public")
    known = ", ".join(map(escaped, public)) if isinstance(public, list) else ""
    warning = f" {capital(escaped(promise['warning'], 200))}." if promise.get("warning") else ""
    return (
        f'<p class="say">Differential privacy with ε = {epsilon:g}, δ = {delta:g}: '
        f"{escaped(promise.get('adjacency'), 200)}. The noise: {escaped(promise.get('noise'), 200)}. Public, and not "
        f"covered: {known}. Scores of held-out rows are not covered either.{warning}</p>"
    )


def _ended(past: Past) -> str:
    """A word if the run has not ended, or ended of itself."""
    of = past.planned
    rounds = plural(past.rounds, "round") if of is None else f"{past.rounds:,} of {plural(of, 'round')}"
    if past.summary is None:
        return (
            f'<p class="warn">This run has not ended: it has {rounds}, and no model yet. '
            "<code>--resume</code> goes on from here.</p>"
        )
    if past.config.get("stop") and past.planned is not None and past.rounds < past.planned:
        return (
            f'<p class="say">It ended of itself after {rounds}: a further step would have fitted '
            "more noise than there was left to learn.</p>"
        )
    return ""
