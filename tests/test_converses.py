"""Lower bounds on budgets: never above what a mechanism attains, each as its own theory says, and the constants."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import close, finite

from perfjax import count_privacy as cp


@pytest.mark.study
def test_no_bound_is_above_the_budget_of_a_mechanism():
    """1,000 random tolerances, counts and shifts: v(n + 1) of the log-Gaussian against every bound for base n."""
    rng = np.random.default_rng(0)
    r, n = rng.uniform(0.01, 0.95, 1000), np.floor(np.exp(rng.uniform(0, np.log(3000), 1000)))
    shift = np.exp(rng.uniform(np.log(0.01), np.log(100), 1000))
    upper = np.asarray(cp.edge_budget(n + 1, cp.log_gaussian_sigma(r, shift), shift))
    finite(upper)
    assert np.all(cp.edge_budget(n, cp.log_gaussian_sigma(r, shift), shift) > upper)
    bounds = {
        "two_counts": [cp.two_count_bound(int(a), b) for a, b in zip(n, r, strict=True)],
        "kl": cp.kl_bound(n, r),
        "uniform": cp.uniform_bound(n, r)[0],
        "prior": cp.best_prior_bound(n, r),
        "fisher": cp.fisher_bound(n, r),
    }
    for name, bound in bounds.items():
        assert np.all(np.asarray(bound) < upper), name
        assert np.all(np.asarray(bound) >= 0), name
    at_one = cp.edge_budget(1, cp.log_gaussian_sigma(r, shift), shift)
    assert np.all(cp.kl_bound(0, r) < at_one)
    # A prior of any shape says no more than the best one.
    assert np.all(np.asarray(bounds["uniform"]) <= np.asarray(bounds["prior"]) * (1 + 1e-9))


@pytest.mark.slow
def test_spacing_and_airy_respect_every_bound():
    for mechanism in (cp.design("spacing", 0.1), cp.design("log-airy", 0.1, shift=0.1)):
        for n in (0, 1, 5, 30, 300):
            assert cp.best_lower_bound(0.1, n).best < mechanism.budget(n + 1.0)


def test_the_best_bound_names_its_winner():
    """The winners of the sheet's table, one for each kind of bound that can win."""
    winners = {(0.01, 1): "kl", (0.01, 10): "prior", (0.05, 100): "fisher", (0.25, 1000): "prior", (0.7, 3): "kl"}
    for (r, n), name in winners.items():
        bounds = cp.best_lower_bound(r, n)
        assert bounds.winner == name
        assert bounds.best == getattr(bounds, name) == max(bounds)


def test_two_counts_rounds_up_exactly():
    close(cp.two_count_bound(7, 0.9), 0.01 / (2 * (9583 - 7) ** 2), 1e-12)
    close(cp.two_count_bound(1, "1/3"), cp.two_count_bound(1, 1 / 3), 1e-12)
    close(cp.two_count_bound(9, 0.4), 0.36 / (2 * (121 - 9) ** 2), 1e-12)
    n = 10**6
    close(n**2 * cp.two_count_bound(n, 0.3), cp.two_count_limit(0.3), 1e-4)


@pytest.mark.slow
def test_two_counts_is_looser_than_the_divergence_of_coins():
    n, r = np.meshgrid([1.0, 10, 100], [0.05, 0.2, 0.6])
    pinsker = [
        [cp.two_count_bound(int(a), float(b)) for a, b in zip(*row, strict=True)] for row in zip(n, r, strict=True)
    ]
    assert np.all(np.asarray(cp.kl_bound(n, r)) > 0.95 * np.asarray(pinsker))
    close(cp.kl_bound(1e5, 0.001) * (1e5 * 0.001) ** 2, 0.00869, 0.02)  # against 1/128 = 0.00781


@pytest.mark.slow
def test_the_best_prior_is_found_by_two_routes_and_beats_any_other():
    n, r, centre = 10.0, 0.1, 6
    fixed_points = cp.best_prior_bound(n, r)
    logits = max(float(cp.best_prior_by_logits(n, r, k, size=80)) for k in range(4, 10))
    close(logits, fixed_points, 1e-5)
    assert logits <= fixed_points * (1 + 1e-12)
    priors = np.random.default_rng(1).dirichlet(np.ones(40), 20)
    assert all(cp.prior_bound(n, r, prior, centre) <= fixed_points for prior in priors)


@pytest.mark.slow
def test_the_uniform_bound_is_that_of_a_uniform_prior():
    width = 15
    prior = cp.prior_bound(10, 0.1, jnp.ones(width), (width - 1) // 2)
    close(prior, cp.uniform_prior_bound(10, 0.1, width), 1e-12)
    bound, best = cp.uniform_bound(10, 0.1)
    widths = jnp.arange(3.0, 200, 2)
    every = cp.uniform_prior_bound(10, 0.1, widths)
    close(bound, jnp.max(every), 1e-14)
    assert best == widths[jnp.argmax(every)]


@pytest.mark.slow
def test_bounds_that_say_nothing_are_zero():
    assert cp.best_prior_bound(10, 0.5) == cp.best_prior_bound(1, 0.9) == 0
    assert cp.best_prior_bound(10, 0.45) > 0
    assert cp.fisher_bound(1e6, 0.3) == 0
    assert cp.fisher_liminf(0.2877) == 0 < cp.fisher_liminf(0.2875)
    assert cp.uniform_limit(20.0, 1 / math.e) == 0
    assert cp.gaussian_prior_limit(2.0, 0.5, 0.1) == 0
    finite(jax.grad(cp.fisher_bound, argnums=(0, 1))(1e6, 0.3), jax.grad(cp.best_prior_bound)(10.0, 0.6))


def test_sums_over_many_counts_agree_with_sums_over_all():
    """The bound of n = 10,000 by the same law as that of n = 1,000, whose counts are all summed or nearly so."""
    scaled = [float(cp.best_prior_bound(n, 0.1)) * n**2 for n in (1e3, 1e4, 1e5, 1e6)]
    assert np.all(np.diff(scaled) > 0)  # 1/4 in the bound matters less and less
    assert np.all(np.diff(scaled) < 0.02 * scaled[0])
    close(scaled[-1], 3.8146066775e0, 1e-4)


def test_the_constants_of_the_table():
    assert cp.TWO_COUNTS == 1 / 128
    small = 1e-5
    close(cp.two_count_limit(small) * small**2, cp.TWO_COUNTS, 1e-4)
    close(cp.uniform_limit(2 * math.e**1.5, 0.0), cp.UNIFORM_PRIOR, 1e-12)
    close(cp.gaussian_prior_coefficient(40.0), cp.GAUSSIAN_PRIOR, 1e-12)
    close(cp.LOG_GAUSSIAN, cp.edge_budget(1e9, cp.log_gaussian_sigma(small, 1e-6), 1e-6) * small**2 * 1e18, 1e-5)
    close(cp.BEST_COEFFICIENT / cp.LOG_GAUSSIAN, 1 - 0.015685, 1e-5)
    assert cp.TWO_COUNTS < cp.UNIFORM_PRIOR < cp.GAUSSIAN_PRIOR < cp.BEST_COEFFICIENT < cp.LOG_GAUSSIAN


def test_the_fisher_bound_is_the_best_of_its_family_and_tends_to_its_limit():
    n, r = 50.0, 0.05
    d = jnp.geomspace(1, 1e4, 4000)
    gain = cp.WHOLE_LINE / (r * (n + d) + 0.5) ** 2 - cp.HALF_LINE / d**2
    close(cp.fisher_bound(n, r), jnp.max(jnp.log1p(jnp.maximum(gain, 0)) / 2), 1e-5)
    close(cp.fisher_bound(1e8, r) * (r * 1e8) ** 2, cp.fisher_liminf(r), 1e-5)


@pytest.mark.parametrize(
    ("r", "value"), [(0.05, 0.312555), (0.1, 0.310270), (0.3, 0.285823), (0.5, 0.236579), (0.7, 0.161862)]
)
def test_the_bound_on_the_limsup_lies_below_every_mechanism(r, value):
    close(cp.fisher_limsup(r), value, 5e-6)
    log_gaussian = r**2 / (2 * float(cp.log_gaussian_sigma(r, 1e-12)) ** 2)
    assert cp.fisher_limsup(r) < log_gaussian


def test_the_best_generalised_gaussian_beats_the_normal():
    powers = jnp.linspace(1, 3, 20001)
    coefficient = cp.generalised_gaussian_coefficient(powers)
    close(powers[jnp.argmin(coefficient)], 1.7614, 1e-4)
    close(jnp.min(coefficient), 0.313574, 1e-5)
    assert jnp.min(coefficient) > cp.BEST_COEFFICIENT


def test_a_weighted_budget_is_the_mean_over_groups():
    """Three members of groups of two for each who is alone."""
    sigma = cp.log_gaussian_sigma(0.3, 1.5)
    alone, two = (cp.edge_budget(n, sigma, 1.5) for n in (1.0, 2.0))
    close(cp.weighted_budget(1.5, jnp.asarray([1.0, 3.0]), 0.3), (alone + 3 * two) / 4, 1e-12)


@pytest.mark.slow
def test_the_best_shift_balances_groups_of_one_against_the_others():
    weights, r = jnp.ones(20), 0.25
    best = cp.best_shift(weights, r)
    least = cp.weighted_budget(best, weights, r)
    assert all(cp.weighted_budget(best * factor, weights, r) > least for factor in (0.9, 0.99, 1.01, 1.1))
    alone = [float(cp.weighted_budget(c, jnp.ones(1), r)) for c in (0.1, 1.0, 10, 1e4)]
    assert np.all(np.diff(alone) < 0)
    close(alone[-1], 1 / (math.pi * r**2), 1e-3)
    for weights in (jnp.ones(1), jnp.asarray([0.0, 1, 1])):
        with pytest.raises(ValueError, match="`weights` must be above 0 for groups of 1 and for larger ones"):
            cp.best_shift(weights, r)


@pytest.mark.parametrize("call", [lambda: cp.two_count_bound(0, 0.1), lambda: cp.best_lower_bound(0.1, 1.5)])
def test_a_count_that_is_none_is_refused(call):
    with pytest.raises(ValueError, match="`count` must be a whole number of at least"):
        call()
