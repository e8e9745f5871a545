"""The posterior mean of private terms, beside formulas written out and other programs' likelihoods."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import multivariate_normal

from ffgb.core.private_sums import CellBlocks, all_pairs
from ffgb.core.private_terms import (
    Priors,
    Released,
    averaged,
    dependence,
    evidence,
    moved,
    posterior,
    purified,
    smooth,
)

CELLS = np.array([4, 3], np.int16)
MAINS = CellBlocks.of([((c, np.arange(int(CELLS[c]))),) for c in range(2)], CELLS)
PAIR = all_pairs([np.array([0, 0, 1, 1]), np.array([0, 1, 1])], CELLS)
BOTH = MAINS.joined(PAIR)


def spread(rng: np.random.Generator, n: int) -> Any:
    """A covariance of full rank."""
    root = rng.standard_normal((n, n + 2))
    return root @ root.T / n


def history(blocks: CellBlocks, rounds: int, seed: int = 0, *, late: int = 0) -> list[Released]:
    """Rounds with any numbers; the last `late` blocks are missing in the first round."""
    rng, said = np.random.default_rng(seed), list[Released]()
    for k in range(rounds):
        count = len(blocks) - (late if k == 0 else 0)
        cells = int(blocks.starts[count])
        said.append(
            Released(
                float(rng.normal()),
                rng.normal(size=cells),
                rng.normal(size=cells) * 3.0,
                rng.uniform(5.0, 20.0, cells),
                rng.uniform(0.5, 2.0, count),
                rng.uniform(0.1, 0.4, count),
            )
        )
    return said


def test_a_prior_is_nine_tenths_smooth_and_reaches_over_half_of_a_column() -> None:
    kernel = smooth(5)
    for i in range(5):
        for j in range(5):
            own = 0.1 if i == j else 0.0
            assert kernel[i, j] == pytest.approx(0.9 * math.exp(-abs(i - j) / 4.0 / 0.5) + own, rel=1e-12)


def test_rounds_of_classes_are_averaged_with_weights_that_forget() -> None:
    said = history(BOTH, 3, late=1)
    terms, residual, curvature, noise = averaged(said, BOTH, flat=False)
    for block, rounds in ((0, said), (1, said), (2, said[1:])):
        q = np.array([0.7**k for k in range(len(rounds))][::-1])
        q /= q.sum()
        over = slice(BOTH.starts[block], BOTH.starts[block + 1])
        assert terms[block] == pytest.approx(sum(w * r.terms[over] for w, r in zip(q, rounds, strict=True)))
        assert residual[block] == pytest.approx(sum(w * r.residual[over] for w, r in zip(q, rounds, strict=True)))
        assert curvature[block] == pytest.approx(sum(w * r.curvature[over] for w, r in zip(q, rounds, strict=True)))
        assert noise[block] == pytest.approx(sum((w * r.noise[block]) ** 2 for w, r in zip(q, rounds, strict=True)))


def test_rounds_of_numbers_are_averaged_by_their_precisions() -> None:
    said = history(BOTH, 3, late=1)
    terms, residual, curvature, noise = averaged(said, BOTH, flat=True)
    for block, rounds in ((0, said), (2, said[1:])):
        over = slice(BOTH.starts[block], BOTH.starts[block + 1])
        sure = np.array([1.0 / r.noise[block] ** 2 for r in rounds])
        bends = np.array([1.0 / r.of_curvature[block] ** 2 for r in rounds])
        assert terms[block] == pytest.approx(np.average([r.terms[over] for r in rounds], axis=0, weights=sure))
        assert residual[block] == pytest.approx(np.average([r.residual[over] for r in rounds], axis=0, weights=sure))
        assert curvature[block] == pytest.approx(np.average([r.curvature[over] for r in rounds], axis=0, weights=bends))
        assert noise[block] == pytest.approx(1.0 / sure.sum())  # of a mean by precisions


def test_no_curvature_is_smaller_than_its_noise() -> None:
    said = [r._replace(curvature=np.full(7, 1e-3)) for r in history(MAINS, 2)]
    q = np.array([0.7, 1.0]) / 1.7
    for block, found in enumerate(averaged(said, MAINS, flat=False)[2]):
        deviation = math.sqrt(sum((w * r.of_curvature[block]) ** 2 for w, r in zip(q, said, strict=True)))
        assert found == pytest.approx(np.full(int(CELLS[block]), deviation + 1e-9), rel=1e-12)


def test_the_posterior_mean_is_that_of_a_gaussian_model() -> None:
    """aim = H w + noise of variance φH + N: the mean of w is that of the joint normal distribution."""
    rng = np.random.default_rng(1)
    H, noise, kernels = spread(rng, 5), np.diag(rng.uniform(0.5, 2.0, 5)), [spread(rng, 3), spread(rng, 2)]
    aim, scale, dispersion = rng.normal(size=5), np.array([0.4, 1.7]), 0.8
    prior = np.zeros((5, 5))
    prior[:3, :3], prior[3:, 3:] = 0.4 * kernels[0], 1.7 * kernels[1]
    w, scales = posterior(aim, H, noise, dispersion, kernels, scale, 0, 100.0)
    # the other form of the same mean, which inverts the prior
    whole = np.linalg.inv(dispersion * H + noise)
    assert w == pytest.approx(np.linalg.solve(H @ whole @ H + np.linalg.inv(prior), H @ whole @ aim), rel=1e-6)
    assert scales.tolist() == [0.4, 1.7]
    assert scale.tolist() == [0.4, 1.7]


def test_scales_are_found_by_steps_of_expectation_and_maximisation() -> None:
    rng = np.random.default_rng(2)
    H, noise, kernels = spread(rng, 5), np.diag(rng.uniform(0.5, 2.0, 5)), [spread(rng, 3), spread(rng, 2)]
    aim, dispersion = rng.normal(size=5) * 3.0, 0.8
    scale = np.array([0.4, 1.7])
    for _ in range(3):
        prior = np.zeros((5, 5))
        prior[:3, :3], prior[3:, 3:] = scale[0] * kernels[0], scale[1] * kernels[1]
        whole = H @ np.linalg.inv(dispersion * H + noise)
        covariance = np.linalg.inv(whole @ H + np.linalg.inv(prior))
        w = covariance @ whole @ aim
        for j, (part, kernel) in enumerate(zip((slice(0, 3), slice(3, 5)), kernels, strict=True)):
            second = covariance[part, part] + np.outer(w[part], w[part])
            size = float(np.trace(np.linalg.inv(kernel) @ second))
            scale[j] = (size + 4.0 * 0.1 * dispersion) / (len(kernel) + 4.0)
    found, scales = posterior(aim, H, noise, dispersion, kernels, np.array([0.4, 1.7]), 3, 100.0)
    assert scales == pytest.approx(scale, rel=1e-6)
    assert found == pytest.approx(w, rel=1e-6)


def test_scales_stay_within_their_limits() -> None:
    H, kernel, first = np.eye(3) * 100.0, np.eye(3), np.array([0.3])
    huge = posterior(np.full(3, 1e6), H, np.eye(3), 0.5, [kernel], first, 3, 7.0)[1]
    assert huge.tolist() == [7.0 * 0.5]
    # without the pull towards a tenth, nothing would hold the scale of a prior that is nearly none
    tiny = posterior(np.zeros(3), H, np.eye(3), 1e-12, [kernel], np.array([1e-30]), 1, 7.0)[1]
    assert tiny == pytest.approx([4.0 * 0.1 * 1e-12 / 7.0], rel=1e-6)
    wide = np.eye(3) * 1e9  # its inverse leaves nothing of what was found
    low = posterior(np.zeros(3), H * 1e-6, np.eye(3), 0.5, [wide], np.array([1e-20]), 1, 1e-9)[1]
    assert low.tolist() == [1e-9 * 0.5]  # the largest scale wins over the smallest


def test_a_pair_says_nothing_of_its_columns() -> None:
    rng = np.random.default_rng(3)
    kernel, held = spread(rng, 6), rng.uniform(1.0, 5.0, 6)
    found = purified(kernel, held, np.array([2, 3]))
    root = np.linalg.cholesky(kernel)
    columns = np.zeros((6, 5))
    for cell in range(6):
        columns[cell, cell // 3] = columns[cell, 2 + cell % 3] = 1.0
    weights = np.sqrt(held)[:, None]
    fit = np.linalg.lstsq(weights * columns, weights * root, rcond=None)[0]  # weighted least squares on the columns
    left = root - columns @ fit
    assert found == pytest.approx(left @ left.T, abs=1e-9)
    by_cell = (held[:, None] * found).reshape(2, 3, 6)
    assert np.abs(by_cell.sum(axis=0)).max() < 1e-9
    assert np.abs(by_cell.sum(axis=1)).max() < 1e-9


def test_dependence_is_the_correlation_of_groups_shrunk_by_noise() -> None:
    of_a, of_b = np.array([30.0, 70.0]), np.array([40.0, 60.0])
    counts = np.array([[22.0, 8.0], [18.0, 52.0]])
    # of two groups and two groups: the phi coefficient
    phi = (22.0 * 52.0 - 8.0 * 18.0) / math.sqrt(30.0 * 70.0 * 40.0 * 60.0)
    exact = dependence(counts, of_a, of_b, 100.0, 0.0)
    assert np.linalg.svd(exact)[1] == pytest.approx([phi, 0.0], abs=1e-9)
    whitened = (counts - np.outer(of_a, of_b) / 100.0) / np.sqrt(np.outer(of_a, of_b))
    assert exact == pytest.approx(whitened)
    noise = 0.5 * math.sqrt((1 / 30 + 1 / 70) / 2 * (1 / 40 + 1 / 60) / 2) * 2.0 * math.sqrt(2.0)
    assert 0.0 < noise < phi
    shrunk = dependence(counts, of_a, of_b, 100.0, 0.5)
    assert shrunk == pytest.approx(whitened * math.sqrt(phi**2 - noise**2) / phi)
    assert np.abs(dependence(counts, of_a, of_b, 100.0, 50.0)).max() == 0.0
    same = dependence(np.diag([30.0, 70.0]), of_a, of_a, 100.0, 0.0)
    assert np.linalg.svd(same)[1] == pytest.approx([0.98, 0.0], abs=1e-9)


def test_three_groups_and_two_have_their_own_noise() -> None:
    of_a, of_b = np.array([20.0, 30.0, 50.0]), np.array([40.0, 60.0])
    counts = np.array([[18.0, 2.0], [12.0, 18.0], [10.0, 40.0]])
    whitened = (counts - np.outer(of_a, of_b) / 100.0) / np.sqrt(np.outer(of_a, of_b))
    u, s, v = np.linalg.svd(whitened, full_matrices=False)
    noise = 0.3 * math.sqrt(np.mean(1.0 / of_a) * np.mean(1.0 / of_b)) * (math.sqrt(3.0) + math.sqrt(2.0))
    s = np.where(s > noise, np.sqrt(np.maximum(s**2 - noise**2, 0.0)), 0.0)
    assert dependence(counts, of_a, of_b, 100.0, 0.3) == pytest.approx((u * s) @ v, abs=1e-12)


def test_the_evidence_of_a_pair_is_a_likelihood_ratio() -> None:
    rng = np.random.default_rng(4)
    H, kernel, noise, dispersion = spread(rng, 4), spread(rng, 4), 0.6, 0.5
    without = dispersion * H + noise * np.eye(4)
    aim = np.linalg.cholesky(without + 0.2 * H @ kernel @ H) @ np.array([1.5, -2.0, 1.0, 2.5])
    ratios = {}
    for step in range(-16, 5):  # quarters of a power of ten, from 1e-4 to 10
        scale = dispersion * 10.0 ** (step / 4)
        with_pair = multivariate_normal.logpdf(aim, np.zeros(4), without + scale * H @ kernel @ H)
        ratios[scale] = with_pair - multivariate_normal.logpdf(aim, np.zeros(4), without)
    best = max(ratios, key=lambda scale: ratios[scale])
    assert ratios[best] > 0.0
    assert evidence(aim, H, noise, dispersion, kernel) == pytest.approx((ratios[best], best), rel=1e-6)
    assert evidence(np.zeros(4), H, noise, dispersion, kernel) == (0.0, 0.0)
    strongest = evidence(1e4 * aim, H, noise, dispersion, kernel)
    assert strongest[1] == pytest.approx(10.0 * dispersion)


def test_the_least_scale_of_a_pair_is_tried() -> None:
    """A step of 1e-4 explains a tenth more than the noise; larger ones explain less."""
    H, kernel = 100.0 * np.eye(2), np.eye(2)
    aim = np.sqrt(np.full(2, 1.0 * 100.0 + 1.0) * 2.0)
    ratio, scale = evidence(aim, H, 1.0, 1.0, kernel)
    grown = 1e-2 * 1e4 / 101.0
    assert scale == pytest.approx(1e-2)
    assert ratio == pytest.approx(0.5 * 2 * (2.0 * grown / (1.0 + grown) - math.log1p(grown)))
    # 1e-4 of a dispersion of 0.1
    assert evidence(np.full(2, 2.0), H / 10.0, 1.0, 0.1, kernel * 2000.0)[1] == pytest.approx(1e-5)


def test_a_first_round_moves_to_the_mean_rate() -> None:
    """Asked at the probability 1/4, told as if asked at 0.4: residuals are Σ (p − y), curvature Σ p(1 − p)."""
    rows, ones = np.array([10.0, 40.0]), np.array([3.0, 20.0])
    first = Released(
        0.0, np.zeros(2), 0.25 * rows - ones, 0.25 * 0.75 * rows, np.array([2.0]), np.array([0.25 * 0.75 * 3.0])
    )
    found = moved(first, 0.4, 0.25, -1.5)
    assert found.constant == -1.5
    assert found.terms is first.terms
    assert found.residual == pytest.approx(0.4 * rows - ones)
    assert found.curvature == pytest.approx(0.4 * 0.6 * rows)
    assert found.noise == pytest.approx([math.hypot(2.0, 0.15 * 3.0)])
    assert found.of_curvature == pytest.approx([0.4 * 0.6 * 3.0])


def priors(blocks: CellBlocks, mains: int = 2, updates: int = 0, cross: Any = None) -> Priors:
    kernels = tuple(smooth(int(n)) if n > 4 or k < mains else np.eye(int(n)) for k, n in enumerate(blocks.of_each))
    groups = (np.array([0, 0, 1, 1]), np.array([0, 1, 1]))
    return Priors(blocks, kernels, mains, cross or {}, groups, updates)


def test_first_scales_are_smaller_for_pairs() -> None:
    assert priors(BOTH).first_scales().tolist() == [0.3, 0.3, 0.05]


def expected(said: list[Released], steeper: float, cross: Any = None, scale: float = 0.3) -> tuple[float, Any, Any]:
    """The constant and the columns' terms of a fit without steps of EM, and the cells' curvature, written out."""
    terms, residual, curvature, noise = averaged(said, MAINS, flat=False)
    whole = (curvature[0].sum() + curvature[1].sum()) / 2.0
    share = [h / h.sum() for h in curvature]
    H = np.zeros((7, 7))
    H[:4, :4] = whole * (np.diag(share[0]) - np.outer(share[0], share[0]))
    H[4:, 4:] = whole * (np.diag(share[1]) - np.outer(share[1], share[1]))
    if cross is not None:
        H[:4, 4:], H[4:, :4] = cross(share, whole), cross(share, whole).T
        d = 1.0 / np.sqrt(whole * np.concatenate(share))
        values, vectors = np.linalg.eigh(d[:, None] * H * d)
        values = np.array([max(v, 0.03) if v > 1e-6 else max(v, 0.0) for v in values])
        H = (vectors * values) @ vectors.T / np.outer(d, d)
    H = H * steeper
    g = np.concatenate([r - p * r.sum() for r, p in zip(residual, share, strict=True)])
    N = np.diag(np.concatenate([whole * share[0] * 0.0 + noise[0], whole * share[1] * 0.0 + noise[1]]))
    prior = np.zeros((7, 7))
    prior[:4, :4], prior[4:, 4:] = scale * smooth(4), scale * smooth(3)
    w = prior @ H @ np.linalg.solve(H @ prior @ H + H * 0.8 + N, H @ np.concatenate(terms) - g)
    w = np.concatenate([w[:4] - share[0] @ w[:4], w[4:] - share[1] @ w[4:]])
    q = np.array([0.7**2, 0.7, 1.0])[-len(said) :]
    q = q / q.sum()
    slope = 0.0
    for weight, r in zip(q, said, strict=True):
        sure = 1.0 / (r.noise[:2] ** 2 * np.array([4, 3]))
        slope += weight * (sure[0] * r.residual[:4].sum() + sure[1] * r.residual[4:7].sum()) / sure.sum()
    constant = sum(weight * r.constant for weight, r in zip(q, said, strict=True))
    return constant - slope / (whole * steeper), w, whole * np.concatenate(share)


@pytest.mark.parametrize("steeper", [1.0, 1.6])
def test_columns_without_dependence_are_fitted_as_written_out(steeper: float) -> None:
    said = history(MAINS, 3)
    fitted = priors(MAINS).fit(said, np.array([0.3, 0.3]), 0.8, steeper=steeper)
    constant, terms, curvature = expected(said, steeper)
    assert fitted.constant == pytest.approx(constant)
    assert fitted.terms == pytest.approx(terms, rel=1e-5)
    assert fitted.curvature == pytest.approx(curvature)
    assert fitted.scale.tolist() == [0.3, 0.3]


def test_dependent_columns_are_fitted_together() -> None:
    said, q = history(MAINS, 2), np.array([[0.5, -0.3], [-0.4, 0.35]])
    groups = (np.array([0, 0, 1, 1]), np.array([0, 1, 1]))

    def between(share: list[Any], whole: float) -> Any:
        block = np.zeros((4, 3))
        for i, a in enumerate(groups[0]):
            for j, b in enumerate(groups[1]):
                in_a, in_b = share[0][groups[0] == a].sum(), share[1][groups[1] == b].sum()
                block[i, j] = whole * share[0][i] * share[1][j] * q[a, b] / math.sqrt(in_a * in_b)
        one = np.eye(4) - np.outer(share[0], np.ones(4))
        other = np.eye(3) - np.outer(np.ones(3), share[1])
        return one @ block @ other

    fitted = priors(MAINS, cross={(0, 1): q}).fit(said, np.array([0.3, 0.3]), 0.8, steeper=1.3)
    constant, terms, curvature = expected(said, 1.3, between)
    assert fitted.constant == pytest.approx(constant)
    assert fitted.terms == pytest.approx(terms, rel=1e-5)
    assert fitted.curvature == pytest.approx(curvature)


@pytest.mark.parametrize(("strength", "left"), [(0.5, 0.5), (0.99, 0.03), (1.0, 0.0), (1.4, 0.0)])
def test_a_curvature_that_noise_made_impossible_is_made_possible(strength: float, left: float) -> None:
    """Eigenvalues beside those of the constants are 0.03 at least; what noise made negative is nothing."""
    held = [np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 2.0, 3.0])]
    q = strength * np.outer([math.sqrt(0.7), -math.sqrt(0.3)], [math.sqrt(0.5), -math.sqrt(0.5)])
    H = priors(MAINS, cross={(0, 1): q})._matrix(held, [h / 10.0 for h in held])
    d = 1.0 / np.sqrt(np.concatenate(held))
    values = np.linalg.eigvalsh(d[:, None] * H * d)
    assert values == pytest.approx(sorted([0.0, 0.0, left, 1.0, 1.0, 1.0, 1.0 + strength]), abs=1e-9)


def test_pairs_are_fitted_beside_their_columns() -> None:
    said = history(BOTH, 3, late=1)
    fitted = priors(BOTH).fit(said, np.array([0.3, 0.3, 0.05]), 0.8, steeper=1.3)
    terms, residual, curvature, noise = averaged(said, BOTH, flat=False)
    whole = float(np.median([h.sum() for h in curvature]))
    share = curvature[2] / curvature[2].sum()
    held = whole * share
    H = 1.3 * (np.diag(held) - np.outer(held, share))
    prior = 0.05 * purified(np.eye(4), held, np.array([2, 2]))
    aim = H @ terms[2] - (residual[2] - share * residual[2].sum())
    w = prior @ H @ np.linalg.solve(H @ prior @ H + 0.8 * H + noise[2] * np.eye(4), aim)
    assert fitted.terms[7:] == pytest.approx(w, rel=1e-5, abs=1e-9)
    assert fitted.scale.tolist() == [0.3, 0.3, 0.05]
    assert fitted.curvature[7:] == pytest.approx(held)
    q = np.array([0.7**2, 0.7, 1.0])
    q /= q.sum()
    slope = 0.0
    for weight, r in zip(q, said, strict=True):  # the first round has no sums of the pair
        ends = BOTH.starts[: len(r.noise) + 1]
        sums = [r.residual[a:b].sum() for a, b in pairwise(ends)]
        slope += weight * np.average(sums, weights=1.0 / (r.noise**2 * np.array([4, 3, 4])[: len(sums)]))
    constant = sum(weight * r.constant for weight, r in zip(q, said, strict=True))
    assert fitted.constant == pytest.approx(constant - slope / (whole * 1.3))


def test_numbers_are_fitted_by_precisions() -> None:
    said = history(MAINS, 3)
    one, other = (priors(MAINS).fit(said, np.array([0.3, 0.3]), 0.8, flat=flat) for flat in (True, False))
    terms, _, curvature, _ = averaged(said, MAINS, flat=True)
    whole = (curvature[0].sum() + curvature[1].sum()) / 2.0
    assert one.curvature == pytest.approx(np.concatenate([h / h.sum() * whole for h in curvature]))
    q = np.array([1.0 / r.noise[0] ** 2 for r in said])
    slope = np.average(
        [np.average([r.residual[:4].sum(), r.residual[4:].sum()], weights=1.0 / (r.noise**2 * [4, 3])) for r in said],
        weights=q,
    )
    assert one.constant == pytest.approx(np.average([r.constant for r in said], weights=q) - slope / whole)
    assert not np.allclose(one.terms, other.terms)
    assert len(terms) == 2


def test_scales_of_columns_and_pairs_are_updated() -> None:
    """A strong effect grows its scale from one round to the next, up to a hundred dispersions and no more."""
    strong = [r._replace(residual=1e4 * r.residual) for r in history(BOTH, 2)]
    fitted = priors(BOTH, updates=40).fit(strong, np.array([0.3, 0.3, 0.05]), 0.8)
    assert fitted.scale == pytest.approx(np.full(3, 100.0 * 0.8))
    own = replace(priors(BOTH, updates=40), most=5.0)
    assert own.fit(strong, np.array([0.3, 0.3, 0.05]), 0.8).scale == pytest.approx(np.full(3, 5.0 * 0.8))


def test_the_model_of_many_rows_is_the_one_that_made_them() -> None:
    """With little noise and a wide prior, one step at the mean rate finds the effects of a weak column."""
    rows, effect = 4e4, np.array([-0.3, -0.1, 0.1, 0.3])
    base = float(expit(effect).mean())
    counts = np.full(4, rows / 4)
    first = Released(
        0.0,
        np.zeros(4),
        (base - expit(effect)) * counts,
        base * (1.0 - base) * counts,
        np.array([1.0]),
        np.array([1.0]),
    )
    one = CellBlocks.of([((0, np.arange(4)),)], CELLS[:1])
    fitted = Priors(one, (smooth(4),), 1, {}, (), 30).fit([first], np.array([0.3]), 1.0)
    assert fitted.terms == pytest.approx(effect, abs=0.01)
