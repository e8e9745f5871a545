"""The job that a server proposes: written, read, shown; and what no site accepts of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.deployment.job_file import in_words, job_text, read_job
from ffgb.errors import FFGBError

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9)


@given(
    settings=st.fixed_dictionaries(
        {},
        optional={
            "rounds": st.integers(1, 99),
            "ridge": st.floats(1e-9, 1e9),
            "categories": st.lists(TEXTS, max_size=3).map(tuple),
            "stop": st.booleans(),
            "learner": st.sampled_from(["features", "trees", "linear"]),
        },
    ),
    target=TEXTS,
)
def test_what_a_server_writes_a_site_reads(settings: dict[str, Any], target: str) -> None:
    text = job_text({**settings, "data": ["sites"], "sep": ";", "schema": "/own.toml"}, target, None)
    assert read_job(text) == {"target": target, **settings}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds", "cannot be read; the server and this site need the same version"),
        ("a = " + "[" * 9999, "cannot be read"),
        ("x" * 2**17, "cannot be read"),
        ("colour = 3", "has 'colour', which this site does not know as a part of a job"),
        ('data = ["/etc/passwd"]', "has 'data', which this site does not know"),
        ('schema = "/etc/passwd"', "has 'schema', which this site does not know"),
        ("rounds = -1", "the server's job: rounds is a whole number from 1 on"),
        ('learner = "evil.module:run"', "names code, evil.module:run: no site should run code for another"),
        ('start = "/srv/them/model.safetensors"', "names a file, start, which must be here too"),
        ('map = "steps+secret/enc.onnx"', "names a file, secret/enc.onnx, which must be here too"),
    ],
)
def test_jobs_that_no_site_accepts(text: str, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        read_job(text)


def test_in_words() -> None:
    said = in_words({"target": "sick", "task": "classification", "rounds": 5, "least": 20})
    assert said[0] == "It trains a model that predicts the column 'sick' (a class)."
    assert "up to 5 rounds" in said[1]
    assert "(a linear model of the columns)" in in_words({"target": "sick", "learner": "linear"})[1]
    assert said[2] == "Further options: least = 20."
    assert in_words({})[0] == "It trains a model that predicts the array y of an NPZ file."
