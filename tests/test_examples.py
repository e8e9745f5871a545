"""The notebooks of examples/ run, and their results are those that their text claims."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from examples.run import FORMAT, execute

from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def read(name: str) -> Any:
    return FORMAT.read(EXAMPLES / name, as_version=4)


def values_after(name: str, *expressions: str, before: str = "") -> list[Any]:
    """Run a notebook, and return the values of some expressions after its last cell."""
    notebook = read(name)
    notebook.cells.insert(0, FORMAT.v4.new_code_cell(before))
    question = f"import json\nprint(json.dumps([{', '.join(expressions)}]))"
    notebook.cells.append(FORMAT.v4.new_code_cell(question))
    output = execute(notebook).cells[-1].outputs[0]
    found: list[Any] = json.loads(output["text"])
    return found


def outputs(name: str) -> list[Any]:
    return [output for cell in read(name).cells if cell.cell_type == "code" for output in cell.outputs]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS == ["consortium.ipynb", "new_algorithm.ipynb"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_outputs_are_of_one_run_and_small(name: str) -> None:
    notebook = read(name)
    FORMAT.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for output in outputs(name) if output.output_type == "error"]
    assert (EXAMPLES / name).stat().st_size < 300_000
    for output in outputs(name):
        assert len(base64.b64decode(output.get("data", {}).get("image/png", ""))) < 100_000


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_outputs_tell_nothing_of_the_machine(name: str) -> None:
    text = json.dumps([{**output, "data": _texts(output)} for output in outputs(name)])
    folders = ("/home", "/root", "/tmp", "/work", "/usr", "/opt", "/Users", "/var", "C:\\", str(Path.home()), str(ROOT))
    assert not [folder for folder in folders if folder in text]
    assert "\\u001b" not in text  # no colours, no bars that move
    assert "stderr" not in [output.get("name") for output in outputs(name)]


def _texts(output: Any) -> dict[str, Any]:
    return {kind: value for kind, value in output.get("data", {}).items() if kind.startswith("text/")}


def test_a_consortium() -> None:
    results, by_hospital, share_exposed, label = values_after(
        "consortium.ipynb",
        "{' / '.join(key): value for key, value in results.items()}",
        "by_hospital['accuracy'].to_dict()",
        "share_exposed",
        "str(label[0])",
    )
    accuracy = {key: value["accuracy"] for key, value in results.items()}
    found = {key: value["malignant found"] for key, value in results.items()}
    together = accuracy["together / ffgb"]
    assert together > 0.92
    # about as good as all rows in one place, by any program
    assert all(abs(together - accuracy[key]) < 0.04 for key in accuracy if key.startswith("pooled"))
    # better than a flexible model of the screening programme alone, which misses tumours
    for program in ("ffgb", "gradient boosting"):
        assert together > accuracy[f"screening / {program}"] + 0.04
        assert found["together / ffgb"] > found[f"screening / {program}"] + 0.15
    assert found["screening / gradient boosting"] < 0.5
    # a logistic regression is good everywhere
    logistic = [value for key, value in accuracy.items() if key.endswith("logistic regression")]
    assert min(logistic) > max(logistic) - 0.04
    # probabilities from small tables alone are too sure of themselves
    assert results["together / ffgb"]["log loss"] < 0.2 < results["screening / ffgb"]["log loss"]
    assert set(by_hospital) == {"all", "new-screening", "new-centre", "new-county"}
    assert min(by_hospital.values()) > 0.87
    assert share_exposed > 0.5
    assert label == "malignant"


def test_a_new_algorithm() -> None:
    runs, by_hand, measured, smallest, compared, spread, below = values_after(
        "new_algorithm.ipynb",
        "{name: run.metrics[-1]['test_loss'] for name, run in runs.items()}",
        "float(gamma_by_hand)",
        "gamma_measured",
        "smallest_gamma",
        "compared['accuracy'].to_dict()",
        "float(compared['between seeds'].max())",
        "{str(level): share for level, share in below.items()}",
        before="from ffgb.studies import tuning\ntuning.FACTORS = (0.5, 1.0, 2.0)  # the best ones of the nine, and 1",
    )
    assert runs["newton:NewtonBoost"] < 0.8 * runs["ffgb"]  # with default step sizes
    assert by_hand == pytest.approx(measured, abs=1e-6)
    assert 0 < smallest < 1
    assert set(compared) == {"newton:NewtonBoost:tree", "ffgb:tree", "fedavg:mlp"}
    assert all(accuracy > 0.7 for accuracy in compared.values())
    assert max(compared.values()) - min(compared.values()) < spread + 0.02  # no winner
    assert below["0.1"] > 0.65 > 0.55 > below["0.5"] > 0.45 > 0.4 > below["0.9"]
