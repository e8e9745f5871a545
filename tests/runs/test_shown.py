"""How results and models show themselves in a session and in a notebook."""

from __future__ import annotations

from pathlib import Path

from ffgb import Config, train


def test_results_and_models_are_short(tmp_path: Path) -> None:
    result = train(Config(data="wine", clients=4, rounds=1, learner="features"), tmp_path / "<run>", workers=0)
    first, costs, how, where = repr(result).split("\n")
    assert first.startswith(f"Result: test accuracy {result.summary['test_accuracy']:.4f} (95 % interval ")
    assert "with 4 clients" in costs
    assert how == "ffgb with features on wine"
    assert where == f"run directory: {tmp_path / '<run>'}"
    assert repr(result.model) == "Model(Linear, columns=13, classes=['class_0', 'class_1', 'class_2'])"
    page = result._repr_html_()
    assert f">{first.removeprefix('Result: ')}</div>" in page
    assert "&lt;run&gt;" in page
    assert "<run>" not in page
