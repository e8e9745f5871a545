"""Distances against other ways to compute them, against cases with a known answer, and at the command line."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial.distance import cdist, directed_hausdorff
from scipy.stats import chi2, norm, wasserstein_distance
from typer.testing import CliRunner

from ffgb.cli.common import app
from ffgb.core.types import Array
from ffgb.data.heterogeneity import classifier_tv, farthest, measure, sliced_w1, total_variation, wasserstein
from ffgb.errors import FFGBError
from ffgb.studies import plots

seeds = st.integers(0, 2**32)


def exact(x: Array, y: Array, order: int = 1, p: Array | None = None, q: Array | None = None) -> float:
    pytest.importorskip("ot")
    return wasserstein(x, y, order, p, q)


def exact_w2(x: Array, y: Array, p: Array | None = None, q: Array | None = None) -> float:
    return exact(x, y, 2, p, q)


def weighted(rng: np.random.Generator, d: int, most: int = 8, values: int | None = None) -> tuple[Array, Array]:
    """A few points, on a small grid if so many values a column are given, and their weights."""
    n = int(rng.integers(1, most + 1))
    x = rng.standard_normal((n, d)) if values is None else rng.integers(0, values, (n, d))
    return x, rng.dirichlet(np.ones(n))


# Total variation


@given(seeds)
def test_total_variation_is_the_largest_difference_of_any_set(seed: int) -> None:
    rng = np.random.default_rng(seed)
    (x, p), (y, q) = (weighted(rng, 2, values=2) for _ in range(2))
    support = [np.array(point) for point in itertools.product((0, 1), repeat=2)]
    difference = [p[(x == s).all(axis=1)].sum() - q[(y == s).all(axis=1)].sum() for s in support]
    sets = itertools.product((0, 1), repeat=len(support))
    assert total_variation(x, y, p, q) == pytest.approx(max(np.dot(A, difference) for A in sets))


def test_total_variation_by_hand() -> None:
    x = np.array([[0.0, 0.0], [1.0, 0.0]])
    assert total_variation(x, x[::-1]) == 0
    assert total_variation(x, -x) == 0.5  # −0 is 0
    assert total_variation(x, x.astype(np.float32)) == 0
    assert total_variation(x, x + 5) == 1
    assert total_variation(x, x, p=np.array([1, 0]), q=np.array([0, 1])) == 1
    assert total_variation(np.array([1, 1, 2]), np.array([2.0, 2.0, 1.0])) == pytest.approx(1 / 3)


# Wasserstein distances


@given(seeds, st.integers(1, 3), st.sampled_from([1, 2]))
@settings(max_examples=40)
def test_wasserstein_is_the_value_of_the_linear_program(seed: int, d: int, order: int) -> None:
    rng = np.random.default_rng(seed)
    (x, p), (y, q) = (weighted(rng, d) for _ in range(2))
    cost = cdist(x, y) ** order
    n, m = cost.shape
    marginals = np.concatenate([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    best = linprog(cost.ravel(), A_eq=marginals[:-1], b_eq=np.concatenate([p, q])[:-1])
    assert best.fun is not None
    assert exact(x, y, order, p, q) == pytest.approx(best.fun ** (1 / order), rel=1e-6, abs=1e-7)


@given(seeds)
def test_on_a_line_it_agrees_with_scipy_and_with_pot(seed: int) -> None:
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(seed)
    (x, p), (y, q) = (weighted(rng, 1, most=30) for _ in range(2))
    assert wasserstein(x, y, 1, p, q) == pytest.approx(wasserstein_distance(x[:, 0], y[:, 0], p, q))
    assert wasserstein(x, y, 2, p, q) ** 2 == pytest.approx(ot.emd2(p, q, cdist(x, y) ** 2), abs=1e-12)


@given(seeds, st.integers(1, 3))
@settings(max_examples=40)
def test_all_are_metrics(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, c = (weighted(rng, d, values=2) for _ in range(3))
    for distance in (total_variation, exact, exact_w2):
        ab, bc, ac = (distance(x, y, p=p, q=q) for (x, p), (y, q) in ((a, b), (b, c), (a, c)))
        assert distance(b[0], a[0], p=b[1], q=a[1]) == pytest.approx(ab, abs=1e-7)
        assert distance(a[0], a[0][::-1], p=a[1], q=a[1][::-1]) == pytest.approx(0, abs=1e-7)
        assert ac <= ab + bc + 1e-7
    w1, w2, tv = (f(a[0], b[0], p=a[1], q=b[1]) for f in (exact, exact_w2, total_variation))
    assert tv <= w1 + 1e-7  # points of a grid are 1 apart or more
    assert w1 <= w2 + 1e-7
    assert w1 <= tv * math.sqrt(d) + 1e-7  # and √d at most


@pytest.mark.parametrize("d", [1, 2, 10])
def test_translations_and_scalings_are_exact(d: int) -> None:
    rng = np.random.default_rng(d)
    x, shift = rng.standard_normal((300, d)), rng.standard_normal(d)
    for order in (1, 2):
        assert exact(x, x + shift, order) == pytest.approx(np.linalg.norm(shift))
    norms = np.linalg.norm(x, axis=1)  # x to 3x is the best map: the gradient of a convex function, and along rays
    assert exact(x, 3 * x) == pytest.approx(2 * norms.mean())
    assert exact(x, 3 * x, 2) ** 2 == pytest.approx(4 * (norms**2).mean())


def test_gaussians_of_other_scales() -> None:
    """W₂² = (σ − 1)² + δ² and, without a shift, W₁ = |σ − 1| √(2/π)."""
    z = norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    assert wasserstein(z, 2.5 * z + 0.7, 2) ** 2 == pytest.approx(1.5**2 + 0.7**2, rel=1e-3)
    assert wasserstein(z, 2.5 * z) == pytest.approx(1.5 * math.sqrt(2 / math.pi), rel=1e-3)


def test_large_problems_reach_the_optimum() -> None:
    """POT's own limit on the steps would end before, with a warning."""
    pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((700, 3))
    assert exact(x, x[rng.permutation(700)] + [3.0, 0.0, 4.0]) == pytest.approx(5.0)


# Sliced


def two_clients(seed: int, d: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal((rng.integers(1, 30), d)) * rng.random(d) + rng.standard_normal(d) for _ in range(2))
    return x, y


@pytest.mark.parametrize("d", range(1, 7))
def test_sliced_is_a_lower_bound(d: int) -> None:
    """In expectation over the directions: hence 4,096 of them, and given seeds."""
    for seed in range(6):
        x, y = two_clients(seed, d)
        assert sliced_w1([x, y], projections=4096, seed=seed)[0][0, 1] <= 1.01 * exact(x, y)


@given(seeds, st.integers(1, 6))
@settings(max_examples=40)
def test_sliced_is_a_distance_beyond_that_of_the_means(seed: int, d: int) -> None:
    x, y = two_clients(seed, d)
    pairs, to_all = sliced_w1([x, y], projections=64, seed=seed)
    np.testing.assert_array_equal(pairs, pairs.T)
    assert np.diag(pairs).tolist() == [0, 0]
    assert pairs[0, 1] >= np.linalg.norm(x.mean(axis=0) - y.mean(axis=0)) - 1e-9
    # of two clients each is half of the mixture, and on a line this half stays where it is
    np.testing.assert_allclose(to_all, pairs[0, 1] / 2, rtol=1e-6, atol=1e-9)


@given(seeds)
@settings(max_examples=40)
def test_on_a_line_sliced_is_exact_also_to_the_mixture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = [rng.integers(-9, 9, int(rng.integers(1, 20))) / 2 for _ in range(int(rng.integers(1, 6)))]
    pairs, to_all = sliced_w1(samples, projections=3, seed=seed)
    everyone = np.concatenate(samples)
    weights = np.concatenate([np.full(len(x), 1 / (len(x) * len(samples))) for x in samples])
    for i, x in enumerate(samples):
        np.testing.assert_allclose(pairs[i], [wasserstein_distance(x, y) for y in samples], atol=1e-9)
        np.testing.assert_allclose(to_all[i], wasserstein_distance(x, everyone, None, weights), atol=1e-9)


@pytest.mark.parametrize("projections", [1, 64])
def test_sliced_is_exact_for_translations(projections: int) -> None:
    rng = np.random.default_rng(0)
    x, shifts = rng.standard_normal((200, 12)), 3 * rng.standard_normal((4, 12))
    pairs, _ = sliced_w1([x + shift for shift in shifts], projections)
    np.testing.assert_allclose(pairs, cdist(shifts, shifts), atol=1e-9)


def test_sliced_finds_scales_of_gaussians() -> None:
    """W₁ of N(0, 1) and N(0, σ²) in d dimensions is |σ − 1| E‖Z‖; slices see all of it."""
    rng, d = np.random.default_rng(0), 30
    pairs, _ = sliced_w1([scale * rng.standard_normal((3_000, d)) for scale in (1, 2)])
    truth = math.sqrt(2) * math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2))
    assert pairs[0, 1] == pytest.approx(truth, rel=0.03)


def test_sliced_of_56_clients_takes_less_than_a_minute() -> None:
    """All 1,540 pairs, and the mixture; about 6 seconds."""
    samples = list(np.random.default_rng(0).standard_normal((56, 1_000, 784), np.float32))
    began = time.perf_counter()
    pairs, _ = sliced_w1(samples)
    assert time.perf_counter() - began < 60
    assert pairs.shape == (56, 56)


# By a classifier


def scaled_tv(d: int, scale: float) -> float:
    """TV of N(0, 1) and N(0, σ²): inside a ball the first is denser."""
    r2 = 2 * d * math.log(scale) * scale**2 / (scale**2 - 1)
    return float(chi2.cdf(r2, d) - chi2.cdf(r2 / scale**2, d))


@pytest.mark.parametrize(
    ("d", "shift", "scale", "below"),
    [(2, 1.0, 1.0, 0.05), (10, 2.0, 1.0, 0.05), (40, 2.0, 1.0, 0.08), (2, 0.0, 2.0, 0.05), (10, 0.0, 1.5, 0.1)],
)
def test_classifier_finds_gaussians(d: int, shift: float, scale: float, below: float) -> None:
    rng = np.random.default_rng(d)
    x, y = rng.standard_normal((2, 1_000, d))
    truth = 2 * norm.cdf(shift / 2) - 1 if scale == 1 else scaled_tv(d, scale)
    pairs, to_all = classifier_tv([x, scale * y + shift / math.sqrt(d)])
    assert pairs[0, 1] == pairs[1, 0]
    assert truth - below <= pairs[0, 1] <= truth + 0.04
    np.testing.assert_allclose(to_all, pairs[0, 1] / 2, atol=1e-9)


def test_classifier_finds_nothing_where_there_is_nothing() -> None:
    rng = np.random.default_rng(0)
    pairs, to_all = classifier_tv([rng.standard_normal((n, 5)) for n in (1_000, 2_000, 1_000)])
    assert max(pairs.max(), to_all.max()) <= 0.07


def test_classifier_knows_finite_supports_too() -> None:
    rng = np.random.default_rng(0)
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.3, 0.1, 0.5])
    x, y = (rng.choice(4, 2_000, p=w) for w in (p, q))
    truth = total_variation(np.arange(4), np.arange(4), p, q)
    assert classifier_tv([x, y])[0][0, 1] == pytest.approx(truth, abs=0.04)


@pytest.mark.parametrize("sizes", [(1, 1, 3), (300, 1, 20)])
def test_classifier_stands_tiny_clients(sizes: tuple[int, ...]) -> None:
    pairs, to_all = classifier_tv([np.full((n, 2), i) for i, n in enumerate(sizes)])
    assert ((pairs >= 0) & (pairs <= 1)).all()
    assert ((to_all >= 0) & (to_all <= 1)).all()


# D, and all together


@given(seeds, st.integers(1, 4))
def test_farthest_is_the_largest_hausdorff_distance(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    samples = [
        rng.random() * rng.standard_normal((rng.integers(1, 60), d)).round(1) for _ in range(int(rng.integers(1, 5)))
    ]
    largest = max(directed_hausdorff(x, y)[0] for x in samples for y in samples)
    assert farthest(samples) == pytest.approx(largest, abs=1e-6)
    assert farthest([x.astype(np.float32) for x in samples]) == pytest.approx(largest, abs=2e-3)


def test_measure_of_a_finite_support_is_exact_and_of_all_points() -> None:
    pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    samples = [rng.integers(0, high, (3_000, 2)).astype(np.float32) for high in (2, 3)]
    found = measure(samples, [np.array([-7.0] * 3_000), np.ones(3_000)], at_most=10)
    assert (found.tv_method, found.w1_method, found.measured) == ("exact", "exact", (3_000, 3_000))
    assert found.tv_pairs[0, 1] == pytest.approx(total_variation(*samples))
    assert found.omega_tv == pytest.approx(found.tv_pairs[0, 1] / 2)
    everyone = np.concatenate(samples, dtype=np.float64)
    x, y = ((x - everyone.mean(axis=0)) / everyone.std(axis=0) for x in samples)
    assert found.w1_pairs[0, 1] == pytest.approx(sliced_w1([x, y])[0][0, 1], rel=0.1)
    assert found.omega_w1 == pytest.approx(found.w1_pairs[0, 1] / 2, rel=1e-5)
    assert found.w2 is not None
    assert (found.w2 >= found.w1).all()
    largest = max(directed_hausdorff(x, y)[0], directed_hausdorff(y, x)[0])
    np.testing.assert_allclose(found.D, largest, rtol=1e-5)
    assert found.B == 7
    json.dumps(found.to_json(), allow_nan=False)


def test_measure_estimates_if_there_are_too_many_points_or_it_is_told_to() -> None:
    rng = np.random.default_rng(0)
    images = [rng.standard_normal((n, 1, 3, 3)) + 5 * (n == 30) for n in (50, 30)]
    found = measure(images, [np.zeros(50, int), np.zeros(30, int)], "estimate", at_most=40)
    assert (found.tv_method, found.w1_method, found.w2, found.B) == ("classifier", "sliced", None, None)
    assert (found.points, found.measured) == ((50, 30), (40, 30))
    assert found.tv_pairs[0, 1] > 0.9
    assert found.w1_pairs[0, 1] == pytest.approx(15, rel=0.1)  # images keep their units
    again = measure(images, method="estimate", at_most=40)
    assert found.to_json() == {**again.to_json()}
    other = measure(images, method="estimate", at_most=40, seed=1)
    assert other.omega_w1 != found.omega_w1


def test_columns_are_standardised_and_constant_ones_say_nothing() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 2))
    tables = [np.column_stack([1e6 * part[:, 0] + 5, np.full(30, 3.0)]) for part in (x[:30], x[30:])]
    found, plain = measure(tables, method="estimate"), measure([x[:30], x[30:]], method="estimate")
    assert np.isfinite(found.w1_pairs).all()
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    np.testing.assert_allclose(plain.D, farthest([z[:30], z[30:]]), rtol=1e-5)
    np.testing.assert_allclose(found.D, farthest([z[:30, :1], z[30:, :1]]), rtol=1e-5)  # the other column is constant


def test_one_client_is_no_different_from_all() -> None:
    found = measure([np.random.default_rng(0).standard_normal((20, 3))], method="estimate")
    assert (found.omega_tv, found.D) == (0, 0)
    assert found.omega_w1 == pytest.approx(0, abs=1e-9)


def test_without_pot_auto_estimates_and_exact_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    samples = list(np.random.default_rng(0).standard_normal((2, 20, 2)))
    assert measure(samples).w1_method == "sliced"
    with pytest.raises(FFGBError, match="needs POT, which is not installed; run: pip install 'ffgb\\[transport\\]'"):
        wasserstein(*samples)
    assert wasserstein(np.zeros(2), np.ones(3)) == 1  # on a line there is no need of it


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda x: measure([x, x[:0]]), "a client without points"),
        (lambda x: measure([]), "a client without points"),
        (lambda x: measure([x, x[:, :1]]), "all of one length"),
        (lambda x: measure([x, np.array([["a", "b"]])]), "rows of numbers"),
        (lambda x: measure([x, x / 0 * np.inf]), "missing or infinite"),
        (lambda x: measure([x, x], [x, x[1:]]), "labels and points differ"),
        (lambda x: measure([x], method="guess"), "no method 'guess'; choose one of auto, exact, estimate"),
        (lambda x: measure([x], at_most=0), "give 1 or more"),
        (
            lambda x: measure(list(np.random.default_rng(0).random((21, 1_000, 2))), method="exact"),
            "at most 952 points",
        ),
        (lambda x: wasserstein(x, x, 3), "1 or 2"),
        (lambda x: wasserstein(x, x, 1, p=np.array([1.0])), "weights of 4 points"),
        (lambda x: total_variation(x, x, q=-np.ones(4)), "weights of 4 points"),
        (lambda x: sliced_w1([x, x], projections=0), "at least 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_mistakes_are_told(fault: Callable[[Array], object], words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        fault(np.zeros((4, 2)))


# Pictures and the command line


@pytest.mark.parametrize("clients", [1, 4, 56])
def test_pictures_are_small(clients: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    found = measure(list(rng.standard_normal((clients, 20, 2))), method="estimate")
    names = [f"hospital {i} of a long name" for i in range(clients)]
    plots.heterogeneity(tmp_path / "p.png", found, rng.integers(1, 9, (clients, 3)), ("a", "b", "c"), clients=names)
    content = (tmp_path / "p.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 200_000


def test_pictures_have_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FFGBError, match=r"give one that ends in \.png"):
        plots.check(tmp_path / "picture.jpg")
    with pytest.raises(FFGBError, match="there is no folder"):
        plots.check(tmp_path / "nowhere" / "picture.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FFGBError, match="needs matplotlib, which is not installed; run: pip install 'ffgb"):
        plots.check(tmp_path / "picture.png")


def command(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["data", "heterogeneity", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_command_on_digits(tmp_path: Path) -> None:
    pytest.importorskip("ot")
    pytest.importorskip("matplotlib")
    text = command("--clients", "10", "--plot", tmp_path / "digits.png")
    rows = text.splitlines()
    assert " ".join(rows[0].split()) == "client points classes most TV to all W₁ to all W₂ to all"
    assert len(rows[1:11]) == 10
    assert rows[11] == ""
    for symbol in ("ω_TV", "ω_W₁", "W₂²", "D "):
        assert f"\n{symbol}" in text
    assert "\nB " not in text  # there are no targets
    assert "TV: a classifier's lower bound; W₁: exact; from 1,438 of 1,438 points" in text
    assert (tmp_path / "digits.png").stat().st_size < 200_000
    # and clients that are alike are nearer
    common = ("--clients", "10", "--method", "estimate", "--points", "100", "--json")
    apart, alike = (json.loads(command(*common, "--similarity", s)) for s in ("0", "1"))
    assert apart["omega_tv"] > 0.7 > 0.2 > alike["omega_tv"]
    assert apart["omega_w1"] > 2 * alike["omega_w1"]
    assert apart["measured"] == [100] * 10
    assert np.shape(apart["w1_pairs"]) == (10, 10)


def test_command_on_regression() -> None:
    found = json.loads(command("--data", "diabetes", "--clients", "4", "--method", "estimate", "--json"))
    assert found["B"] == 346
    assert np.sum(found["counts"]) == sum(found["points"])
    assert "targets from" in command("--data", "diabetes", "--clients", "4", "--method", "estimate")


def test_command_on_natural_sites(published: Callable[[str], str]) -> None:
    pytest.importorskip("ot")
    found = json.loads(command("--data", published("heart"), "--json"))
    assert found["clients"] == ["cleveland", "hungarian", "switzerland", "va"]
    assert found["split"] == "natural"
    assert found["omega_tv"] > 0.5  # hospitals record different things
    assert found["w1_method"] == "exact"


def test_command_on_mnist(published: Callable[[str], str]) -> None:
    found = json.loads(command("--data", published("mnist"), "--clients", "20", "--points", "300", "--json"))
    assert (found["tv_method"], found["w1_method"]) == ("classifier", "sliced")
    # a client has one or two digits and a tenth of all: about 0.8 by the digits alone
    assert 0.5 < found["omega_tv"] < 0.85
