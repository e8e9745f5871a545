"""In a notebook: progress that changes in place, results with a curve, and names that can be found."""

from __future__ import annotations

import sys
import types
from typing import Any
from xml.etree import ElementTree

import pytest

import ffgb
from ffgb import Config, train
from ffgb.runs.config import SETTINGS
from ffgb.runs.notebook import Progress, notebook, result_html


def test_progress_changes_in_place_and_goes_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append((data["text/html"], data["text/plain"]))

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        assert not shown  # one cell's output, which changes
        shown.append((data["text/html"], data["text/plain"]))
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    module: Any = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython.core.display_functions", module)
    monkeypatch.setattr("ffgb.runs.notebook.EVERY", 0.0)
    train(Config(data="wine", clients=3, rounds=2, learner="features", stop=False), workers=0)
    texts = [text for _, text in shown]
    assert texts[0] == "set up"
    assert any(text.startswith("set up: ") and "of 3 clients" in text for text in texts)
    assert texts[-2].startswith("round 2 of 2: test accuracy ")
    assert shown[-1] == ("", "")
    assert '<progress value="2" max="2"' in shown[-2][0]
    del shell.kernel  # IPython in a terminal
    assert notebook() == []
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook() == []


def test_progress_is_not_shown_more_often_than_someone_can_read() -> None:
    shown, now = list[str](), [0.0]
    progress = Progress(lambda html, text: shown.append(text), lambda: now[0])
    for t in range(1, 101):
        now[0] = t / 100
        progress.round({"round": t, "bytes_up": 0.0, "bytes_down": 0.0})
    assert 4 <= len(shown) <= 7


def test_a_result_has_a_curve_if_there_are_rounds_enough() -> None:
    lines = ["test accuracy 0.9 <b>", "after 3 rounds"]
    metrics = [{"test_accuracy": value} for value in (0.5, 0.8, 0.9)]
    page = ElementTree.fromstring(result_html(lines, metrics))
    assert "test accuracy 0.9 <b>" in "".join(page.itertext())
    assert "test accuracy by rounds: 0.5 after the first, 0.9 after the last" in "".join(page.itertext())
    (line,) = page.iter("polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights == sorted(heights, reverse=True)
    assert not list(ElementTree.fromstring(result_html(lines, metrics[:2])).iter("svg"))
    assert not list(ElementTree.fromstring(result_html(lines, metrics[:1] * 5)).iter("svg"))
    assert not list(ElementTree.fromstring(result_html(lines, [])).iter("svg"))


def test_all_public_names_are_listed() -> None:
    assert set(ffgb.__all__) <= set(dir(ffgb))
    assert all(getattr(ffgb, name) is not None for name in ffgb.__all__)


def test_the_configuration_documents_each_setting_and_shows_what_was_given() -> None:
    words = Config.__doc__ or ""
    assert all(f"\n    {name} : " in words and each.help in words for name, each in SETTINGS.items())
    assert repr(Config(rounds=3, data="wine")) == "Config(data=('wine',), rounds=3)"
    assert repr(Config()) == "Config()"
