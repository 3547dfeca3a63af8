"""`perfjax.accounting` against mpmath, SciPy, enumeration and dp-accounting.

*Correct*: equals a number found another way. *Honest*: a bound is never below what it bounds.
"""

import inspect
import itertools
import math
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from dp_accounting import dp_event, gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import ArrayLike

from perfjax import accounting as ac

INF = math.inf
PHI_0 = 1 / math.sqrt(2 * math.pi)
quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)

mus = st.floats(-9, 6).map(lambda x: 10.0**x)
rhos = st.floats(-18, 6).map(lambda x: 10.0**x)
epsilons = st.one_of(st.just(0.0), st.floats(-6, 2.5).map(lambda x: 10.0**x))
deltas = st.one_of(st.floats(-300, -0.01).map(lambda x: 10.0**x), st.floats(1e-3, 0.999))

# Every function of two numbers takes them by name; tables of points here have them in this order.
NAMES = {
    "gaussian_delta": ("epsilon", "mu"),
    "gaussian_epsilon": ("delta", "mu"),
    "gaussian_mu": ("epsilon", "delta"),
    "zcdp_epsilon": ("rho", "delta"),
    "zcdp_delta": ("rho", "epsilon"),
    "zcdp_rho": ("epsilon", "delta"),
    "renyi_divergence": ("epsilon", "delta"),
    "renyi_from_rho": ("orders", "rho"),
    "pure_renyi": ("orders", "epsilon"),
    "pure_delta": ("epsilon", "per_release"),
    "pure_epsilon": ("delta", "per_release"),
    "mu_from_noise": ("noise_std", "sensitivity"),
    "noise_from_mu": ("mu", "sensitivity"),
}


@cache
def of_two(name, **options):
    """The function by that name, of two numbers by position, always the same object."""

    def function(first, second):
        return getattr(ac, name)(**dict(zip(NAMES[name], (first, second), strict=True)), **options)

    function.__qualname__ = ", ".join([name, *map(str, options.values())])
    return function


# With generic points of their domains.
PAIRS = {
    "gaussian_delta": (of_two("gaussian_delta"), [(0.3, 0.2), (2.0, 0.5), (2.0, 3.0), (1.0, 8.0), (8.0, 1.1)]),
    "gaussian_epsilon": (of_two("gaussian_epsilon"), [(1e-5, 0.3), (1e-40, 2.0), (0.2, 3.0), (0.97, 6.0)]),
    "gaussian_mu": (of_two("gaussian_mu"), [(1.0, 1e-5), (0.01, 1e-9), (5.0, 0.3), (80.0, 1e-40), (3.0, 0.9)]),
    "zcdp_epsilon": (of_two("zcdp_epsilon"), [(0.1, 1e-5), (1e-6, 1e-6), (3.0, 0.2), (40.0, 1e-50)]),
    "zcdp_epsilon, classic": (
        of_two("zcdp_epsilon", conversion="classic"),
        [(0.1, 1e-5), (3.0, 0.2), (40.0, 1e-50)],
    ),
    "zcdp_delta": (of_two("zcdp_delta"), [(0.1, 1.0), (0.1, 0.01), (3.0, 1.0), (3.0, 30.0), (1e-6, 1e-3)]),
    "zcdp_delta, classic": (of_two("zcdp_delta", conversion="classic"), [(0.1, 1.0), (3.0, 30.0)]),
    "zcdp_rho": (of_two("zcdp_rho"), [(1.0, 1e-5), (0.01, 1e-9), (5.0, 0.3), (80.0, 1e-40)]),
    "zcdp_rho, classic": (of_two("zcdp_rho", conversion="classic"), [(1.0, 1e-5), (5.0, 0.3)]),
    "renyi_divergence": (of_two("renyi_divergence", orders=8.0), [(2.5, 1e-5), (5.0, 0.3)]),
    "renyi_from_rho": (of_two("renyi_from_rho"), [(2.5, 0.3), (64.0, 1e-3)]),
    "pure_renyi": (of_two("pure_renyi"), [(1.5, 0.3), (64.0, 1.0), (3.0, 9.0)]),
    "pure_delta": (of_two("pure_delta", releases=7), [(1.05, 0.5), (0.2, 0.05), (9.1, 4.0)]),
    "pure_epsilon": (of_two("pure_epsilon", releases=7), [(1e-3, 0.5), (0.2, 2.0), (1e-9, 0.2)]),
    "mu_from_noise": (of_two("mu_from_noise"), [(2.0, 0.3), (1e-6, 1e3)]),
    "noise_from_mu": (of_two("noise_from_mu"), [(2.0, 0.3), (1e-6, 1e3)]),
}
each_pair = pytest.mark.parametrize(("function", "points"), PAIRS.values(), ids=PAIRS.keys())


BATCH = 64  # one shape, hence one compilation of each function for the whole file


def batched(function, first, second):
    """`function` at two broadcast arrays of any length, in batches of one shape."""
    first, second = np.broadcast_arrays(first, second)
    columns = (np.pad(x.ravel(), (0, -x.size % BATCH), mode="edge").reshape(-1, BATCH) for x in (first, second))
    results = [jax.tree.map(np.asarray, function(*chunk)) for chunk in zip(*columns, strict=True)]
    return jax.tree.map(lambda *x: np.concatenate(x)[: first.size].reshape(first.shape), *results)


@cache
def with_gradients(function):
    return partial(batched, jax.jit(jax.vmap(jax.value_and_grad(function, (0, 1)))))


class Batched:
    """The functions of `perfjax.accounting`, in batches."""

    def __getattr__(self, name):
        def call(first, second, **options):
            return batched(of_two(name, **options), first, second)

        return call


on = Batched()


def phi(x):
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def exact_delta(epsilon, mu):
    """The definition in 350 digits, of which it loses up to 320."""
    with mpmath.workdps(350):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return float(phi(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * phi(-mu / 2 - epsilon / mu))


def best_order(rho, delta):
    """min over the order of the tight conversion, by SciPy."""

    def epsilon(log_s):
        s = math.exp(log_s)
        return (1 + s) * rho + log_s - math.log1p(s) - (math.log(delta) + math.log1p(s)) / s

    grid = np.linspace(-30, 30, 601)
    start = grid[np.argmin([epsilon(x) for x in grid])]
    found = scipy.optimize.minimize_scalar(
        epsilon, bounds=(start - 0.2, start + 0.2), method="bounded", options={"xatol": 1e-10}
    )
    return max(found.fun, 0.0)


# Gaussian differential privacy


@pytest.mark.parametrize("mu", [1e-9, 1e-3, 0.05, 0.3, 0.9, 1.0, 1.1, 2.0, 5.0, 30.0, 1e3, 1e6])
def test_gaussian_delta_is_exact_to_relative_precision(mu):
    z = np.array([0.0, 1e-6, 0.01, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0, 36.0])
    epsilon = np.concatenate([mu * z, mu * mu / 2 - mu * z])
    expected = np.array([exact_delta(e, mu) if e >= 0 else 0.0 for e in epsilon])
    kept = expected > 1e-300
    assert kept.sum() >= 10
    epsilon, expected = epsilon[kept], expected[kept]
    a = mu / 2 - epsilon / mu
    log_slope = np.maximum(np.exp(-a * a / 2) * PHI_0 / expected, 1.0)
    unavoidable = 4e-16 * (mu / 2 + epsilon / mu) * log_slope  # from rounding a alone
    error = np.abs(on.gaussian_delta(epsilon, mu) / expected - 1)
    np.testing.assert_array_less(error, 5e-14 + unavoidable)


@pytest.mark.parametrize(("dtype", "hole"), [(np.float32, 13.05), (np.float64, 37.54)])
def test_gaussian_delta_has_no_hole_where_jax_erfcx_has_one(dtype, hole):
    mu = np.linspace(hole - 0.2, hole + 0.2, 40).astype(dtype) - 1
    epsilon = mu * (mu / 2 + 1)  # so that the second term is M(mu + 1) of the Mills ratio
    expected = [exact_delta(float(e), float(m)) for e, m in zip(epsilon, mu, strict=True)]
    tolerance = 100 * np.finfo(dtype).eps  # rounding ε/μ, about 7 or 20, to which δ answers 1.5-fold
    np.testing.assert_allclose(on.gaussian_delta(epsilon, mu), expected, rtol=tolerance)


def test_gaussian_delta_reaches_1e_300():
    expected = exact_delta(18.3, 0.5)
    assert 1e-300 < expected < 1e-285
    np.testing.assert_allclose(on.gaussian_delta(18.3, 0.5), expected, rtol=1e-12)


def test_gaussian_inverses_recover_their_argument():
    mu = np.array([1e-9, 0.01, 0.3, 1.0, 4.0, 1e3, 1e6])[:, None]
    delta = np.concatenate([np.geomspace(1e-300, 0.5, 25), 1 - np.geomspace(1e-12, 0.4, 10)])
    epsilon = on.gaussian_epsilon(delta, mu)
    inside = np.asarray(epsilon > 0)
    assert np.all(inside.sum(1) >= 20)
    mu, delta = (np.broadcast_to(x, inside.shape) for x in (mu, delta))
    np.testing.assert_array_less(scipy.special.erf(mu / math.sqrt(8))[~inside] * (1 - 1e-13), delta[~inside])
    epsilon, mu, delta = epsilon[inside], mu[inside], delta[inside]
    rounding = 1e-15 * mu  # of ε, which is μ²/2 at large μ
    np.testing.assert_array_less(np.abs(on.gaussian_mu(epsilon, delta) / mu - 1), 1e-12 + rounding)
    np.testing.assert_array_less(np.abs(on.gaussian_delta(epsilon, mu) / delta - 1), 1e-11 + 40 * rounding)


@pytest.mark.parametrize("delta", [1e-300, 1e-20, 1e-5, 0.3, 0.999])
def test_gaussian_mu_recovers_epsilon_up_to_hundreds(delta):
    epsilon = np.concatenate([np.zeros(1), np.geomspace(1e-9, 700, 20)])
    mu = on.gaussian_mu(epsilon, delta)
    assert np.all(np.diff(mu) > 0)
    np.testing.assert_allclose(on.gaussian_delta(epsilon, mu), delta, rtol=2e-12)


def test_gaussian_without_epsilon_is_total_variation():
    mu = np.geomspace(1e-9, 10, 30)
    expected = scipy.special.erf(mu / math.sqrt(8))
    np.testing.assert_allclose(on.gaussian_delta(0.0, mu), expected, rtol=1e-13)
    np.testing.assert_allclose(on.gaussian_mu(0.0, expected[:28]), mu[:28], rtol=1e-12)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.730631634815942, 20.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_gaussian_agrees_with_dp_accounting(sigma, delta):
    epsilon = gaussian_mechanism.get_epsilon_gaussian(sigma, delta)
    np.testing.assert_allclose(on.gaussian_epsilon(delta, 1 / sigma), epsilon, rtol=1e-8, atol=1e-11)
    if epsilon > 0:
        found = ac.noise_from_mu(mu=on.gaussian_mu(epsilon, delta), sensitivity=1.0)
        np.testing.assert_allclose(found, gaussian_mechanism.get_sigma_gaussian(epsilon, delta), rtol=1e-8)


def test_gaussian_budget_of_the_reconstruction_paper():
    mu, (slope, _) = with_gradients(of_two("gaussian_mu"))(1.0, 1e-5)
    np.testing.assert_allclose(mu, 0.2680511232112942, rtol=1e-11)
    np.testing.assert_allclose(slope, 0.2440960051, rtol=1e-9)  # e^ε Φ(b)/φ(a)


@pytest.mark.parametrize("mu", [0.3, 1.5])
def test_discretised_privacy_loss_is_an_upper_bound(mu):
    loss = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-3, use_connect_dots=False)
    for delta in (1e-6, 1e-3):
        above = loss.get_epsilon_for_delta(delta)
        exact = float(on.gaussian_epsilon(delta, mu))
        assert exact <= above <= exact + 2e-3
        assert float(on.zcdp_epsilon(mu**2 / 2, delta)) > above
    for epsilon in (0.5, 2.0):
        above = loss.get_delta_for_epsilon(epsilon)
        exact = float(on.gaussian_delta(epsilon, mu))
        assert exact <= above <= exact * 1.02


# zCDP


@pytest.mark.parametrize("rho", [1e-10, 1e-4, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-100, 1e-9, 1e-5, 0.01, 0.3])
def test_zcdp_epsilon_is_the_least_over_orders(rho, delta):
    np.testing.assert_allclose(on.zcdp_epsilon(rho, delta), best_order(rho, delta), rtol=1e-9, atol=1e-13)


def test_classic_conversion_is_the_least_over_orders_of_the_classic_renyi_one():
    s = np.geomspace(1e-2, 1e3, 20_001)
    curve = ac.renyi_from_rho(orders=1 + s, rho=0.1)
    found = ac.renyi_epsilon(orders=1 + s, divergences=curve, delta=1e-5, conversion="classic")
    np.testing.assert_allclose(on.zcdp_epsilon(0.1, 1e-5, conversion="classic"), found, rtol=1e-6)
    np.testing.assert_allclose(
        on.zcdp_epsilon(0.1, 1e-5), ac.renyi_epsilon(orders=1 + s, divergences=curve, delta=1e-5), rtol=1e-6
    )
    found = ac.renyi_delta(orders=1 + s, divergences=curve, epsilon=2.0, conversion="classic")
    np.testing.assert_allclose(on.zcdp_delta(0.1, 2.0, conversion="classic"), found, rtol=1e-6)
    np.testing.assert_allclose(
        on.zcdp_delta(0.1, 2.0), ac.renyi_delta(orders=1 + s, divergences=curve, epsilon=2.0), rtol=1e-6
    )


@pytest.mark.parametrize("conversion", ["tight", "classic"])
def test_zcdp_inverses_recover_their_argument(conversion):
    rho = np.geomspace(1e-18, 1e6, 25)[:, None]
    delta = np.concatenate([np.geomspace(1e-300, 0.9, 20), 1 - np.geomspace(1e-12, 0.05, 5)])
    epsilon = on.zcdp_epsilon(rho, delta, conversion=conversion)
    inside = np.asarray(epsilon > 0)
    assert inside.sum() > 250
    rho, delta = (np.broadcast_to(x, epsilon.shape)[inside] for x in (rho, delta))
    found = on.zcdp_delta(rho, epsilon[inside], conversion=conversion)
    np.testing.assert_allclose(np.log(found), np.log(delta), rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(on.zcdp_rho(epsilon[inside], delta, conversion=conversion), rho, rtol=1e-11)


def bisected(increasing, low=-800, high=800):
    """The root of an increasing function to 40 digits."""
    low, high = mpmath.mpf(low), mpmath.mpf(high)
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return low


def boundary(log_s, rho):
    """(log(1/δ), ε) at the order 1 + s."""
    s = mpmath.exp(log_s)
    return rho * s**2 + mpmath.log1p(s), rho * (1 + 2 * s) - mpmath.log1p(1 / s)


RHOS = np.array([2e-38, 5e-30, 1e-12, 1e-4, 0.03, 1.0, 3.0, 40.0, 1e6])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_zcdp_bounds_are_on_the_safe_side_of_the_exact_ones(dtype):
    """δ at ρ = 5e-30, ε = 1e-13 was 1.4e-13 of itself too small: the rounding of an exponent of 540."""
    rho = np.repeat(RHOS, 5).astype(dtype)
    share = np.tile([1e-3, 0.3, 2.0, 8.0, 22.0] if dtype == np.float64 else [1e-3, 0.3, 2.0, 5.0, 8.0], RHOS.size)
    epsilon = (share * np.sqrt(2 * rho) + rho * (share > 1)).astype(dtype)
    delta = np.asarray(on.zcdp_delta(rho, epsilon), dtype)
    classic = np.asarray(on.zcdp_delta(rho, epsilon, conversion="classic"), dtype)
    back = np.asarray(on.zcdp_epsilon(rho, delta), dtype)
    budget = np.asarray(on.zcdp_rho(epsilon, delta), dtype)
    slack = 2000 * np.finfo(dtype).eps  # relative, of δ down to e^-500
    with mpmath.workdps(60):
        for r, e, d, c, b, found in zip(
            *(x.tolist() for x in (rho, epsilon, delta, classic, back, budget)), strict=True
        ):
            r_, e_, d_ = mpmath.mpf(r), mpmath.mpf(e), mpmath.mpf(d)
            log_s = bisected(lambda x, r=r_, e=e_: boundary(x, r)[1] - e)
            exact = mpmath.exp(-boundary(log_s, r_)[0])
            of_epsilon = 10 * np.finfo(dtype).eps * float(mpmath.exp(log_s)) * (r + e)  # rounding ε, which δ answers
            assert exact <= d <= exact * (1 + slack + of_epsilon)
            exact = mpmath.exp(-((max(e_ - r_, 0) / 2) ** 2) / r_)
            assert exact <= c <= exact * (1 + slack)
            if not 0 < d < 1:
                continue
            level = -mpmath.log(d_)
            exact = max(boundary(bisected(lambda x, r=r_, y=level: boundary(x, r)[0] - y), r_)[1], 0)
            assert exact <= b <= exact + slack * (e + r + math.sqrt(r * float(level)) + 1e-3 * d)
            # The budget that is found certifies (ε, δ) in exact numbers.
            found = mpmath.mpf(found)
            least = boundary(bisected(lambda x, r=found, y=level: boundary(x, r)[0] - y), found)[1]
            assert least <= e
            assert r * (1 - 5 * slack) <= found


def test_zcdp_budget_of_the_reconstruction_paper():
    rho = on.zcdp_rho(1.0, 1e-5, conversion="classic")
    np.testing.assert_allclose(rho, 0.020819938339535462, rtol=1e-12)
    assert on.zcdp_rho(1.0, 1e-5) > rho
    assert ac.rho_from_mu(on.gaussian_mu(1.0, 1e-5)) > on.zcdp_rho(1.0, 1e-5)


def test_zcdp_rho_is_the_greatest_over_orders():
    orders = 1 + np.geomspace(1e-2, 1e4, 100_001)
    for conversion in ("tight", "classic"):
        found = np.max(ac.renyi_divergence(orders=orders, epsilon=1.0, delta=1e-5, conversion=conversion) / orders)
        np.testing.assert_allclose(on.zcdp_rho(1.0, 1e-5, conversion=conversion), found, rtol=1e-7)


# Rényi

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0])


@pytest.mark.parametrize(("mu", "releases"), [(0.3, 1), (0.1, 50), (2.0, 1), (0.02, 7)])
def test_renyi_agrees_with_dp_accounting_at_equal_orders(mu, releases):
    accountant = rdp.RdpAccountant(ORDERS)
    accountant.compose(dp_event.GaussianDpEvent(1 / mu), releases)
    one = ac.renyi_from_rho(orders=ORDERS, rho=ac.rho_from_mu(mu))
    curve = ac.compose_renyi(np.broadcast_to(one, (releases, ORDERS.size)))
    for delta in (1e-9, 1e-5, 1e-2):
        found = ac.renyi_epsilon(orders=ORDERS, divergences=curve, delta=delta)
        np.testing.assert_allclose(found, accountant.get_epsilon(delta), rtol=1e-8)
        assert found >= on.gaussian_epsilon(delta, mu * math.sqrt(releases))
        classic = min(d + math.log(1 / delta) / (a - 1) for a, d in zip(ORDERS, np.asarray(curve), strict=True))
        np.testing.assert_allclose(
            ac.renyi_epsilon(orders=ORDERS, divergences=curve, delta=delta, conversion="classic"), classic, rtol=1e-12
        )
    for epsilon in (3.0, 8.0) if mu == 2 else (1.0, 3.0):  # above where dp-accounting goes by way of KL
        found = ac.renyi_delta(orders=ORDERS, divergences=curve, epsilon=epsilon)
        np.testing.assert_allclose(found, accountant.get_delta(epsilon), rtol=1e-8)
        assert found >= on.gaussian_delta(epsilon, mu * math.sqrt(releases))


def test_renyi_reduces_the_orders_and_keeps_every_other_axis():
    curves = jnp.stack([ac.renyi_from_rho(orders=ORDERS, rho=rho) for rho in (0.01, 0.1, 1.0)])
    delta = np.array([1e-6, 1e-5, 1e-4])
    found = ac.renyi_epsilon(orders=ORDERS, divergences=curves, delta=delta)
    assert found.shape == (3,)
    alone = [
        ac.renyi_epsilon(orders=ORDERS, divergences=curve, delta=d) for curve, d in zip(curves, delta, strict=True)
    ]
    np.testing.assert_array_equal(found, np.stack(alone))
    assert ac.renyi_delta(orders=ORDERS, divergences=curves, epsilon=1.0).shape == (3,)


def test_renyi_divergence_is_what_one_order_may_spend():
    budget = ac.renyi_divergence(orders=64.0, epsilon=1.0, delta=1e-5, conversion="classic")
    np.testing.assert_allclose(budget, 0.817255151349679, rtol=1e-12)
    for conversion in ("tight", "classic"):
        budget = ac.renyi_divergence(orders=ORDERS, epsilon=3.0, delta=1e-3, conversion=conversion)
        for order, spent in zip(ORDERS, budget, strict=True):
            if spent > 0:
                back = ac.renyi_epsilon(orders=order[None], divergences=spent[None], delta=1e-3, conversion=conversion)
                np.testing.assert_allclose(back, 3.0, rtol=1e-12)
        assert (budget > 0).sum() >= 5
    assert (
        ac.renyi_divergence(orders=64.0, epsilon=0.1, delta=1e-5, conversion="classic") == 0
    )  # no noise suffices: 11.5/63 > 0.1


def test_renyi_at_the_order_infinity():
    orders, curve = np.array([2.0, INF]), np.array([0.9, 1.0])
    assert ac.renyi_epsilon(orders=orders, divergences=curve, delta=0.0) == 1.0
    assert ac.renyi_epsilon(orders=orders[:1], divergences=curve[:1], delta=0.0) == INF
    assert ac.renyi_delta(orders=orders, divergences=curve, epsilon=1.0) == 0.0
    assert 0 < ac.renyi_delta(orders=orders, divergences=curve, epsilon=0.99) < 1
    assert ac.renyi_divergence(orders=INF, epsilon=1.5, delta=0.0) == 1.5
    assert ac.renyi_epsilon(orders=orders, divergences=np.array([0.0, INF]), delta=1e-5) == 0.0
    assert ac.renyi_delta(orders=orders, divergences=np.array([0.0, INF]), epsilon=0.0) == 0.0
    np.testing.assert_array_equal(ac.renyi_from_rho(orders=np.array([1.0, 3.0, INF]), rho=0.0), 0.0)
    np.testing.assert_array_equal(ac.renyi_from_rho(orders=np.array([1.0, INF]), rho=np.array([INF, 0.5])), INF)


# Pure differential privacy


def enumerated(per_release, releases):
    """The probabilities of all 2^T outputs of randomized response on records 1 and 0."""
    p = 1 / (1 + math.exp(-per_release))
    outputs = np.array(list(itertools.product([0, 1], repeat=releases)))
    return np.prod(np.where(outputs, p, 1 - p), 1), np.prod(np.where(outputs, 1 - p, p), 1)


@pytest.mark.parametrize("releases", [1, 2, 5, 10])
@pytest.mark.parametrize("per_release", [0.01, 0.7, 5.0])
def test_randomized_response_composes_as_enumerated(per_release, releases):
    one, other = enumerated(per_release, releases)
    epsilon = np.linspace(0, 0.98, 9) * releases * per_release
    expected = np.array([np.sum(np.maximum(one - math.exp(e) * other, 0)) for e in epsilon])
    found = on.pure_delta(epsilon, per_release, releases=releases)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-16)
    back = on.pure_epsilon(expected, per_release, releases=releases)
    np.testing.assert_allclose(on.pure_delta(back, per_release, releases=releases), expected, rtol=1e-9)
    steep = expected < 0.9  # near δ = 1, δ says little about ε
    np.testing.assert_allclose(back[steep], epsilon[steep], rtol=1e-9, atol=1e-12)


def test_randomized_response_composes_as_dp_accounting_bounds():
    per_release, releases = 0.2, 60
    noise = 2 / (1 + math.exp(per_release))
    loss = pld.from_randomized_response(noise, 2, value_discretization_interval=1e-4).self_compose(releases)
    for delta in (1e-8, 1e-4):
        exact = float(on.pure_epsilon(delta, per_release, releases=releases))
        assert exact <= loss.get_epsilon_for_delta(delta) <= exact + releases * 1e-4
        assert exact < releases * per_release
        assert exact < on.zcdp_epsilon(releases * ac.pure_rho(per_release), delta)


@pytest.mark.parametrize("order", [1.0, 1.0 + 1e-9, 1.01, 2.0, 17.5, 200.0, INF])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 4.0])
def test_pure_renyi_is_that_of_randomized_response(epsilon, order):
    with mpmath.workdps(60):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        if order == 1:
            expected = (2 * p - 1) * mpmath.log(p / (1 - p))
        elif order == INF:
            expected = mpmath.log(p / (1 - p))
        else:
            a = mpmath.mpf(order)
            expected = mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
    np.testing.assert_allclose(ac.pure_renyi(orders=order, epsilon=epsilon), float(expected), rtol=1e-13)


def test_pure_rho_is_the_least_that_covers_every_order():
    epsilon = np.geomspace(1e-4, 50, 40)[:, None]
    orders = 1 + np.geomspace(1e-9, 1e4, 200)
    needed = ac.pure_renyi(orders=orders, epsilon=epsilon) / orders
    tight = ac.pure_rho(epsilon)
    assert np.all(needed <= tight * (1 + 1e-12))
    np.testing.assert_allclose(np.max(needed, -1, keepdims=True), tight, rtol=1e-6)
    classic = ac.pure_rho(epsilon, conversion="classic")
    assert np.all(tight <= classic)
    np.testing.assert_allclose(classic, epsilon**2 / 2, rtol=1e-15)


def test_bounded_range_holds_for_bounded_range_only():
    epsilon, t = 1.0, np.linspace(0.01, 0.99, 99)  # privacy losses t and t - ε: the exponential mechanism's range
    q = (1 - np.exp(t - epsilon)) / (np.exp(t) - np.exp(t - epsilon))
    p = q * np.exp(t)
    orders = np.array([1.01, 2.0, 10.0, 100.0])[:, None]
    divergence = np.log(p**orders * q ** (1 - orders) + (1 - p) ** orders * (1 - q) ** (1 - orders)) / (orders - 1)
    rho = float(ac.pure_rho(epsilon, conversion="bounded-range"))
    assert 0.9 * rho < np.max(divergence / orders) <= rho
    assert ac.pure_renyi(orders=1.0, epsilon=epsilon) > rho  # randomized response has a range of 2ε


def test_basic_composition_adds_and_bounds():
    epsilon, delta = ac.compose_basic(epsilon=jnp.array([0.1, 0.2, 0.3]), delta=jnp.array([1e-6, 0.0, 2e-6]))
    np.testing.assert_allclose([epsilon, delta], [0.6, 3e-6], rtol=1e-15)
    epsilon, delta = ac.compose_basic(epsilon=jnp.full((2, 5), 0.2))
    np.testing.assert_allclose(epsilon, 1.0)
    np.testing.assert_array_equal(delta, 0.0)
    assert ac.compose_basic(epsilon=jnp.ones(3), delta=jnp.full(3, 0.7))[1] == 1.0
    assert on.pure_delta(1.0, 0.2, releases=5) == 0.0  # pure composition leaves no δ
    np.testing.assert_allclose(on.pure_epsilon(0.0, 0.2, releases=5), 1.0)


# Noise, composition, adjacency


def test_composition_of_gaussian_releases_is_the_same_in_mu_and_rho():
    mu = jnp.array([[0.1, 0.5, 0.2], [3.0, 0.0, 4.0]])
    np.testing.assert_allclose(ac.compose_mu(mu)[1], 5.0, rtol=1e-15)
    np.testing.assert_allclose(ac.rho_from_mu(ac.compose_mu(mu)), ac.compose_rho(ac.rho_from_mu(mu)), rtol=1e-14)
    np.testing.assert_allclose(ac.compose_mu(mu, axis=0), ac.mu_from_rho(ac.compose_rho(mu**2 / 2, axis=0)), rtol=1e-14)


def test_small_float32_budgets_do_not_vanish_in_composition():
    np.testing.assert_allclose(ac.compose_mu(jnp.full(4, 1e-25, jnp.float32)), 2e-25, rtol=1e-6)


def test_composed_mu_has_gradients_at_its_edges():
    gradient = jax.grad(ac.compose_mu)
    np.testing.assert_allclose(gradient(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-14)
    np.testing.assert_array_equal(gradient(jnp.zeros(2)), 0.0)
    np.testing.assert_array_equal(gradient(jnp.array([1.0, INF])), 0.0)
    assert ac.compose_mu(jnp.array([1.0, INF])) == INF
    assert jax.grad(ac.mu_from_rho)(0.0) == 0.0
    assert jax.grad(ac.rho_from_mu)(INF) == 0.0


def test_noise_and_mu_are_inverse():
    mu = ac.mu_from_noise(noise_std=jnp.array([1e-6, 2.0, 1e6]), sensitivity=0.3)
    np.testing.assert_allclose(ac.noise_from_mu(mu=mu, sensitivity=0.3), [1e-6, 2.0, 1e6], rtol=1e-15)
    rho = ac.rho_from_mu(mu)
    np.testing.assert_allclose(ac.mu_from_rho(rho), mu, rtol=1e-15)


@pytest.mark.parametrize(
    ("function", "first", "second", "value"),
    [
        (of_two("mu_from_noise"), 0.0, 1.0, INF),
        (of_two("mu_from_noise"), 0.0, 0.0, 0.0),
        (of_two("mu_from_noise"), 1.0, INF, INF),
        (of_two("mu_from_noise"), INF, 1.0, 0.0),
        (of_two("mu_from_noise"), INF, INF, INF),
        (of_two("noise_from_mu"), 0.0, 1.0, INF),
        (of_two("noise_from_mu"), 0.0, 0.0, 0.0),
        (of_two("noise_from_mu"), INF, 1.0, 0.0),
        (of_two("noise_from_mu"), 1.0, INF, INF),
    ],
)
def test_noise_at_its_edges(function, first, second, value):
    found, gradient = jax.value_and_grad(function, (0, 1))(first, second)
    assert found == value
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_pure_delta_is_never_below_the_exact_one_nor_above_1(dtype):
    """At ε = 0, ε₀ = 5 and 50 releases the sum was 1 + 1e-14."""
    points = [(0.0, 5.0), (1.0, 0.1), (0.0, 1e-9), (30.0, 2.0), (240.0, 5.0), (0.3, 0.01), (60.0, 1.0), (0.0, 300.0)]
    epsilon, per_release = np.array(points, dtype).T
    found = on.pure_delta(epsilon, per_release, releases=50)
    with mpmath.workdps(300):
        for e, one, delta in zip(epsilon.tolist(), per_release.tolist(), found.tolist(), strict=True):
            p = 1 / (1 + mpmath.exp(-mpmath.mpf(one)))
            odds = [(p ** (50 - j) * (1 - p) ** j, p**j * (1 - p) ** (50 - j)) for j in range(51)]
            terms = [x - mpmath.exp(mpmath.mpf(e)) * y for x, y in odds]
            exact = mpmath.fsum(mpmath.binomial(50, j) * max(term, 0) for j, term in enumerate(terms))
            assert exact <= delta <= min(exact * (1 + 1000 * np.finfo(dtype).eps), 1)


def test_sensitivity_is_the_largest_change_of_the_sum():
    rng = np.random.default_rng(0)
    radius, n = 2.0, 6
    directions = rng.normal(size=(4000, n + 1, 2))
    records = radius * directions / np.linalg.norm(directions, axis=-1, keepdims=True)
    base, extra = records[:, :n], records[:, n]
    replaced = np.linalg.norm(extra - base[:, 0], axis=-1) / n
    removed = np.linalg.norm(base[:, 0], axis=-1) / n
    replace_one = float(ac.clipped_sensitivity(clip_radius=radius, count=n, adjacency="replace-one"))
    add_remove = float(ac.clipped_sensitivity(clip_radius=radius, count=n, adjacency="add-remove"))
    assert replace_one == 2 * radius / n
    assert add_remove == radius / n
    assert 0.999 * replace_one < replaced.max() <= replace_one
    np.testing.assert_allclose(removed, add_remove, rtol=1e-12)


def test_a_mean_with_a_moving_divisor_needs_the_replace_one_sensitivity():
    radius, n = 2.0, 6
    records = np.array([[radius]] + [[-radius]] * (n - 1))
    moved = abs(records.mean() - records[1:].mean())
    assert moved > ac.clipped_sensitivity(clip_radius=radius, count=n, adjacency="add-remove")
    np.testing.assert_allclose(
        moved, ac.clipped_sensitivity(clip_radius=radius, count=n, adjacency="replace-one"), rtol=1e-14
    )


def test_replacing_a_record_costs_what_two_records_cost():
    noise, radius = 3.0, 1.5
    mu = [
        ac.mu_from_noise(noise_std=noise, sensitivity=ac.clipped_sensitivity(clip_radius=radius, adjacency=a))
        for a in ("replace-one", "add-remove")
    ]
    np.testing.assert_allclose(mu[0], 2 * mu[1], rtol=1e-15)
    np.testing.assert_allclose(ac.rho_from_mu(mu[0]), 2**2 * ac.rho_from_mu(mu[1]), rtol=1e-15)


def test_local_and_central_budget_of_a_noisy_mean():
    radius, noise, n = 10.0, 2.0, 50
    local = ac.rho_from_mu(
        ac.mu_from_noise(
            noise_std=noise, sensitivity=ac.clipped_sensitivity(clip_radius=radius, adjacency="replace-one")
        )
    )
    np.testing.assert_allclose(local, 2 * radius**2 / noise**2, rtol=1e-14)
    sensitivity = ac.clipped_sensitivity(clip_radius=radius, count=n, adjacency="replace-one")
    central = ac.rho_from_mu(ac.mu_from_noise(noise_std=noise / math.sqrt(n), sensitivity=sensitivity))
    np.testing.assert_allclose(central, 2 * radius**2 / (n * noise**2), rtol=1e-14)


def test_numbers_that_could_be_confused_are_taken_by_name_alone():
    """`gaussian_epsilon(0.5, 1e-5)` once read its first number as δ: no loss, for a loss of 1.9931."""
    assert f"{ac.gaussian_epsilon(mu=0.5, delta=1e-5):.4f}" == "1.9931"
    for name in ac.__all__:
        function = getattr(ac, name)
        if inspect.isfunction(function):
            kinds = [p.kind for p in inspect.signature(function).parameters.values()]
            assert sum(kind is not inspect.Parameter.KEYWORD_ONLY for kind in kinds) <= 1, name
            numbers = [p for p in inspect.signature(function).parameters.values() if p.annotation == ArrayLike]
            assert len(numbers) == 1 or numbers[0].kind is inspect.Parameter.KEYWORD_ONLY, name


# The table of edges in the module's docstring, row by row: (first argument, second argument), value

TOTAL_VARIATION = math.erf(0.7 / math.sqrt(8))
EDGES = [
    *[(of_two("gaussian_delta"), e, 0.0, 0.0) for e in (0.0, 1.0, INF)],
    *[(of_two("gaussian_delta"), e, INF, 1.0) for e in (0.0, 1.0, INF)],
    (of_two("gaussian_delta"), INF, 0.7, 0.0),
    (of_two("gaussian_delta"), 0.0, 0.7, TOTAL_VARIATION),
    *[(of_two("gaussian_epsilon"), d, 0.0, 0.0) for d in (0.0, 0.1, 1.0)],
    *[(of_two("gaussian_epsilon"), 1.0, m, 0.0) for m in (0.7, INF)],
    *[(of_two("gaussian_epsilon"), d, INF, INF) for d in (0.0, 0.1)],
    (of_two("gaussian_epsilon"), 0.0, 0.7, INF),
    (of_two("gaussian_epsilon"), 0.5, 0.7, 0.0),
    *[(of_two("gaussian_mu"), INF, d, INF) for d in (0.0, 0.1, 1.0)],
    *[(of_two("gaussian_mu"), e, 1.0, INF) for e in (0.0, 1.0)],
    *[(of_two("gaussian_mu"), e, 0.0, 0.0) for e in (0.0, 1.0)],
    (of_two("gaussian_mu"), 0.0, TOTAL_VARIATION, 0.7),
]
for _suffix, _sure in (("", (0.0, INF)), (", classic", (0.7, 1.0))):
    _delta, _epsilon, _rho = (PAIRS[f"zcdp_{name}{_suffix}"][0] for name in ("delta", "epsilon", "rho"))
    EDGES += [
        *[(_delta, 0.0, e, 0.0) for e in (0.0, 1.0, INF)],
        *[(_delta, INF, e, 1.0) for e in (0.0, 1.0, INF)],
        (_delta, 0.7, INF, 0.0),
        *[(_epsilon, 0.0, d, 0.0) for d in (0.0, 0.1, 1.0)],
        (_epsilon, 0.7, 1.0, _sure[0]),
        *[(_epsilon, INF, d, INF) for d in (0.0, 0.1)],
        (_epsilon, 0.7, 0.0, INF),
        *[(_rho, INF, d, INF) for d in (0.0, 0.1, 1.0)],
        (_rho, 1.0, 1.0, _sure[1]),
        *[(_rho, e, 0.0, 0.0) for e in (0.0, 1.0)],
    ]
_delta, _epsilon = (PAIRS[f"pure_{name}"][0] for name in ("delta", "epsilon"))
EDGES += [
    *[(_delta, e, 0.0, 0.0) for e in (0.0, 1.0, INF)],
    *[(_delta, e, INF, 1.0) for e in (0.0, 1.0)],
    (_delta, INF, 0.7, 0.0),
    (_delta, 7.01 * 0.7, 0.7, 0.0),
    *[(_epsilon, d, 0.0, 0.0) for d in (0.0, 0.1, 1.0)],
    *[(_epsilon, d, INF, INF) for d in (0.0, 0.1)],
    (_epsilon, 0.0, 0.7, 7 * 0.7),
    (_epsilon, 1.0, 0.7, 0.0),
]


def stable_name(function):
    """A name without the address in memory: test workers must agree on it."""
    return re.sub(r" at 0x\w+", "", str(function))


def edges_of(function):
    return np.array([edge[1:] for edge in EDGES if edge[0] is function]).T


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "function", dict.fromkeys(edge[0] for edge in EDGES), ids=lambda f: re.sub(" at 0x\\w+", "", str(f))
)
def test_edges_have_their_value_and_finite_gradients(function, dtype):
    first, second, value = edges_of(function).astype(dtype)
    found, gradient = with_gradients(function)(first, second)
    np.testing.assert_allclose(found, value, rtol=1e-5 if dtype == np.float32 else 1e-12)
    assert np.all(np.isfinite(gradient))


def test_epsilon_zero_leaves_delta_below_one_and_a_positive_budget():
    least = on.zcdp_delta(0.7, 0.0)
    assert 0 < least < 1
    assert on.zcdp_epsilon(0.7, least * (1 + 1e-9)) == 0
    assert on.zcdp_epsilon(0.7, least * (1 - 1e-9)) > 0
    assert on.zcdp_rho(0.0, 0.3) > 0
    assert on.zcdp_rho(0.0, 0.3, conversion="classic") == 0


@pytest.mark.parametrize(
    ("function", "point", "argnum", "slope"),
    [
        (of_two("gaussian_delta"), (0.0, 0.0), 0, 0.0),
        (of_two("gaussian_delta"), (0.0, 0.0), 1, PHI_0),
        (of_two("gaussian_delta"), (0.5, 0.0), 1, 0.0),
        (of_two("gaussian_delta"), (0.0, 0.7), 0, -(1 - TOTAL_VARIATION) / 2),
        (of_two("gaussian_mu"), (0.0, 0.0), 1, 1 / PHI_0),
        (of_two("zcdp_epsilon"), (0.0, 0.1), 0, 0.0),  # ε stays 0 until ρ is as large as δ allows
        (PAIRS["zcdp_rho, classic"][0], (1.0, 1.0), 0, 1.0),
        (PAIRS["pure_epsilon"][0], (0.0, 0.7), 1, 7.0),
        (PAIRS["pure_renyi"][0], (1.0, 0.7), 1, math.tanh(0.35) + 0.35 / math.cosh(0.35) ** 2),
    ],
)
def test_gradients_at_the_edges_are_one_sided_derivatives(function, point, argnum, slope):
    _, gradient = with_gradients(function)(*point)
    np.testing.assert_allclose(gradient[argnum], slope, rtol=1e-13)


NEAR = [0.0, 1e-320, 1e-300, 1e-45, 1e-38, 1e-20, 1e-12, 1e-5, 0.3, 0.999, 1 - 1e-7, 1 - 1e-12, 1.0]
WIDE = [0.0, 1e-300, 1e-38, 1e-20, 1e-9, 1e-3, 0.3, 1.0, 10.0, 1e3, 1e6, 1e20, 1e38, 1e150, 1e300, INF]
AXES = {"delta": NEAR, "orders": [1.0, 1 + 1e-15, 1 + 1e-6, 1.5, 2.0, 64.0, 1e6, 1e38, 1e150, INF]}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", PAIRS)
def test_values_are_in_their_range_and_gradients_numbers_at_every_extreme(name, dtype):
    kind = name.split(",")[0]
    with np.errstate(over="ignore"):
        axes = [np.array(AXES.get(argument, WIDE)).astype(dtype) for argument in NAMES[kind]]
    first, second = np.meshgrid(*axes)
    found, gradient = with_gradients(PAIRS[name][0])(first, second)
    assert found.dtype == dtype
    assert np.all(found >= 0)  # of a NaN nothing holds
    assert np.all(found <= (1 if kind.endswith("delta") else INF))
    assert not np.any(np.isnan(gradient))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_release_that_costs_next_to_nothing_certifies_delta_0(dtype):
    for conversion in ("tight", "classic"):
        found, gradient = with_gradients(of_two("zcdp_delta", conversion=conversion))(dtype(1e-37), dtype(1e6))
        assert found == 0
        np.testing.assert_array_equal(gradient, 0.0)


# Ranges and order, everywhere


@quick
@given(epsilons, mus)
def test_gaussian_delta_is_a_probability_and_monotone(epsilon, mu):
    delta = float(on.gaussian_delta(epsilon, mu))
    assert 0 <= delta <= 1
    assert on.gaussian_delta(epsilon * 1.001 + 1e-9, mu) <= delta * (1 + 1e-12)
    assert on.gaussian_delta(epsilon, mu * 1.001) >= delta * (1 - 1e-12)


@quick
@given(deltas, mus)
def test_conversions_are_ordered(delta, mu):
    rho = ac.rho_from_mu(mu)
    exact = float(on.gaussian_epsilon(delta, mu))
    tight = float(on.zcdp_epsilon(rho, delta))
    classic = float(on.zcdp_epsilon(rho, delta, conversion="classic"))
    slack = 1e-12 * classic
    assert 0 <= exact <= tight + slack
    assert tight <= classic + slack


@quick
@given(epsilons, deltas)
def test_budgets_are_ordered_and_recovered(epsilon, delta):
    exact = float(ac.rho_from_mu(on.gaussian_mu(epsilon, delta)))
    tight = float(on.zcdp_rho(epsilon, delta))
    classic = float(on.zcdp_rho(epsilon, delta, conversion="classic"))
    assert 0 <= classic <= tight * (1 + 1e-12)
    assert tight <= exact * (1 + 1e-12)
    np.testing.assert_allclose(on.zcdp_epsilon(tight, delta), epsilon, rtol=1e-9, atol=1e-13)


@quick
@given(rhos, epsilons)
def test_zcdp_delta_is_a_probability_above_the_exact_one(rho, epsilon):
    tight = float(on.zcdp_delta(rho, epsilon))
    assert 0 <= tight <= float(on.zcdp_delta(rho, epsilon, conversion="classic")) * (1 + 1e-12)
    assert tight <= 1
    assert on.gaussian_delta(epsilon, ac.mu_from_rho(rho)) <= tight * (1 + 1e-9)


@quick
@given(st.floats(-4, 1).map(lambda x: 10.0**x), st.floats(0, 1), st.sampled_from([1, 4, 30]))
def test_pure_bounds_hold_and_are_ordered(per_release, share, releases):
    total = releases * per_release
    delta = float(on.pure_delta(share * total, per_release, releases=releases))
    assert 0 <= delta <= 1
    epsilon = float(on.pure_epsilon(delta, per_release, releases=releases))
    assert epsilon <= share * total * (1 + 1e-9) + 1e-12
    assert delta <= on.zcdp_delta(releases * ac.pure_rho(per_release), share * total) * (1 + 1e-9)


# Transformations and dtypes


@pytest.mark.slow
@each_pair
def test_gradients_are_central_differences(function, points):
    point = np.array(points).T
    _, gradients = with_gradients(function)(*point)
    h = 3e-4
    for argnum, gradient in enumerate(gradients):

        def along(step, argnum=argnum):
            return np.asarray(batched(function, *(x * (1 + step * (i == argnum)) for i, x in enumerate(point))))

        one, two = ((along(k * h) - along(-k * h)) / (2 * k * h) for k in (1, 2))
        difference = (4 * one - two) / 3 / point[argnum]  # Richardson
        # Values carry a rounding error of their own, which the step enlarges.
        rounding = 1e-15 * np.abs(along(0)) / (h * point[argnum])
        np.testing.assert_array_less(np.abs(gradient - difference), 1e-6 * np.abs(difference) + rounding)
        np.testing.assert_array_less(rounding, 1e-4 * np.abs(difference))


@pytest.mark.parametrize(
    "name", ["zcdp_rho", *(pytest.param(f"gaussian_{x}", marks=pytest.mark.slow) for x in ("mu", "epsilon"))]
)
def test_second_derivatives_are_differences_of_gradients(name):
    function, points = PAIRS[name]
    point = np.array(points[:3]).T
    gradients = with_gradients(function)
    curvature = batched(jax.jit(jax.vmap(jax.jacfwd(jax.grad(function, (0, 1)), (0, 1)))), *point)
    h = 1e-5
    for i, j in itertools.product((0, 1), repeat=2):
        up, down = ([x * (1 + sign * h * (k == j)) for k, x in enumerate(point)] for sign in (1, -1))
        difference = (gradients(*up)[1][i] - gradients(*down)[1][i]) / (2 * h * point[j])
        np.testing.assert_allclose(curvature[i][j], difference, rtol=1e-6)


@each_pair
def test_jit_vmap_and_plain_calls_agree(function, points):
    first, second = np.array(points).T
    whole = batched(function, first, second)
    np.testing.assert_allclose(with_gradients(function)(first, second)[0], whole, rtol=1e-13)
    np.testing.assert_allclose(function(*points[0]), whole[0], rtol=1e-13)


def test_arguments_broadcast():
    table = ac.zcdp_epsilon(rho=jnp.array([0.1, 0.2])[:, None], delta=jnp.array([1e-6, 1e-5, 1e-4]))
    assert table.shape == (2, 3)
    np.testing.assert_allclose(table[1, 0], on.zcdp_epsilon(0.2, 1e-6), rtol=1e-14)


@each_pair
def test_float32_agrees_with_float64(function, points):
    kept = [point for point in points if min(point) > 1e-30]
    first, second = np.array(kept, np.float32).T
    found, (by_first, by_second) = with_gradients(function)(first, second)
    wide, wide_gradients = with_gradients(function)(first.astype(np.float64), second.astype(np.float64))
    assert found.dtype == jnp.float32
    assert wide.dtype == jnp.float64
    np.testing.assert_allclose(found, wide, rtol=1e-4)
    for narrow, exact, argument in zip((by_first, by_second), wide_gradients, (first, second), strict=True):
        narrow, exact, terms = (np.asarray(x, np.float64) for x in (narrow, exact, found / argument))
        np.testing.assert_array_less(np.abs(narrow - exact), 1e-3 * np.abs(exact) + 1e-5 * np.abs(terms))


def test_dtype_is_that_of_the_arrays():
    assert ac.mu_from_noise(noise_std=jnp.float32(1.0), sensitivity=0.5).dtype == jnp.float32
    assert ac.mu_from_noise(noise_std=1, sensitivity=np.array([1, 2])).dtype == jnp.float64
    assert ac.pure_rho(np.array([0.5], np.float32)).dtype == jnp.float32
    assert ac.renyi_from_rho(orders=np.float32(2.0), rho=np.array([1e-5], np.float32)).dtype == jnp.float32
    assert ac.renyi_from_rho(orders=jnp.float32(2.0), rho=jnp.float64(1e-5)).dtype == jnp.float64
    orders, divergences = jnp.array([2.0, 8.0], jnp.float32), jnp.array([0.2, 0.8], jnp.float32)
    assert ac.renyi_epsilon(orders=orders, divergences=divergences, delta=1e-5).dtype == jnp.float32


def test_one_trace_serves_every_value():
    traces = []

    @jax.jit
    def budget(epsilon, delta):
        traces.append(None)
        return ac.zcdp_rho(epsilon=epsilon, delta=delta, conversion="classic")

    for epsilon in (0.5, 1.0, 2.0):
        budget(epsilon, 1e-5)
    assert len(traces) == 1


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ac.gaussian_delta(epsilon=-1.0, mu=1.0), r"Argument `epsilon` must lie in \[0, inf\], but is -1\."),
        (lambda: ac.gaussian_epsilon(delta=1.5, mu=1.0), r"Argument `delta` must lie in \[0, 1\], but is 1\.5\."),
        (lambda: ac.gaussian_mu(epsilon=math.nan, delta=0.1), r"Argument `epsilon` must lie in"),
        (
            lambda: ac.zcdp_epsilon(rho=0.1, delta=0.1, conversion="best"),
            r"`conversion` must be \"tight\" or \"classic\"",
        ),
        (lambda: ac.renyi_divergence(orders=2.0, epsilon=1.0, delta=0.1, conversion="best"), r"`conversion` must be"),
        (lambda: ac.pure_rho(1.0, conversion="best"), r"`conversion` must be"),
        (
            lambda: ac.renyi_epsilon(orders=np.array([1.0]), divergences=np.array([1.0]), delta=0.1),
            r"`orders` must lie in \(1, inf\]",
        ),
        (lambda: ac.clipped_sensitivity(clip_radius=1.0, adjacency="swap"), r"`adjacency` must be \"replace-one\" or"),
        (
            lambda: ac.clipped_sensitivity(clip_radius=1.0, count=0.5, adjacency="add-remove"),
            r"`count` must lie in \[1, inf\)",
        ),
        (
            lambda: ac.pure_delta(epsilon=1.0, per_release=1.0, releases=0),
            r"`releases` must be an integer of at least 1, but is 0",
        ),
        (
            lambda: ac.gaussian_delta(epsilon=jnp.ones(2), mu=jnp.ones(3)),
            r"`mu`, `epsilon` must have shapes that broadcast",
        ),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_bad_values_raise_under_jit_too():
    with pytest.raises(Exception, match="Argument `delta` must lie in"):
        jax.jit(of_two("zcdp_epsilon"))(1.0, 1.5)
