from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.types import Array
from ffgb.data import Dataset, load, partition
from ffgb.data.dataset import hold_out
from ffgb.data.partition import dirichlet, iid, natural, similarity
from ffgb.data.partition import labels as split_labels
from ffgb.errors import FFGBError

seeds = st.integers(0, 2**32)


@st.composite
def labels(draw: st.DrawFn) -> Array:
    """Class indices or targets with many ties, up to 200 rows."""
    n = draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(seeds))
    y = rng.integers(0, draw(st.integers(1, 12)), n)
    return y / 4 if draw(st.booleans()) else y


@st.composite
def clients_for(draw: st.DrawFn, y: Array) -> int:
    return draw(st.integers(1, len(y)))


def each_row_once(parts: list[Array], n: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert all(len(part) > 0 and (np.diff(part) > 0).all() for part in parts)


@given(st.data(), labels(), st.floats(0, 1), seeds)
def test_similarity_deals_every_row_once_and_evenly(data: st.DataObject, y: Array, s: float, seed: int) -> None:
    clients = data.draw(clients_for(y))
    parts = similarity(y, clients, s, np.random.default_rng(seed))
    each_row_once(parts, len(y))
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1
    again = similarity(y, clients, s, np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@given(st.data(), labels(), seeds)
def test_similarity_0_is_the_sorted_order(data: st.DataObject, y: Array, seed: int) -> None:
    parts = similarity(y, data.draw(clients_for(y)), 0.0, np.random.default_rng(seed))
    # Block after block, labels ascend: together the clients hold exactly the sorted labels, in order.
    np.testing.assert_array_equal(np.concatenate([np.sort(y[part]) for part in parts]), np.sort(y))


@given(st.data(), labels(), seeds)
def test_similarity_1_is_iid(data: st.DataObject, y: Array, seed: int) -> None:
    clients = data.draw(clients_for(y))
    shared = similarity(y, clients, 1.0, np.random.default_rng(seed))
    plain = iid(len(y), clients, np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(shared, plain, strict=True))


@given(st.data(), st.integers(1, 200), st.floats(0, 1), seeds)
def test_similarity_deals_the_shared_rows_evenly_and_the_rest_in_order(
    data: st.DataObject, n: int, s: float, seed: int
) -> None:
    y = np.random.default_rng(seed + 1).permutation(n)
    clients = data.draw(clients_for(y))
    shared = np.isin(np.arange(n), np.random.default_rng(seed).permutation(n)[: round(s * n)])
    parts = similarity(y, clients, s, np.random.default_rng(seed))
    counts = [int(shared[part].sum()) for part in parts]
    assert max(counts) - min(counts) <= 1
    in_order = np.concatenate([np.sort(y[part[~shared[part]]]) for part in parts])
    np.testing.assert_array_equal(in_order, np.sort(y[~shared]))


def test_ties_do_not_follow_the_order_of_the_file() -> None:
    y = np.zeros(100, np.int64)
    (first, _) = similarity(y, 2, 0.0, np.random.default_rng(0))
    assert not np.array_equal(first, np.arange(50))


def test_a_client_sees_one_class_at_s_0_if_the_numbers_allow() -> None:
    y = np.random.default_rng(1).permutation(np.repeat(np.arange(5), 30))
    parts = similarity(y, 5, 0.0, np.random.default_rng(0))
    assert [set(y[part]) for part in parts] == [{0}, {1}, {2}, {3}, {4}]


@given(st.data(), labels(), st.floats(-6, 6), seeds)
@settings(max_examples=200)
def test_dirichlet_deals_every_row_once_and_leaves_no_client_empty(
    data: st.DataObject, y: Array, exponent: float, seed: int
) -> None:
    clients = data.draw(clients_for(y))
    parts = dirichlet(y, clients, 10**exponent, np.random.default_rng(seed))
    assert len(parts) == clients
    each_row_once(parts, len(y))
    again = dirichlet(y, clients, 10**exponent, np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e300])
def test_dirichlet_survives_extreme_alphas(alpha: float) -> None:
    y = np.arange(60) % 3
    each_row_once(dirichlet(y, 20, alpha, np.random.default_rng(0)), 60)


def test_dirichlet_follows_alpha() -> None:
    y = np.repeat(np.arange(10), 500)
    even = dirichlet(y, 10, 1e4, np.random.default_rng(0))
    skewed = dirichlet(y, 10, 0.05, np.random.default_rng(0))

    def largest_class(parts: list[Array]) -> float:
        return float(np.mean([np.bincount(y[part]).max() / len(part) for part in parts]))

    assert largest_class(even) < 0.13
    assert largest_class(skewed) > 0.5


@pytest.mark.parametrize(("clients", "k"), [(10, 2), (10, 10), (37, 3), (25, 1)])
def test_labels_gives_each_client_k_classes(clients: int, k: int) -> None:
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 200))
    parts = split_labels(y, clients, k, np.random.default_rng(1))
    each_row_once(parts, len(y))
    held = [set(y[part]) for part in parts]
    assert all(len(some) == k for some in held)
    assert all(i % 10 in some for i, some in enumerate(held))
    for c in range(10):  # a class is dealt out evenly to those who have it
        sizes = [int((y[part] == c).sum()) for part, some in zip(parts, held, strict=True) if c in some]
        assert max(sizes) - min(sizes) <= 1


def test_labels_leaves_no_client_empty_and_refuses_what_cannot_be() -> None:
    y = np.array([0, 1, 1, 1, 1, 1])
    each_row_once(split_labels(y, 5, 1, np.random.default_rng(0)), 6)
    for clients, k, words in ((3, 0, "0 of 2 classes"), (3, 3, "3 of 2 classes"), (1, 1, "at least 2 clients")):
        with pytest.raises(FFGBError, match=words):
            split_labels(y, clients, k, np.random.default_rng(0))


def test_dirichlet_of_targets_skews_their_range() -> None:
    y = np.random.default_rng(2).normal(size=2000)
    means = [y[part].mean() for part in dirichlet(y, 10, 0.05, np.random.default_rng(0))]
    assert np.std(means) > 0.5


@given(st.integers(1, 300), st.data(), seeds)
def test_iid_deals_every_row_once_and_evenly(n: int, data: st.DataObject, seed: int) -> None:
    parts = iid(n, data.draw(st.integers(1, n)), np.random.default_rng(seed))
    each_row_once(parts, n)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_several_targets_are_sorted_by_the_first() -> None:
    y = np.random.default_rng(0).normal(size=(50, 3))
    parts = similarity(y, 5, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(np.concatenate([np.sort(y[part, 0]) for part in parts]), np.sort(y[:, 0]))
    each_row_once(dirichlet(y, 5, 0.5, np.random.default_rng(0)), 50)


def test_natural() -> None:
    assert [part.tolist() for part in natural(np.array([1, 0, 1, 2, 0]))] == [[1, 4], [0, 2], [3]]


# The dispatcher


def small(site: bool = False) -> Dataset:
    y = np.arange(30) % 3
    x = np.zeros((30, 2), np.float32)
    sites = {"sites": ("a", "b"), "site": np.arange(30) % 2, "site_test": np.zeros(0, np.int64)} if site else {}
    return Dataset("toy", "classification", x, y, x[:0], y[:0], ("p", "q", "r"), ("u", "v"), **sites)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["similarity", "dirichlet", "iid"])
def test_partition_is_a_function_of_its_seed(split: str) -> None:
    one, same, other = (partition(small(), split, 4, seed=seed) for seed in (3, 3, 4))
    each_row_once(one, 30)
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_partition_natural_takes_the_sites() -> None:
    assert [len(part) for part in partition(small(site=True), "natural")] == [15, 15]
    assert len(partition(small(site=True), "natural", 2)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "iid", "clients": 31}, "31 clients cannot share 30 training rows; give at most 30 clients"),
        ({"split": "similarity", "clients": 31}, "31 clients cannot share 30 training rows; give at most 30 clients"),
        ({"split": "dirichlet", "clients": 31}, "31 clients cannot share 30 training rows; give at most 30 clients"),
        ({"split": "iid", "clients": 0}, "the number of clients is 0; give at least 1"),
        ({"split": "iid", "clients": None}, "the split iid needs a number of clients"),
        (
            {"split": "similarity", "clients": 2, "similarity": 1.5},
            "the similarity is 1.5; give a number from 0 (sorted by label) to 1 (all clients alike)",
        ),
        (
            {"split": "similarity", "clients": 2, "similarity": float("nan")},
            "the similarity is nan; give a number from 0 (sorted by label) to 1 (all clients alike)",
        ),
        ({"split": "dirichlet", "clients": 2, "alpha": 0.0}, "alpha is 0.0; give a positive number, such as 0.5"),
        (
            {"split": "dirichlet", "clients": 2, "alpha": float("inf")},
            "alpha is inf; give a positive number, such as 0.5",
        ),
        (
            {"split": "sorted", "clients": 2},
            "there is no split 'sorted'; choose one of similarity, dirichlet, labels, iid, natural",
        ),
        (
            {"split": "natural"},
            "toy has no natural sites: only heart and your own files, one a site, have them; choose the split "
            "similarity, dirichlet or iid",
        ),
        ({"split": "iid", "clients": 2, "seed": -1}, "the seed is -1; give a whole number from 0 on"),
    ],
)
def test_partition_refuses(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(FFGBError, match=f"^{re.escape(message)}$"):
        partition(small(), **arguments)  # type: ignore[arg-type]


def test_partition_natural_refuses_another_number_of_clients() -> None:
    with pytest.raises(FFGBError, match="toy has 2 natural sites, not 5; leave the number of clients out"):
        partition(small(site=True), "natural", 5)


def test_the_default_job_is_what_it_was() -> None:
    """The first job a user runs: digits, 20 clients, s = 0.1.  A change of these rows changes everyone's results."""
    data = load("digits")
    parts = partition(data, "similarity", 20, similarity=0.1)
    assert [len(part) for part in parts] == [72] * 18 + [71] * 2
    classes = [int((np.bincount(data.y[part], minlength=10) > 0.2 * len(part)).sum()) for part in parts]
    assert max(classes) <= 2


# Holding out


@given(labels(), st.floats(0, 0.9), seeds)
def test_hold_out_splits_every_row_once(y: Array, share: float, seed: int) -> None:
    train, test = hold_out(y, share, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(y)))
    if y.dtype.kind == "f":
        assert len(test) == round(share * len(y))
        return
    for label in np.unique(y):
        count = int((y == label).sum())
        assert (y[train] == label).any()
        assert abs((y[test] == label).sum() - share * count) <= 1.5
    assert len(test) <= share * len(y) + 1


def test_hold_out_takes_a_fifth_of_each_class() -> None:
    y = np.repeat(np.arange(3), (50, 100, 25))
    _, test = hold_out(y, 0.2, np.random.default_rng(0))
    assert np.bincount(y[test]).tolist() == [10, 20, 5]
