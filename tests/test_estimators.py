"""What an attacker really gets: the maximum likelihood estimates against grids, enumeration and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import perfjax.reconstruction as rc

MOMENTS = rc.Moments(1.0)


def draws(count, size, seed=0):
    """Noisy moments of random records at noise from small to overwhelming, and that noise."""
    rng = np.random.default_rng(seed)
    z = rng.uniform(-1, 1, (count, size))
    std = np.exp(rng.uniform(np.log(0.02), np.log(5), (count, 1))) * np.exp(rng.normal(size=(count, size)) / 2)
    mean = np.mean(z[:, None, :] ** np.arange(1, size + 1)[:, None], -1)
    return mean + std * rng.normal(size=mean.shape), std


def misfit(y, std, z):
    """Half the chi-square of records z, along the last axis."""
    power = np.arange(1, y.shape[-1] + 1)
    return np.sum(((np.mean(z[..., None, :] ** power[:, None], -1) - y) / std) ** 2, -1) / 2


def least_on(points, y, std, chunk=100):
    """The least misfit over many candidate multisets, for every draw, and where it is."""
    power = np.arange(1, y.shape[-1] + 1)
    moments = np.mean(points[:, None, :] ** power[:, None], -1)
    best = []
    for start in range(0, len(y), chunk):
        part = slice(start, start + chunk)
        weight = std[part] ** -2.0
        cost = (moments**2) @ weight.T / 2 - moments @ (weight * y[part]).T
        best.append(np.argmin(cost, 0))
    at = np.concatenate(best)
    return misfit(y, std, points[at]), points[at]


def triangle(points):
    axis = np.linspace(-1, 1, points)
    low, high = np.triu_indices(points)
    return np.stack([axis[low], axis[high]], -1)


def test_moments_that_can_be_met_are_met():
    z = np.sort(np.random.default_rng(1).uniform(-1, 1, (100, 2)), -1)
    y = np.stack([z.mean(-1), np.mean(z**2, -1)], -1)
    np.testing.assert_allclose(rc.pair_estimate(y, variances=np.array([1.0, 3.0])), z, atol=1e-7)
    np.testing.assert_allclose(rc.two_moment_estimate(y), z, atol=1e-7)


def count_missed(count, points, slack):
    y, std = draws(count, 2)
    found = np.asarray(rc.pair_estimate(y, variances=std**2))
    assert np.all((found[:, 0] <= found[:, 1]) & (np.abs(found) <= 1).all(1))
    least, _ = least_on(triangle(points), y, std)
    return np.sum(misfit(y, std, found) > least * (1 + slack) + slack)


def test_a_pair_is_the_global_optimum():
    assert count_missed(300, 101, 1e-12) == 0


@pytest.mark.slow
def test_a_pair_is_the_global_optimum_in_ten_thousand_draws():
    assert count_missed(10_000, 281, 1e-12) == 0


@pytest.mark.slow
def test_nothing_on_a_fine_grid_is_far_below_nor_is_the_estimate_above_its_polish():
    y, std = draws(80, 2, seed=5)
    found = misfit(y, std, np.asarray(rc.pair_estimate(y, variances=std**2)))
    _, start = least_on(triangle(1201), y, std, chunk=4)
    for k in range(80):
        best = scipy.optimize.minimize(
            lambda z, k=k: misfit(y[k], std[k], z), start[k], bounds=[(-1, 1)] * 2, method="L-BFGS-B", tol=1e-14
        )
        assert abs(found[k] - best.fun) <= 1e-9 * (1 + best.fun)


def test_a_pair_in_other_units():
    y, std = draws(50, 2, seed=2)
    expected = 3 * np.asarray(rc.pair_estimate(y, variances=std**2))
    scale = np.array([3.0, 9.0])
    found = rc.pair_estimate(y * scale, variances=(std * scale) ** 2, radius=3.0)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_pair_in_float32():
    y, std = draws(300, 2, seed=3)
    narrow = y.astype(np.float32), (std**2).astype(np.float32)
    found = rc.pair_estimate(narrow[0], variances=narrow[1])
    assert found.dtype == jnp.float32
    best = misfit(y, std, np.asarray(rc.pair_estimate(y, variances=std**2)))
    assert np.all(misfit(y, std, np.asarray(found, float)) <= best * (1 + 1e-4) + 1e-4)


def test_estimates_under_vmap_and_jit():
    y, std = draws(20, 2, seed=4)
    found = rc.pair_estimate(y, variances=std**2)
    mapped = jax.jit(jax.vmap(lambda y, v: rc.pair_estimate(y, variances=v)))(y, std**2)
    np.testing.assert_allclose(mapped, found, atol=1e-12)


# Any number of records


def missed(found, y, std, reference):
    """The draws whose misfit is above a reference."""
    ours = misfit(y, std, np.asarray(found.records))
    np.testing.assert_allclose(found.misfit, ours, rtol=1e-6, atol=1e-9)
    return np.sum(ours > reference * (1 + 1e-6) + 1e-9)


def pair_misses(count):
    y, std = draws(count, 2, seed=6)
    exact = np.asarray(rc.pair_estimate(y, variances=std**2))
    return missed(rc.multiset_estimate(MOMENTS, y, records=2, noise_std=std), y, std, misfit(y, std, exact))


def test_descent_finds_the_exact_pair():
    assert pair_misses(500) <= 1


@pytest.mark.slow
def test_descent_finds_the_exact_pair_in_ten_thousand_draws():
    assert pair_misses(10_000) <= 10


def boundary_strata(points):
    """Triples on the boundary of the ordered box: one at an end, or two equal."""
    axis = np.linspace(-1, 1, points)
    u, v = (x.ravel() for x in np.meshgrid(axis, axis))
    ones = np.ones_like(u)
    return np.concatenate([np.stack(c, -1) for c in ((-ones, u, v), (u, v, ones), (u, u, v))])


def met(y):
    """Draws whose three moments belong to three records in the box: Newton's identities and the roots."""
    p = 3 * y
    e1 = p[:, 0]
    e2 = (e1 * p[:, 0] - p[:, 1]) / 2
    e3 = (e2 * p[:, 0] - e1 * p[:, 1] + p[:, 2]) / 3
    roots = np.array([np.roots([1, -a, b, -c]) for a, b, c in zip(e1, e2, e3, strict=True)])
    return np.all((np.abs(roots.imag) < 1e-12) & (np.abs(roots.real) <= 1), 1)


def polished(y, std, start):
    """SciPy's descent within the strata that hold the start."""

    def tied(z, k):
        return misfit(y[k], std[k], z)

    def one(k):
        z = start[k]
        if abs(z[0] - z[1]) < 1e-12:  # (u, u, v)
            unpack, free = (lambda x: np.array([x[0], x[0], x[1]])), z[1:]
        elif z[0] == -1:
            unpack, free = (lambda x: np.array([-1, *x])), z[1:]
        else:
            unpack, free = (lambda x: np.array([*x, 1])), z[:2]
        options = {"bounds": [(-1, 1)] * 2, "method": "L-BFGS-B", "tol": 1e-13}
        return scipy.optimize.minimize(lambda x: tied(unpack(x), k), free, **options).fun

    return np.array([one(k) for k in range(len(y))])


@pytest.mark.study
def test_descent_misses_at_most_one_triple_in_a_thousand():
    """Against an enumeration of every stratum of the boundary, polished, and the moments that can be met."""
    y, std = draws(10_000, 3, seed=7)
    found = rc.multiset_estimate(MOMENTS, y, records=3, noise_std=std)
    least, start = least_on(boundary_strata(161), y, std)
    possible = met(y)
    assert possible.sum() > 300
    reference = np.where(possible, 0.0, least)
    ours = np.asarray(found.misfit)
    close = ~possible & (ours > 0.9 * least)  # where a better stratum might hide between the points
    some = np.flatnonzero(close)[:1500]
    reference[some] = np.minimum(reference[some], polished(y[some], std[some], start[some]))
    assert missed(found, y, std, reference) <= 10


def test_the_estimate_of_three_records():
    y = np.array([[0.25, 0.35, 0.6], [0.1, 0.4, 0.05]])
    std = np.full((2, 3), 0.3)
    found = rc.multiset_estimate(MOMENTS, y, records=3, noise_std=0.3)
    least, _ = least_on(np.concatenate([boundary_strata(161)]), y, std)
    assert np.all(found.misfit <= least)
    assert np.all(np.diff(found.records, axis=-1) >= 0)
    assert np.all(found.converged)
    single = rc.multiset_estimate(MOMENTS, y[0], records=3, noise_std=0.3)
    assert "half chi-square 0.398641" in str(single)
    np.testing.assert_allclose(single.records, found.records[0], atol=1e-9)
    assert "batch (2,)" in str(found)


def test_threshold_counts_are_estimated_too():
    family = rc.Thresholds(rc.Logistic(0.2), grid="midpoint")
    z = np.array([-0.6, 0.1, 0.5])
    y = np.mean(np.asarray(family.features(jnp.asarray(z), 8, 8)), -1)
    found = rc.multiset_estimate(family, y, records=3, noise_std=1e-3)
    np.testing.assert_allclose(found.records, z, atol=1e-6)


# Biased by the box


@pytest.mark.slow
def test_the_box_and_not_the_data_sets_the_error_at_small_budgets():
    """Below the bound, above it, and worse than a constant: each at its own noise (kappa_2 at epsilon 5, 10, 20)."""
    rng = np.random.default_rng(0)
    ratios, errors = {}, {}
    for name, z in {"interior": (-0.4, 0.7), "boundary": (-1.0, 0.5)}.items():
        truth = np.asarray(z)
        for epsilon, sigma in ((10, 0.99716), (20, 0.49858)):
            y = np.array([truth.mean(), np.mean(truth**2)]) + sigma * rng.normal(size=(400_000, 2))
            found = np.asarray(rc.pair_estimate(y, variances=np.full(2, sigma**2)))
            errors[name, epsilon] = np.mean(np.sum((found - truth) ** 2, -1))
            ratios[name, epsilon] = errors[name, epsilon] / float(rc.two_moment_bound(truth, kappa=sigma**2))
    np.testing.assert_allclose(ratios["interior", 20], 0.7346, atol=0.005)
    np.testing.assert_allclose(ratios["boundary", 20], 1.1968, atol=0.01)
    assert ratios["boundary", 10] < 1
    assert errors["interior", 10] > 0.65  # always answering 0
    assert errors["boundary", 10] > 1.25
    assert errors["interior", 20] > 0.65


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rc.pair_estimate([1.0], variances=[1.0, 1.0]),
            "Argument `moments` must hold two numbers along their last axis, but is of shape (1,).",
        ),
        (
            lambda: rc.pair_estimate([1.0, 1.0], variances=[1.0, 0.0]),
            "Argument `variances` must lie in (0, inf), but is 0.",
        ),
        (
            lambda: rc.pair_estimate([1.0, 1.0], variances=[1.0, 1.0], radius=-1.0),
            "Argument `radius` must lie in (0, inf), but is -1.",
        ),
        (
            lambda: rc.multiset_estimate(MOMENTS, [0.1], records=0, noise_std=1.0),
            "Argument `records` must be an integer of at least 1, but is 0.",
        ),
        (
            lambda: rc.multiset_estimate(MOMENTS, 0.1, records=1, noise_std=1.0),
            "Argument `transcript` must hold at least one release along its last axis, but is of shape ().",
        ),
        (
            lambda: rc.multiset_estimate(MOMENTS, [0.1], records=1, noise_std=0.0),
            "Argument `noise_std` must lie in (0, inf), but is 0.",
        ),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(ValueError, match="Argument") as found:
        call()
    assert str(found.value) == message
