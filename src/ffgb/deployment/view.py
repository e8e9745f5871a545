"""The status page as HTML, from the snapshot of a board; its figures and tables are those of the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ffgb.deployment.words import called
from ffgb.protocol.codec import LETTERS
from ffgb.report.axes import axis_for
from ffgb.report.curves import Curve, plot
from ffgb.report.document import STYLE, document, page_file, policy_for
from ffgb.report.past import Values
from ffgb.report.pieces import folded, grid, section, tabular
from ffgb.report.words import (
    KINDS,
    THIN,
    bytes_text,
    capital,
    column_name,
    count_text,
    escaped,
    plural,
    seconds_text,
    value_text,
)

SCRIPT = page_file("live.js", "ffgb.deployment")
POLICY = f"{policy_for(SCRIPT)}; connect-src 'self'; base-uri 'none'; form-action 'none'"
SCORES, PARTS = ("accuracy", "rmse", "concordance"), ("test", "train")
LAST_ROUNDS = 20
"""Rounds in the table under the curves."""
GONE = (
    '<p class="warn" id="gone" role="alert" hidden="">This page no longer follows ffgb: the program has ended, or does '
    "not answer. Below is how things stood before. Reload the page to look again.</p>"
)

Snapshot = Mapping[str, Any]


def page(kind: str, snapshot: Snapshot) -> str:
    """The whole page, which then follows what goes on by itself."""
    return document(
        capital(snapshot["state"]),
        GONE + body(kind, snapshot),
        kind=kind,
        foot="Nothing on this page comes from elsewhere, and only this machine can open it.",
        style=STYLE + page_file("live.css", "ffgb.deployment"),
        script=SCRIPT,
        policy=POLICY,
    )


def body(kind: str, snapshot: Snapshot) -> str:
    """The part of the page that changes."""
    return f'<div id="live">{BODIES[kind](snapshot)}</div>'


def _server(now: Snapshot) -> str:
    return "".join(part(now) for part in (_server_header, _sites, _curves, _questions, _warnings, _events))


def _site(now: Snapshot) -> str:
    return "".join(
        part(now)
        for part in (_site_header, own_scores, _own_curves, what_left, what_was_refused, what_was_asked, _events)
    )


BODIES: Mapping[str, Callable[[Snapshot], str]] = {"server": _server, "site": _site}
"""By kind of program."""


# A server


def _server_header(now: Snapshot) -> str:
    sites, clients, lines = now["sites"], now["clients"], now["lines"]
    away = [site for site in sites if site["away"] is not None]
    score = _score(lines)
    last = next((line[score] for line in reversed(lines) if line[score] is not None), None)
    numbers = {
        column_name(score) if lines else "score": value_text(score, last),
        "rounds over": count_text(now["rounds"]),
        "sites here": f"{len(sites) - len(away):,} of {clients:,}",
        "sent to sites": bytes_text(_sum(now["asked"], "bytes_down")),
        "came from sites": bytes_text(_sum(now["asked"], "bytes_up")),
        "running for": seconds_text(max(now["time"] - now["began"], 0.0)),
    }
    warnings = ""
    if away:
        names = ", ".join(escaped(site["name"], 60) for site in away[:5]) + ", …" * (len(away) > 5)
        warnings = f'<p class="warn">{plural(len(away), "site is", "sites are")} away: {names}.</p>'
    return _header("server", now["out"], now, f"In this state since {_clock(now['since'])}.", warnings, numbers)


def _sites(now: Snapshot) -> str:
    if not now["sites"]:
        return section("Sites", note=f"No site is here yet; {plural(now['clients'], 'site')} will take part.")
    keys = any(site["fingerprint"] for site in now["sites"])
    rows = []
    for site in now["sites"]:
        away = site["away"]
        lamp = '<span class="lamp">here</span>' if away is None else '<span class="lamp off">away</span>'
        why = "" if away is None else f": {escaped(away, LETTERS)}"
        rows.append(
            [
                wrapped(escaped(site["name"])),
                "–" if site["rows"] is None else count_text(site["rows"]),
                "not yet" if site["heard"] is None else _ago(now, site["heard"]),
                wrapped(lamp + why),
                *([f"<code>{escaped(site['fingerprint']) or '–'}</code>"] if keys else []),
            ]
        )
    head = ["site", "rows", "last heard", wrapped("now"), *(["fingerprint of its key"] if keys else [])]
    return section("Sites", tabular("Sites", head, rows))


def _curves(now: Snapshot) -> str:
    lines = now["lines"]
    if not lines:
        return section("How it learns", note="No round is over yet.")

    figures = figures_of(now) if len(lines) > 1 else []
    columns = [column for column in lines[-1] if _series(now, column)]
    rows = [[value_text(column, line[column]) for column in columns] for line in lines[: -LAST_ROUNDS - 1 : -1]]
    table = tabular("Rounds in numbers", map(_round_column, columns), rows)
    return section("How it learns", grid(figures), folded("The last rounds in numbers", table) if figures else table)


def _series(now: Snapshot, column: str) -> Values:
    """A column in all rounds; nothing if nothing is known."""
    values = [line[column] for line in now["lines"]]
    return values if any(v is not None for v in values) else ()


def figures_of(now: Snapshot) -> list[str]:
    """Scores, sites and seconds by rounds, as far as they are known."""
    rounds, figures = _series(now, "round"), list[str]()
    kinds = dict.fromkeys((_score(now["lines"]).partition("_")[2], "loss"))
    wanted = [(f"{capital(KINDS[k].text)} by rounds", k, {f"{part}_{k}": part for part in PARTS}) for k in kinds]
    wanted += [
        ("Sites that answered", "count", {"participants": ""}),
        ("Time of each round", "seconds", {"seconds": ""}),
    ]
    for caption, kind, names in wanted:
        found = {name: values for column, name in names.items() if (values := _series(now, column))}
        if found:
            edges = (0.0, float(now["clients"])) if kind == "count" else ()
            y = axis_for(KINDS[kind], [*edges, *(v for values in found.values() for v in values)], widen=True)
            curves = [Curve(name, rounds, values, name or "test") for name, values in found.items()]
            figures.append(plot(caption, axis_for(KINDS["round"], rounds), y, curves))
    return figures


def _score(lines: Sequence[Mapping[str, float | None]]) -> str:
    """The column that says how good the function is: on test rows, if there are any."""
    names = [f"{part}_{what}" for what in SCORES for part in PARTS]
    return next((name for name in (*names, "test_loss") if any(v[name] is not None for v in lines)), "train_loss")


def _round_column(column: str) -> str:
    return {"participants": "sites that answered"}.get(column) or column_name(column)


def _questions(now: Snapshot) -> str:
    rows = [
        [
            in_words(asked["question"]),
            count_text(asked["times"]),
            count_text(asked["sites"]),
            bytes_text(asked["bytes_down"]),
            bytes_text(asked["bytes_up"]),
            _ago(now, asked["last"]),
        ]
        for asked in now["asked"]
    ]
    if not rows:
        return section("What sites were asked", note="Nothing yet.")
    times, down, up = (_sum(now["asked"], name) for name in ("times", "bytes_down", "bytes_up"))
    rows.append(_total(count_text(times), "", bytes_text(down), bytes_text(up), ""))
    head = ("question", "times", "sites, the last time", "sent to all sites", "came from all sites", "last asked")
    return section("What sites were asked", tabular("Questions", head, rows))


def _warnings(now: Snapshot) -> str:
    rows = [
        [wrapped(escaped(refusal["text"], LETTERS)), count_text(refusal["times"]), _ago(now, refusal["last"])]
        for refusal in now["refusals"]
    ]
    return _refused("What the server refused", ("what", "times", "last"), rows)


# A site


def _site_header(now: Snapshot) -> str:
    server = f"<b>{escaped(now['server'])}</b>"
    lead, warning = f"In this state since {_clock(now['since'])}.", ""
    if now["connected"]:
        lead = f'<span class="lamp">Connected to {server}.</span> {lead}'
    else:
        warning = f'<p class="warn">This site is not connected to {server}.</p>'
    numbers = {
        "left this site": bytes_text(_sum(now["left"], "bytes")),
        "answers that left": count_text(_sum(now["left"], "times")),
        "questions asked": count_text(_sum(now["asked"], "times")),
        "came to this site": bytes_text(_sum(now["asked"], "bytes")),
        "refused": count_text(now["refused"]),
        "running for": seconds_text(max(now["time"] - now["began"], 0.0)),
    }
    return _header("site", now["name"], now, lead, warning, numbers)


def own_scores(now: Snapshot) -> str:
    """How good the model is at this site's own rows: no one else is told."""
    if not now["own"]:
        return ""
    measures = [name for name in (*SCORES, "loss") if any(name in line for line in now["own"].values())]
    rows = [
        [f"rows {name}", count_text(line["rows"]), *(value_text(m, line.get(m)) for m in measures)]
        for name, line in now["own"].items()
    ]
    table = tabular("Own scores", ["", "rows", *measures], rows)
    return section(
        "The model at this site's own rows", table, note="Only this page shows these; the server is not told."
    )


def _own_curves(now: Snapshot) -> str:
    """The same in each round, if there are several."""
    return section("How it learned at these rows", grid(figures_of(now))) if len(now["lines"]) > 1 else ""


def what_left(now: Snapshot) -> str:
    rows = []
    for left in now["left"]:
        forms = [_form(array) for array in left["arrays"]]
        forms += [f"{left['more_arrays']:,} more"] if left["more_arrays"] else []
        small, large = bytes_text(left["smallest"]), bytes_text(left["largest"])
        first, last = escaped(left["first_when"], 60), escaped(left["last_when"], 60)
        rows.append(
            [
                in_words(left["question"]),
                count_text(left["times"]),
                bytes_text(left["bytes"]),
                small if small == large else f"{small} to {large}",
                wrapped(", ".join(forms) or "no arrays"),
                first if first == last else f"{first} to {last}",
                _ago(now, left["last"]),
            ]
        )
    if not rows:
        return section("What left this site", note="Nothing has left this site yet.")
    rows.append(_total(count_text(_sum(now["left"], "times")), bytes_text(_sum(now["left"], "bytes")), "", "", "", ""))
    head = ("answer to", "times", "in all", "size of one", wrapped("arrays in the last one"), "when", "last")
    note = (
        "These are all answers that left it since it was started. Only the form of arrays is kept here, never a value."
    )
    return section("What left this site", tabular("What left this site", head, rows), note=note)


def _form(array: Mapping[str, Any]) -> str:
    shape = "×".join(str(n) for n in array["shape"]) or "one"
    return f"{escaped(array['name'], 60)} ({shape}{THIN}{escaped(array['dtype'], 20)})"


def what_was_refused(now: Snapshot) -> str:
    rows = [
        [
            in_words(refusal["question"]),
            count_text(refusal["times"]),
            wrapped(escaped(refusal["why"], LETTERS)),
            _ago(now, refusal["last"]),
        ]
        for refusal in now["refusals"]
    ]
    return _refused("What this site refused", ("question", "times", wrapped("why"), "last"), rows)


def what_was_asked(now: Snapshot) -> str:
    rows = [
        [
            in_words(asked["question"]),
            count_text(asked["times"]),
            bytes_text(asked["bytes"]),
            escaped(asked["when"], 60),
            _ago(now, asked["last"]),
        ]
        for asked in now["asked"]
    ]
    if not rows:
        return section("What this site was asked", note="Nothing yet.")
    rows.append(_total(count_text(_sum(now["asked"], "times")), bytes_text(_sum(now["asked"], "bytes")), "", ""))
    head = ("question", "times", "came in all", "when, the last time", "last")
    return section("What this site was asked", tabular("Questions", head, rows))


# Both


def _header(kind: str, name: str, now: Snapshot, lead: str, warning: str, numbers: Mapping[str, str]) -> str:
    big = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in numbers.items())
    return (
        f'<header><p class="eyebrow">ffgb {kind} <b>{escaped(name)}</b>, as of {_clock(now["time"])}</p>'
        f"<h1>{escaped(capital(now['state']))}</h1>"
        f'<p class="lead">{lead}</p>{warning}<dl class="numbers">{big}</dl></header>'
    )


def _refused(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return section(title, tabular(title, head, rows)) if rows else section(title, note="Nothing was refused.")


def _events(now: Snapshot) -> str:
    rows = [(_clock(event["time"]), wrapped(escaped(event["text"], LETTERS))) for event in reversed(now["events"])]
    if not rows:
        return ""
    table = tabular("Events", ("time", wrapped("what")), rows)
    return section("What happened", folded("The last events", table))


def wrapped(content: str) -> str:
    """A cell whose text may take several lines."""
    return f'<span class="wrap">{content}</span>'


def in_words(question: object) -> str:
    """A cell that says what is asked, or what leaves, in words, and its own name beside them."""
    name = str(question)
    words = called(name)
    own = f"<code>{escaped(name)}</code>"
    return wrapped(own if words == name else f"{escaped(words)} {own}")


def _total(*cells: str) -> list[str]:
    return [f"<b>{cell}</b>" if cell else "" for cell in ("in all", *cells)]


def _sum(entries: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(entry[name] for entry in entries)


def _clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


def _ago(now: Snapshot, when: float) -> str:
    seconds = now["time"] - when
    return "just now" if seconds < 1.0 else f"{_whole(seconds)} ago"


def _whole(seconds: float) -> str:
    """A time in whole units.

    >>> [_whole(s).replace(THIN, " ") for s in (3.4, 119.0, 120.0, 7100.0, 7200.0, 200_000.0)]
    ['3 s', '119 s', '2 min', '118 min', '2 h', '55 h']
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{THIN}{unit}"
    return f"{seconds // 1:.0f}{THIN}s"
