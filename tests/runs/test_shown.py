"""How results and models show themselves in a session and in a notebook."""

from __future__ import annotations

from pathlib import Path

from ffgb import Config, train


def test_results_and_models_are_short(tmp_path: Path) -> None:
    result = train(Config(data="wine", clients=4, rounds=1), tmp_path / "<run>", workers=0)
    accuracy = result.summary["test_accuracy"]
    assert repr(result).startswith(f"Result(test_accuracy={accuracy:.4g}, test_loss=")
    assert "learner=features" in repr(result)
    assert len(repr(result)) < 300 + len(str(tmp_path))
    assert repr(result.model) == "Model(Linear, columns=13, classes=['class_0', 'class_1', 'class_2'])"
    page = result._repr_html_()
    assert f"<td>{accuracy:.4g}</td>" in page
    assert "&lt;run&gt;" in page
    assert "<run>" not in page
