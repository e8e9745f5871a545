"""The job of an analysis: what a server proposes is read back, and what no site should take is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ffgb.deployment.analysis_job import analysis_text, is_analysis, read_analysis
from ffgb.errors import FFGBError
from ffgb.runs.cox import Cox
from ffgb.runs.glm import GLM
from ffgb.runs.kaplan_meier import SurvivalCurves
from ffgb.runs.statistics import Analysis

JOBS: list[Analysis[Any]] = [
    GLM('`a "b" \\ é` ~ x + C(z)', family="gamma", weights="w", reference={"z": "1=2"}, errors="site", level=0.9),
    GLM(target="y", columns=("a", "b"), categories=("b",), offset="o", exposure=None, least=5),
    Cox("age * sex", "days", "died", strata=("ward",), ties="breslow", penalty=0.25, errors="robust"),
    Cox(columns=("age",), time="days", event="died"),
    SurvivalCurves("days", "died", "sex", (365.0, 730.5), 0.8, 20),
    SurvivalCurves("days", "died"),
]


@pytest.mark.parametrize("analysis", JOBS, ids=str)
@pytest.mark.parametrize("secure", [True, False])
def test_a_job_is_read_as_it_was_written(analysis: Analysis[Any], secure: bool) -> None:
    text = analysis_text(analysis, secure=secure)
    assert is_analysis(text.encode())
    assert read_analysis(text) == (analysis, secure)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('analysis = "code"', "which this site does not know"),
        ("analysis = [1]", "which this site does not know"),
        ('analysis = "glm"\nformula = "y ~ x"\nsecure = "perhaps"', "which this site does not know"),
        ('analysis = "glm"\nformula = "y ~ x"\nepsilon = 1.0', "'epsilon', which this site does not know"),
        ('analysis = "glm"\nformula = 3', "formula = 3, which it cannot be"),
        ('analysis = "glm"\nformula = "y ~ x"\nleast = 0', "no number from 1 on"),
        ('analysis = "glm"\nformula = "y ~ x"\nleast = true', "which it cannot be"),
        ('analysis = "glm"\nformula = "y ~ x"\nlevel = 1.5', "is a number between 0 and 1"),
        ('analysis = "glm"\nformula = "y ~ x"\nlevel = nan', "is a number between 0 and 1"),
        ('analysis = "glm"\nformula = "y ~ x"\nerrors = "all"', "which it cannot be"),
        ('analysis = "glm"\nformula = "y ~ x"\nfamily = "normal"', "there is no"),
        ('analysis = "glm"\nformula = "y ~ f(x)"', "no function 'f'"),
        ('analysis = "glm"\nformula = "y ~ x"\ncategories = "x"', "which it cannot be"),
        ('analysis = "glm"\nformula = "y ~ x"\nreference = ["x"]', "is not column=category"),
        ('analysis = "cox"\nformula = "x"\ntime = "t"\nevent = "e"\npenalty = -1.0', "a number from 0 on"),
        ('analysis = "cox"\nformula = "t"\ntime = "t"\nevent = "e"', "cannot explain"),
        ('analysis = "survival"\ntime = "t"\nevent = "t"', "columns of their own"),
        ('analysis = "survival"\ntime = "t"\nevent = "e"\ntimes = [-1.0]', "are numbers from 0 on"),
        ('analysis = "survival"\ntime = "t"\nevent = "e"\ntimes = ["1"]', "which it cannot be"),
    ],
)
def test_what_is_no_analysis_is_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(FFGBError, match=words.replace("(", r"\(")):
        read_analysis(text)


def test_a_training_is_no_analysis() -> None:
    assert not any(is_analysis(job) for job in (None, b"", b'target = "y"', b"\xff = ", b"analysis = ", b"x" * 2**17))
