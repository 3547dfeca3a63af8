"""Errors and budgets of the mechanisms: closed forms, exact binomial sums, simulation, limits."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from assertions import close, finite, gradient_is_central_difference
from cases import clipped

import perfjax as pj
from perfjax import accounting

RESPONSE, MEAN = pj.RandomizedResponse, pj.GaussianMean


def refuses(message):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}")


# Randomized response.


def exact_clipped_error(epsilon, n, mu):
    """The sum over every count of ones."""
    mu = min(mu, 1 - mu)  # by symmetry; next to 1 a rate loses its complement
    shrink, k = np.tanh(epsilon / 2), np.arange(n + 1)
    rate = mu / (1 + np.exp(-epsilon)) + (1 - mu) / (1 + np.exp(epsilon))
    estimate = np.clip(0.5 + (k / n - 0.5) / shrink, 0, 1)
    return scipy.stats.binom.pmf(k, n, rate) @ (estimate - mu) ** 2


def exact_interval_error(epsilon, n, low, high, nodes=80):
    node, weight = np.polynomial.legendre.leggauss(nodes)
    mus = low + (high - low) * (node + 1) / 2
    return sum(w / 2 * exact_clipped_error(epsilon, n, mu) for w, mu in zip(weight, mus, strict=True))


@functools.partial(jax.jit, static_argnums=3)
def response_errors(epsilon, n, mean, clip=True):
    """Over arrays of budgets; one compilation for a fixed mean and one for an interval."""
    return jax.vmap(lambda x: RESPONSE(x, mean, clip_estimate=clip).error(n))(epsilon)


@functools.partial(jax.jit, static_argnums=3)
def response_slopes(epsilon, n, mean, clip):
    return jax.grad(lambda e, n: RESPONSE(e, mean, clip_estimate=clip).error(n), argnums=(0, 1))(epsilon, n)


def clipped_response(epsilon, n, mean):
    return np.asarray(response_errors(jnp.asarray(epsilon), float(n), jnp.asarray(mean)))


@pytest.mark.parametrize("mu", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
def test_response_error_is_the_variance_of_the_unbiased_estimate(epsilon, mu):
    kept, flipped = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    one, zero = mu * kept + (1 - mu) * flipped, (1 - mu) * kept + mu * flipped
    close(RESPONSE(epsilon, mu).error(50.0), one * zero / (50 * math.tanh(epsilon / 2) ** 2), 1e-12)


def test_response_error_is_averaged_over_an_interval():
    for low, high in ((0.0, 1.0), (0.5, 1.0), (0.3, 0.3)):
        node, weight = np.polynomial.legendre.leggauss(4)
        inside = low + (high - low) * (node + 1) / 2
        average = sum(w / 2 * float(RESPONSE(0.7, mu).error(30.0)) for w, mu in zip(weight, inside, strict=True))
        close(RESPONSE(0.7, (low, high)).error(30.0), average, 1e-12)


def windowed_error(epsilon, n, mu):
    """`exact_clipped_error` for many users: ten standard deviations of the count of ones."""
    shrink = math.tanh(epsilon / 2)
    rate = mu / (1 + math.exp(-epsilon)) + (1 - mu) / (1 + math.exp(epsilon))
    reach = 10 * math.sqrt(n * rate * (1 - rate)) + 10
    k = np.arange(max(math.floor(n * rate - reach), 0), min(math.ceil(n * rate + reach), n) + 1)
    estimate = np.clip(0.5 + (k / n - 0.5) / shrink, 0, 1)
    return scipy.stats.binom.pmf(k, n, rate) @ (estimate - mu) ** 2


@pytest.mark.parametrize(("n", "epsilon"), [(10_000, 1.0), (1_000_000, 1.0), (1_000_000, 5.0)])
def test_clipped_error_over_an_interval_is_that_of_adaptive_quadrature(n, epsilon):
    """Clipping plays a part next to 0 and 1 alone."""
    beside = 6 / (2 * math.sqrt(n) * math.tanh(epsilon / 2))
    parts = [
        scipy.integrate.quad(lambda mu: n * windowed_error(epsilon, n, mu), *ends, epsabs=0, epsrel=1e-7)[0]
        for ends in ((0, beside), (beside, 0.5))
    ]
    close(clipped_response([epsilon], n, (0.0, 1.0))[0], 2 * sum(parts) / n, 2e-7)


@pytest.mark.slow
def test_response_error_is_what_simulation_finds():
    rng, epsilon, n, runs = np.random.default_rng(0), 0.8, 20, 200_000
    mu = rng.uniform(size=runs)
    rate = 0.5 + np.tanh(epsilon / 2) * (mu - 0.5)
    estimate = 0.5 + (rng.binomial(n, rate) / n - 0.5) / np.tanh(epsilon / 2)
    for clip in (False, True):
        squared = ((np.clip(estimate, 0, 1) if clip else estimate) - mu) ** 2
        found = float(RESPONSE(epsilon, clip_estimate=clip).error(float(n)))
        assert abs(squared.mean() - found) < 4 * squared.std() / math.sqrt(runs)


@pytest.mark.parametrize("mean", [0.0, 0.1, 0.5, 1.0, (0.0, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize("n", [1, 10, 64])
def test_clipped_estimate_is_summed_up_to_64_users(n, mean):
    budgets = np.array([0.01, 0.1, 1.0, 5.0, 20.0])
    exact = exact_interval_error if isinstance(mean, tuple) else exact_clipped_error
    expected = [exact(epsilon, n, *np.atleast_1d(mean)) for epsilon in budgets]
    close(clipped_response(budgets, n, mean), expected, 1e-10)


@pytest.mark.parametrize("mean", [0.0, 1e-4, 0.1, 0.5, 1.0, (0.0, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize("n", [65, 68, 71, 72, 73, 100, 401, 10_000])
def test_clipped_estimate_of_a_crowd_is_as_good_as_stated(n, mean):
    """From the list of all counts to integrals, and for a mu near 0, where the count is skewed."""
    budgets = np.geomspace(1e-3, 30, 12)
    exact = exact_interval_error if isinstance(mean, tuple) else exact_clipped_error
    expected = np.array([exact(epsilon, n, *np.atleast_1d(mean)) for epsilon in budgets])
    close(clipped_response(budgets, n, mean), expected, 1e-4 if isinstance(mean, tuple) and n > 1000 else 3e-6)


def test_between_whole_numbers_of_few_users_the_clipped_error_is_a_line():
    """A quarter of the way from 10 users to 11, by the sums over every count of ones."""
    ten, eleven = (exact_clipped_error(1.0, n, 0.3) for n in (10, 11))
    found = clipped_response(np.ones(5), 10.25, 0.3)[0]  # five as in the tests above, to compile once
    close(found, 0.75 * ten + 0.25 * eleven, 1e-10)
    close([ten, found, eleven], [0.0796831, 0.0789941, 0.0769271], 1e-6)


@pytest.mark.study
def test_clipped_estimate_of_any_crowd_is_as_good_as_stated():
    rng = np.random.default_rng(0)
    epsilon, n = np.exp(rng.uniform(np.log(1e-3), np.log(30), 8000)), np.round(10 ** rng.uniform(0, 5, 8000))
    mean = np.where(rng.uniform(size=8000) < 0.5, rng.uniform(size=8000), 10 ** rng.uniform(-6, 0, 8000))
    found = jax.jit(jax.vmap(lambda x, n, mu: RESPONSE(x, mu, clip_estimate=True).error(n)))(epsilon, n, mean)
    expected = np.array([exact_clipped_error(x, int(k), mu) for x, k, mu in zip(epsilon, n, mean, strict=True)])
    seen = expected > 1e-20  # below, the reference has lost its digits
    worst = np.max(np.abs(found / expected - 1)[seen])
    print(f"worst of {seen.sum()}: {worst:.2g}")
    assert worst < 3e-6
    assert np.max(np.abs(found / expected - 1)[seen & (n <= 64)]) < 1e-12


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-6, 1e-9])
def test_a_clipped_estimate_without_budget_is_a_coin(epsilon, dtype):
    """It is 0 or 1, wrong by 1/3 on average; and 1/2, wrong by 1/12, when half the users send a one."""
    tie = scipy.stats.binom.pmf(200, 400, 0.5)
    mechanism = jax.tree.map(lambda x: x.astype(dtype), RESPONSE(epsilon, clip_estimate=True))
    found = jax.jit(jax.vmap(mechanism.error))(jnp.asarray([1.0, 400.0, 401.0], dtype))
    close(found, [1 / 3, 1 / 3 - tie / 4, 1 / 3], 5 * epsilon + 1e-6)


def test_the_clipped_error_has_no_jump():
    """Half-way between whole numbers of users it is the mean of both, and nowhere does it move by more than they do."""
    error = jax.jit(jax.vmap(lambda n: RESPONSE(0.1, clip_estimate=True).error(n)))
    found = np.asarray(error(jnp.linspace(60.0, 80.0, 2001)))
    whole = np.array([exact_interval_error(0.1, n, 0.0, 1.0) for n in range(60, 81)])
    close(found[::100], whole, 3e-6)
    close(found[50::100], (whole[1:] + whole[:-1]) / 2, 1e-3)
    assert np.max(np.abs(np.diff(found))) < 1.001 * np.max(np.abs(np.diff(whole))) / 100


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("clip", [False, True])
def test_for_endless_users_every_derivative_is_its_limit(clip, dtype):
    """0, forwards and in reverse, by users and by budget; even where the users' own derivative overflows."""
    n, epsilon = jnp.asarray(jnp.inf, dtype), jnp.asarray(0.8, dtype)
    mean = jnp.asarray([0.0, 1.0], dtype)

    def error(n, epsilon):
        return RESPONSE(epsilon, mean, clip_estimate=clip).error(n)

    @jax.jit
    def both(n, epsilon):
        return jax.jvp(error, (n, epsilon), (n, jnp.ones_like(epsilon))), jax.grad(error, argnums=(0, 1))(n, epsilon)

    assert both(n, epsilon) == ((0, 0), (0, 0))


@pytest.mark.slow
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("mean", [0.0, 0.3, 1.0, (0.0, 1.0)])
def test_response_without_privacy(mean, clip):
    """mu (1 - mu) / n, the limit and not a large budget, with derivatives that are not NaN."""
    low, high = np.broadcast_to(mean, 2)
    spread = (low + high) / 2 - (low * low + low * high + high * high) / 3
    for n in (3.0, 64.0, 65.0, 1e4):
        found = response_errors(jnp.array([jnp.inf]), n, jnp.asarray(mean), clip)
        # Beyond 64 users the clipped error is an integral, to 3e-6 in general.
        np.testing.assert_allclose(found, spread / n, rtol=2e-7 if clip and n > 64 else 1e-10, atol=1e-100)
        slope = response_slopes(jnp.inf, n, jnp.asarray(mean), clip)
        finite(slope)
        assert slope[0] == 0


@pytest.mark.parametrize("clip", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_response_gradient(clip):
    n = 300.5 if clip else 10.5  # at whole numbers of users the clipped error has a kink
    gradient_is_central_difference(lambda epsilon, n: RESPONSE(epsilon, clip_estimate=clip).error(n), 0.9, n, rtol=1e-6)


@pytest.mark.parametrize("clip", [False, True])
def test_response_error_in_float32(clip):
    mechanism = RESPONSE(1.0, clip_estimate=clip)
    single = jax.tree.map(lambda x: x.astype("float32"), mechanism)
    n, epsilon = np.array([[n, epsilon] for n in (1.0, 50.0, 1e6) for epsilon in (0.0009765625, 1.0, 30.0, 89.0)]).T
    found = jax.jit(jax.vmap(single.error))(n.astype("float32"), epsilon.astype("float32"))
    assert found.dtype == jnp.float32
    close(found, jax.jit(jax.vmap(mechanism.error))(n, epsilon), 2e-4)


def test_nobody_has_an_infinite_error():
    for mechanism in (RESPONSE(1.0), RESPONSE(1.0, clip_estimate=True), MEAN(1.0, dim=2), MEAN(0.0, dim=2)):
        assert jax.jit(jax.value_and_grad(mechanism.error))(0.0) == (jnp.inf, 0)


def test_response_privacy_is_its_budget():
    spent = RESPONSE(jnp.array([0.5, 1.0])).privacy(jnp.array([10.0, 20.0]))
    np.testing.assert_array_equal(spent.local.epsilon(1e-6), [0.5, 1.0])
    assert spent.central is None
    close(spent.composed().local.epsilon(0.0), 1.5, 1e-12)
    close(spent.local.rho, accounting.pure_rho(jnp.array([0.5, 1.0])), 1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0,), "Argument `epsilon` must lie in (0, inf], but is 0."),
        ((-1.0,), "Argument `epsilon` must lie in (0, inf], but is -1."),
        ((math.nan,), "Argument `epsilon` must lie in (0, inf], but is nan."),
        ((1.0, 1.5), "Argument `mean` must lie in [0, 1], but is 1.5."),
        ((1.0, (0.6, 0.4)), "Argument `mean` must have its lower end first, but is "),
        ((1.0, (0.1, 0.2, 0.3)), "Argument `mean` must be one number or the two ends of an interval, but is "),
    ],
)
def test_bad_response(arguments, message):
    with refuses(message):
        RESPONSE(*arguments)


# The Gaussian mean.


def test_mean_error_without_clipping():
    matrix = np.array([[2.0, 0.5], [0.5, 1.0]])
    for covariance, trace in ((4.0, 0.5), ([1.0, 4.0], 1.25), (matrix, np.trace(np.linalg.inv(matrix)))):
        found = MEAN(1.5, dim=2, covariance=covariance).error(40.0)
        close(found, (1.5**2 * trace + 2) / 40, 1e-12)
    close(MEAN(0.0, dim=3, covariance=2.0).error(40.0), 3 / 40, 1e-15)


CLIPPED = [
    (3, 1.5, 0.0, 1.0),
    (2, 1.0, 0.8, 1.0),
    (3, 2.0, [1.0, 0.0, -0.5], [0.5, 1.0, 3.0]),
    (2, 1.2, 0.3, [[1.0, 0.6], [0.6, 2.0]]),
]


def clipped_moments(dim, radius, mean, sigma):
    """Bias and covariance of a clipped record, by the trapezoid rule on a grid of standard normals."""
    axis = np.linspace(-7, 7, {2: 901, 3: 141}[dim])
    normals = np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    weight = np.exp(-np.sum(normals**2, axis=-1) / 2)
    weight /= weight.sum()
    records = clipped(mean + normals @ np.linalg.cholesky(sigma).T, radius)
    center = weight @ records
    return center - mean, (records - center).T @ ((records - center) * weight[:, None])


@pytest.mark.parametrize(("dim", "radius", "mean", "covariance"), CLIPPED)
def test_bias_and_scatter_of_clipped_records(dim, radius, mean, covariance):
    sigma = np.asarray(covariance) if np.ndim(covariance) == 2 else np.eye(dim) * covariance
    bias, scatter = clipped_moments(dim, radius, np.broadcast_to(mean, dim), sigma)
    precision = np.linalg.inv(sigma)
    mechanism = MEAN(0.5, dim=dim, clip_radius=radius, mean=mean, covariance=covariance)
    assert mechanism.clips
    moments = mechanism.clipped_moments()
    np.testing.assert_allclose(moments.bias, bias, atol=2e-4)
    np.testing.assert_allclose(moments.covariance, scatter, atol=2e-3)
    squared_bias, trace = bias @ precision @ bias, np.trace(precision @ scatter)
    for n in (1.0, 50.0, 1e6):  # within 1e-3, as the docstring states
        expected = (0.25 * np.trace(precision) + trace) / n + squared_bias
        np.testing.assert_allclose(mechanism.error(n), expected, rtol=1e-3, atol=1e-7)


def test_error_of_a_clipped_release_is_what_simulation_finds():
    rng, runs, n = np.random.default_rng(2), 40_000, 10
    records = clipped(0.8 + rng.normal(size=(runs, n, 2)), 1.0)
    release = records.mean(axis=1) + rng.normal(size=(runs, 2)) * 0.7 / math.sqrt(n)
    squared = np.sum((release - 0.8) ** 2, axis=-1)
    found = float(MEAN(0.7, dim=2, clip_radius=1.0, mean=0.8).error(float(n)))
    assert abs(squared.mean() - found) < 4 * squared.std() / math.sqrt(runs) + 1e-3 * found


def test_clipping_is_left_out_exactly_where_it_never_binds():
    assert not MEAN(1.0, dim=12, clip_radius=10.0).clips
    assert MEAN(1.0, dim=12, clip_radius=3.0).clips
    assert not MEAN(1.0, dim=12).clips
    edge = math.sqrt(scipy.stats.chi2.isf(1e-9, 4))
    assert MEAN(1.0, dim=4, clip_radius=edge * (1 - 1e-9)).clips
    assert not MEAN(1.0, dim=4, clip_radius=edge * (1 + 1e-9)).clips
    assert MEAN(1.0, dim=4, clip_radius=edge * 1.01, mean=1.0).clips
    assert MEAN(1.0, dim=4, clip_radius=edge * 1.01, covariance=[1.0, 1.0, 1.0, 2.0]).clips
    close(MEAN(1.3, dim=12, clip_radius=10.0).error(70.0), MEAN(1.3, dim=12).error(70.0), 1e-15)


def test_mean_error_gradient():
    gradient_is_central_difference(
        lambda gamma, n, radius: MEAN(gamma, dim=2, clip_radius=radius, mean=0.5).error(n), 0.9, 40.0, 1.3, rtol=1e-4
    )


def test_privacy_of_a_mean():
    mechanism = MEAN(jnp.array([2.0, 4.0]), dim=3, clip_radius=5.0)
    spent = mechanism.privacy(jnp.array([100.0, 25.0]))
    close(spent.local.rho, 2 * 25 / np.array([4.0, 16.0]), 1e-12)
    close(spent.central.rho, 2 * 25 / np.array([400.0, 400.0]), 1e-12)
    close(spent.composed().central.rho, 0.25, 1e-12)
    unclipped = MEAN(2.0, dim=3).privacy(100.0)
    assert unclipped.local.rho == unclipped.central.rho == jnp.inf
    assert MEAN(0.0, dim=3, clip_radius=5.0).privacy(100.0).local.mu == jnp.inf


@pytest.mark.parametrize("scope", ["local", "central"])
@pytest.mark.parametrize("budget", [{"rho": 0.3}, {"epsilon": 1.2, "delta": 1e-6}])
def test_from_budget_spends_exactly_the_budget(budget, scope):
    population = {"population": 150.0} if scope == "central" else {}
    mechanism = MEAN.from_budget(clip_radius=3.0, dim=4, scope=scope, **budget, **population)
    spent = getattr(mechanism.privacy(150.0), scope)
    if "rho" in budget:
        close(spent.rho, budget["rho"], 1e-12)
    else:
        close(spent.epsilon(budget["delta"]), budget["epsilon"], 1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Give either `rho`, or `epsilon` together with `delta`."),
        ({"rho": 1.0, "epsilon": 1.0, "delta": 0.1}, "Give either `rho`, or `epsilon` together with `delta`."),
        ({"epsilon": 1.0}, "Give either `rho`, or `epsilon` together with `delta`."),
        ({"rho": 0.0}, "Argument `rho` must lie in (0, inf], but is 0."),
        ({"epsilon": 1.0, "delta": 0.0}, "Argument `delta` must be above 0 where `epsilon` is finite, but is 0.0."),
        ({"rho": 1.0, "scope": "global"}, 'Argument `scope` must be "local" or "central", but is "global".'),
        ({"rho": 1.0, "scope": "central"}, 'Argument `population` must be given with scope "central", and only then.'),
        ({"rho": 1.0, "population": 5.0}, 'Argument `population` must be given with scope "central", and only then.'),
    ],
)
def test_bad_budget(arguments, message):
    with refuses(message):
        MEAN.from_budget(clip_radius=1.0, dim=2, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_scale": -1.0}, "Argument `noise_scale` must lie in [0, inf), but is -1."),
        ({"noise_scale": math.inf}, "Argument `noise_scale` must lie in [0, inf), but is inf."),
        ({"dim": 0}, "Argument `dim` must be an integer of at least 1, but is 0."),
        ({"dim": True}, "Argument `dim` must be an integer of at least 1, but is True."),
        ({"clip_radius": 0.0}, "Argument `clip_radius` must lie in (0, inf), but is 0."),
        ({"mean": [1.0, 2.0]}, "Argument `mean` must be one number or 3 of them (`dim`), but is of shape (2,)."),
        ({"covariance": 0.0}, "Argument `covariance` must lie in (0, inf), but is 0."),
        ({"covariance": np.eye(2)}, "Argument `covariance` must be one number, 3 variances or a 3 x 3 matrix"),
        (
            {"covariance": np.diag([1.0, 1.0, -0.5])},
            "Argument `covariance` must be positive definite, but is a matrix with least eigenvalue -0.5.",
        ),
        ({"covariance": np.triu(np.ones((3, 3)))}, "Argument `covariance` must be symmetric, but is "),
    ],
)
def test_bad_mean(arguments, message):
    with refuses(message):
        MEAN(**{"noise_scale": 1.0, "dim": 3} | arguments)


def test_a_traced_bad_noise_raises_when_it_runs():
    with pytest.raises(Exception, match="Argument `noise_scale` must lie in"):
        jax.block_until_ready(jax.jit(lambda gamma: MEAN(gamma, dim=2).error(10.0))(-1.0))
