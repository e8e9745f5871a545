"""Is training together worth it, and for whom, as `ffgb worth` wrote it down."""

from __future__ import annotations

from ffgb.errors import FFGBError
from ffgb.report.judged import Score
from ffgb.report.past import Past, finite
from ffgb.report.pieces import section, tabular
from ffgb.report.words import escaped, figure_text


def worth(past: Past) -> str:
    """How much the loss rises at each site alone and without it, and at the others without it."""
    if past.worth is None:
        return ""
    try:
        loss, rows = escaped(past.worth["loss"], 40), []
        for site in past.worth["sites"]:
            together = finite(site["together"])
            scores = (None if site[name] is None else Score.of(site[name]) for name in ("alone", "without", "others"))
            rows.append(
                [
                    escaped(site["site"], 60),
                    f"{int(site['rows']):,}",
                    "–" if together is None else figure_text(together),
                    *map(_shown, scores),
                ]
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FFGBError(f"worth.json cannot be read ({error}); was it written by ffgb?") from error
    note = (
        f"The mean {loss} at each site's held-out rows, and how much it rises if the site trains alone, if all train "
        "without it (what a new site may expect), and at all other sites if it is left out (what it does for them). An "
        "interval that holds 0 says that the rows do not tell."
    )
    head = ("site", "held-out rows", "together", "alone", "without it", "others without it")
    return section("Is it worth training together?", tabular("Worth", head, rows), note=note)


def _shown(score: Score | None) -> str:
    if score is None:
        return "–"
    ends = "–" if score.low is None or score.high is None else f"{score.low:+.3g} to {score.high:+.3g}"
    return f'{score.value:+.3g}<br/><span class="few">{ends}</span>'
