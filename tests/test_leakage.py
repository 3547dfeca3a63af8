"""Leak probabilities: against closed forms, noncentral chi-square mixtures and per-record simulation."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from assertions import close, finite, gradient_is_central_difference, probability
from cases import EXACT_LEAKS, recomputed_mixture, simulated_leaks
from oracle import cases

import perfjax as pj
from perfjax.leakage import leak_distribution, leak_probability_given_distance, shared_weights, split

DTYPES = pytest.mark.parametrize("dtype", ["float64", "float32"])
OUTSIDE = pytest.mark.parametrize("outside", ["shared", "recomputed"])


def leak(noise_scale, population, threshold, dim, *, outside="shared", **options):
    mechanism = pj.GaussianMean(noise_scale, dim=dim, **options)
    return pj.leak_probability(mechanism, pj.LikelihoodRatioAbove(threshold, outside=outside), population)


def cast(dtype, *values):
    return [jnp.asarray(value, dtype) for value in values]


# Exact answers.


@DTYPES
@pytest.mark.parametrize("name", list(EXACT_LEAKS))
def test_closed_forms(name, dtype):
    case = EXACT_LEAKS[name]
    mechanism, rule = jax.tree.map(lambda x: x.astype(dtype), (case.mechanism, case.leakage))
    found = pj.leak_probability(mechanism, rule, jnp.asarray(case.population, dtype))
    assert found.dtype == dtype
    relative, absolute = (1e-9, 1e-11) if dtype == "float64" else (1e-5, 1e-7)
    np.testing.assert_allclose(found, case.value, rtol=relative, atol=absolute)


@pytest.mark.parametrize("case", cases("performative", "leak_probability_iso"), ids=lambda case: case["name"])
def test_reference_values_in_float32(case):
    inputs = case["inputs"]
    gamma, n, tau, v = cast("float32", *(inputs[k] for k in ("noise_scale", "population", "threshold", "variance")))
    close(leak(gamma, n, tau, inputs["dim"], covariance=v), case["value"], 1e-5)


# "recomputed" and noncentral chi-squares.

WIDE = ((2, 0.5, 0.1), (5, 2.0, 0.02), (100, 20.0, 0.02), (100, 1.0, 0.2), (1000, 5.0, 0.02), (1e6, 0.3, 0.01))
SETTINGS = [(dim, n, gamma, tau) for dim in (1, 2, 3, 12, 50) for n, gamma, tau in WIDE]


@pytest.mark.parametrize("dim", [1, 2, 3, 12, 50])  # thirty settings in all
def test_recomputed_is_a_mixture_of_noncentral_chi_squares(dim):
    settings = [setting for setting in SETTINGS if setting[0] == dim]
    _, n, gamma, tau = (np.array(x, float) for x in zip(*settings, strict=True))
    found = jax.jit(jax.vmap(lambda n, gamma, tau: leak(gamma, n, tau, dim, outside="recomputed")))(n, gamma, tau)
    # SciPy's noncentral distribution function is itself good to 1e-9 where n^2 |delta|^2 is large
    close(found, [recomputed_mixture(g, m, t, dim) for _, m, g, t in settings], 1e-8, of=settings)


def recomputed_at(s, gamma, n, tau, dim):
    """P(Lambda > tau | distance s > 0): below a level, a noncentral chi-square variable."""
    level = n * dim * np.log1p(1 / (n - 1)) + n * n * s**2 / ((n - 1) * gamma**2) - 2 * n * tau
    return scipy.stats.ncx2.cdf(np.maximum(level, 0), dim, np.maximum(n * s**2 / gamma**2, 1e-9))


def test_of_one_dimension_recomputed_given_the_distance_is_a_noncentral_chi_square():
    s, gamma, n, tau = np.array([[1.2, 0.7, 3.0, 0.1], [0.8, 2.0, 5.0, 0.02], [3.5, 20.0, 100.0, 0.02]]).T
    found = leak_probability_given_distance(s, gamma, n, threshold=tau, dim=1, outside="recomputed")
    close(found, recomputed_at(s, gamma, n, tau, 1), 1e-9)


def test_two_records_clipped_hard_are_at_one_of_two_distances():
    """Of dimension one they are at -R or R: half of the pairs are 2 R apart, each R from the mean of both."""
    radius, tau = 1e-3, 0.1
    found = leak(radius, 2.0, tau, 1, outside="recomputed", clip_radius=radius)
    apart = recomputed_at(radius, radius, 2.0, tau, 1)
    together = scipy.stats.chi2.cdf(2 * np.log(2) - 4 * tau, 1)
    close(found, (apart + together) / 2, 0.01)  # of 1024 pairs, and some records lie within the radius


def test_a_count_leaks_nobody_or_everybody():
    """Of three users who leave when they are leaked, three are left or none."""
    mechanism, leakage = pj.ShiftedLogCount(0.5, 3.0), pj.LikelihoodRatioAbove(0.3)
    who = pj.Participation(leave=1.0, recruit=0.0, floor=0.0, cap=5.0)
    law = pj.population_law(pj.Scenario(mechanism, leakage, who, population=3.0, rounds=1))
    leaked = float(pj.leak_probability(mechanism, leakage, 3.0))
    assert 0.05 < leaked < 0.45
    np.testing.assert_allclose(law.probability[1], [leaked, 0, 0, 1 - leaked, 0, 0], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(12, marks=pytest.mark.slow)])
def test_recomputed_given_the_distance_is_a_noncentral_chi_square(dim):
    """With n = 100, gamma = 20 the kink of the square root lies inside the range of the integral."""
    n, gamma, tau, s = (
        np.array(x)
        for x in zip(
            *itertools.product((2.0, 100.0, 1000.0), (0.5, 5.0, 20.0), (0.02, 0.2), (0.0, 0.3, 3.5, 8.0)), strict=True
        )
    )
    found = leak_probability_given_distance(s, gamma, n, threshold=tau, dim=dim, outside="recomputed")
    at_0 = scipy.stats.chi2.cdf(np.maximum(n * dim * np.log1p(1 / (n - 1)) - 2 * n * tau, 0), dim)
    exact = np.where(s == 0, at_0, recomputed_at(s, gamma, n, tau, dim))
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-9)
    single = leak_probability_given_distance(
        *cast("float32", s, gamma, n), threshold=jnp.asarray(tau, "float32"), dim=dim, outside="recomputed"
    )
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, exact, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_shared_given_the_distance_is_one_normal_distribution_function():
    for case in cases("performative", "leak_given_distance"):
        close(leak_probability_given_distance(**case["inputs"]), case["value"], case["tol"])
    assert leak_probability_given_distance(1.0, 0.0, 10.0, threshold=0.1) == 1
    for outside in ("shared", "recomputed"):
        found = leak_probability_given_distance(
            jnp.ones(3), jnp.array([0.0, 1.0, 1.0]), jnp.array([9.0, 1.0, 0.0]), threshold=0.1, dim=3, outside=outside
        )
        np.testing.assert_array_equal(found, 1)


def test_given_distance_needs_the_dimension_for_recomputed():
    with pytest.raises(ValueError, match=r'^Argument `dim` must be given with outside "recomputed"\.$'):
        leak_probability_given_distance(1.0, 1.0, 10.0, threshold=0.1, outside="recomputed")


def test_the_two_meanings_of_outside():
    """As the docstring of the rule says."""
    for gamma, n, shared, recomputed in ((20.0, 100.0, 0.120, 0.278), (5.0, 1000.0, 0.173, 0.175)):
        assert abs(leak(gamma, n, 0.02, 12) - shared) < 6e-4
        assert abs(leak(gamma, n, 0.02, 12, outside="recomputed") - recomputed) < 6e-4


# Records, one by one.

RECORDS = [
    (1.0, 2, 0.05, 3, {}),
    (2.0, 5, 0.02, 2, {}),
    (3.0, 100, 0.02, 12, {}),
    (0.8, 2, 0.05, 3, {"clip_radius": 1.5}),
    (1.0, 5, 0.1, 2, {"clip_radius": 1.0, "mean": 0.7}),
    (1.0, 100, 0.02, 4, {"clip_radius": 1.5, "mean": 1.0}),
    (1.5, 20, 0.05, 3, {"clip_radius": 2.0, "mean": [1.0, 0.0, -0.5], "covariance": [0.5, 1.0, 3.0]}),
    (1.5, 20, 0.05, 2, {"clip_radius": 1.2, "covariance": [[1.0, 0.6], [0.6, 2.0]]}),
]

QUICK = (0, 2, 3, 4)


@pytest.mark.slow
@OUTSIDE
@pytest.mark.parametrize(
    ("gamma", "n", "tau", "dim", "options"),
    [pytest.param(*case, marks=[] if i in QUICK else pytest.mark.slow) for i, case in enumerate(RECORDS)],
)
def test_record_by_record(gamma, n, tau, dim, options, outside):
    shares = simulated_leaks(gamma, n, tau, dim, outside=outside, users=400_000, **options)
    standard_error = np.std(shares, ddof=1) / math.sqrt(len(shares))
    found = float(leak(gamma, float(n), tau, dim, outside=outside, **options))
    clips = "clip_radius" in options
    assert standard_error < 6e-3 * found
    # The fixed points of the clipped case are good to 1e-3.
    assert abs(found - shares.mean()) < 4 * standard_error + (1.5e-3 * found if clips else 0)


# One probability, several ways to it.


def rotation(dim):
    return np.linalg.qr(np.random.default_rng(dim).normal(size=(dim, dim)))[0]


@OUTSIDE
@pytest.mark.parametrize("dim", [12, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (1, 3, 4))])
def test_equal_variances_however_they_are_given(dim, outside):
    """d >= 4 is a mixture of normals as a number, a contour integral as a vector or a matrix."""

    def probabilities(covariance):
        return jax.jit(lambda n: leak(0.7, n, 0.05, dim, outside=outside, covariance=covariance))(
            np.array([2, 50, 1e5])
        )

    expected = probabilities(2.5)
    for covariance in (np.full(dim, 2.5), 2.5 * np.eye(dim)):
        np.testing.assert_allclose(probabilities(covariance), expected, rtol=1e-9, atol=1e-11)


@OUTSIDE
def test_a_rotation_changes_nothing(outside):
    values, q = np.array([0.02, 0.3, 1.0, 9.0]), rotation(4)
    matrix = q @ np.diag(values) @ q.T

    def probabilities(covariance):
        return jax.jit(lambda n: leak(0.7, n, 0.05, 4, outside=outside, covariance=covariance))(np.array([2, 50, 1e5]))

    close(probabilities((matrix + matrix.T) / 2), probabilities(values), 1e-9)


def test_units_of_the_records_do_not_matter():
    close(leak(0.7e3, 50.0, 0.05, 5, covariance=2.5e6), leak(0.7, 50.0, 0.05, 5, covariance=2.5), 1e-9)


@OUTSIDE
def test_a_clip_radius_that_almost_never_binds(outside):
    def probabilities(**options):
        return jax.jit(lambda n: leak(0.9, n, 0.05, 3, outside=outside, **options))(np.array([2.0, 5.0, 100.0]))

    assert pj.GaussianMean(0.9, dim=3, clip_radius=5.5).clips
    close(probabilities(clip_radius=5.5), probabilities(), 1e-3)


# Far corners.

GAMMA, N, TAU = (1e-6, 1e-3, 0.1, 1.0, 20.0, 1e3, 1e6), (1.0, 1.5, 2.0, 3.0, 1e3, 1e9), (1e-6, 0.02, 10.0)


def both_and_gradient(dim, outside):
    """P(leaked) and P(kept), and their derivatives by noise, population and threshold, in one compilation."""

    def one(gamma, n, tau):
        mechanism = jax.tree.map(lambda x: x.astype(gamma.dtype), pj.GaussianMean(gamma, dim=dim))
        value = jnp.stack(split(mechanism, pj.LikelihoodRatioAbove(tau, outside=outside), n, gamma))
        return value, value

    return jax.jit(jax.vmap(jax.jacfwd(one, argnums=(0, 1, 2), has_aux=True)))


@OUTSIDE
@pytest.mark.parametrize("dim", [12, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (1, 4, 50))])
def test_stable_everywhere(dim, outside):
    grid = np.meshgrid(GAMMA, N, TAU, indexing="ij")
    evaluate = both_and_gradient(dim, outside)
    found = {}
    for dtype in ("float64", "float32"):
        gradient, value = evaluate(*cast(dtype, *(x.ravel() for x in grid)))
        finite(gradient)
        probability(value)
        found[dtype] = np.asarray(value, float)
        assert np.all(np.abs(found[dtype].sum(axis=1) - 1) < (1e-12 if dtype == "float64" else 1e-6))
        if outside == "shared":
            leaked = found[dtype][:, 0].reshape(grid[0].shape)
            assert np.all(np.diff(leaked, axis=0) <= (1e-11 if dtype == "float64" else 1e-7)), "more noise leaks less"
    # At d = 4, n = 1.5 the sixteen nodes of float32 are 8e-6 off; elsewhere it is 2e-7.
    np.testing.assert_allclose(found["float32"], found["float64"], rtol=0, atol=1e-5 if dim == 4 else 5e-7)


@pytest.mark.parametrize("dim", [2, 12])
def test_decreasing_in_noise(dim):
    gamma = np.geomspace(1e-2, 1e2, 200)
    leaked = np.asarray(jax.jit(jax.vmap(lambda g: leak(g, 100.0, 0.02, dim)))(gamma))
    assert np.all(np.diff(leaked) < 0)


@OUTSIDE
@pytest.mark.parametrize(
    ("dim", "options"),
    [
        (3, {}),
        pytest.param(12, {}, marks=pytest.mark.slow),
        pytest.param(2, {"covariance": [0.5, 2.0]}, marks=pytest.mark.slow),
    ],
)
def test_gradient(dim, options, outside):
    gradient_is_central_difference(
        lambda gamma, n, tau: leak(gamma, n, tau, dim, outside=outside, **options), 1.3, 40.0, 0.1, rtol=1e-7
    )


@pytest.mark.slow
@OUTSIDE
def test_gradient_with_clipping(outside):
    def clipped(gamma, n, tau):
        return leak(gamma, n, tau, 2, outside=outside, clip_radius=1.0, mean=0.5)

    gradient_is_central_difference(clipped, 1.3, 40.0, 0.1, rtol=1e-5)


# Limits and refusals.


@pytest.mark.parametrize("options", [{}, {"covariance": [1.0, 2.0]}, {"clip_radius": 1.0}])
@OUTSIDE
def test_without_noise_everybody_is_leaked(outside, options):
    both = jax.vmap(jax.value_and_grad(lambda g, n: leak(g, n, 0.02, 2, outside=outside, **options), argnums=(0, 1)))
    at = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 100.0], [3.0, 0.0], [3.0, 1.0]])
    value, slope = jax.jit(both)(*at.T)
    np.testing.assert_array_equal(value, 1)
    finite(slope)


def test_without_privacy_every_bit_is_kept():
    mechanism = pj.RandomizedResponse(jnp.inf)
    assert split(mechanism, pj.TrueBitKept(), jnp.asarray(5.0), mechanism.epsilon) == (1, 0)
    slope = jax.grad(lambda e: pj.leak_probability(pj.RandomizedResponse(e), pj.TrueBitKept(), 5.0))(jnp.inf)
    assert slope == 0


def test_the_spared_share_is_accurate_where_it_is_tiny():
    epsilon = jnp.asarray(200.0)
    spared = split(pj.RandomizedResponse(epsilon), pj.TrueBitKept(), jnp.asarray(5.0), epsilon).spared
    close(spared, math.exp(-200), 1e-12)
    gamma = jnp.asarray(1e-5)
    small = split(pj.GaussianMean(gamma, dim=2), pj.LikelihoodRatioAbove(0.02), jnp.asarray(3.0), gamma).spared
    up = (square := 1 / (2 * 1e-10)) / 2 + math.sqrt(square * square / 4 + square)
    exact = square / up / (up + square / up) - math.expm1(-0.02 / up) * up / (up + square / up)
    close(small, exact, 1e-9)


def test_an_unsupported_pair_names_the_supported_ones():
    known = "(GaussianMean, LikelihoodRatioAbove), (RandomizedResponse, TrueBitKept)"
    with pytest.raises(ValueError, match="must be one of the pairs") as error:
        pj.leak_probability(pj.GaussianMean(1.0, dim=2), pj.TrueBitKept(), 10.0)
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith("but are (GaussianMean, TrueBitKept).")
    for pair in known.split("), "):
        assert pair.rstrip(")") in message


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan, math.inf])
def test_a_threshold_must_be_positive(threshold):
    with pytest.raises(ValueError, match=r"^Argument `threshold` must lie in \(0, inf\), but is "):
        pj.LikelihoodRatioAbove(threshold)


def test_outside_must_be_known():
    with pytest.raises(ValueError, match=r'^Argument `outside` must be "shared" or "recomputed", but is "paper"\.$'):
        pj.LikelihoodRatioAbove(0.1, outside="paper")


def test_a_negative_population_is_refused():
    with pytest.raises(ValueError, match=r"^Argument `population` must lie in \[0, inf\], but is -1\.$"):
        leak(1.0, -1.0, 0.1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 12, 50, 300])
@pytest.mark.parametrize("population", [5.0, 100.0])
def test_the_shared_noise_averages_to_the_leak_probability(dim, population):
    """The law given the shared noise and the contour are two routes to one number."""
    mechanism, rule = pj.GaussianMean(3.0, dim=dim), pj.LikelihoodRatioAbove(0.05, outside="recomputed")
    y = np.linspace(*np.log([scipy.stats.chi2.ppf(1e-13, dim), scipy.stats.chi2.isf(1e-13, dim)]), 20_000)
    shared, weight = jnp.asarray(np.exp(y)), np.exp(y) * scipy.stats.chi2.pdf(np.exp(y), dim)
    n, noise = jnp.asarray(population), jnp.asarray(3.0)
    given = jax.vmap(lambda x: pj.leakage.leak_distribution(mechanism, rule, n, noise, x).leaked)(shared)
    average = np.sum(np.asarray(given) * weight) / weight.sum()
    np.testing.assert_allclose(average, pj.leak_probability(mechanism, rule, population), rtol=0, atol=1e-8)


# Two users.

# dim, noise, threshold, chi2 of the shared noise; the threshold's level lies inside the range of chi2_{dim-1}.
TWO_USERS = [
    (1, 1.3, 0.2, 1.5),
    (2, 1.0, 0.1, 1.5),
    (2, 4.811, 0.0726, 1.987),
    (12, 3.4512, 0.62838, 5.8649),
    (12, 1.3133, 3.3631, 14.484),
    (40, 2.3567, 3.6364, 48.438),
    (12, 1e-6, 0.62838, 5.8649),
    (12, 1e6, 0.62838, 5.8649),
    (12, 20.0, 1e-4, 1e-9),
]


def both_leaked(dim, noise, threshold, shared):
    """P(both of two users are leaked | shared), by SciPy: |a| above the larger root, given b ~ chi2_{dim-1}.

    With residuals at ±(a, b) and the noise at 2 H along a, the worse placed user has a^2 - 2 |a| H + b.
    """
    shift, level = math.sqrt(shared) * noise, 2 * threshold * noise**2

    def given(b):
        square = shift**2 + level - b
        if square <= 0:
            return 1.0
        low, high = shift - math.sqrt(square), shift + math.sqrt(square)
        middle = scipy.stats.norm.cdf(low) - scipy.stats.norm.cdf(-low) if low > 0 else 0.0
        return middle + 2 * scipy.stats.norm.sf(high)

    if dim == 1:
        return given(0.0)
    edge = scipy.stats.chi2.isf(1e-16, dim - 1)
    cuts = [0.0, *sorted(b for b in (level, shift**2 + level) if 0 < b < edge), edge]
    pieces = itertools.pairwise(cuts)

    # b = low + width sin^2 has neither the root's infinite slope at an end nor that of the density at 0.
    def piece(low, high):
        def integrand(angle):
            b = low + (high - low) * math.sin(angle) ** 2
            return given(b) * scipy.stats.chi2.pdf(b, dim - 1) * (high - low) * math.sin(2 * angle)

        return scipy.integrate.quad(integrand, 0, math.pi / 2, epsabs=1e-13, epsrel=1e-12, limit=400)[0]

    return sum(piece(*ends) for ends in pieces)


@DTYPES
@pytest.mark.parametrize("case", TWO_USERS, ids=str)
def test_both_of_two_users(case, dtype):
    noise, shared, n = cast(dtype, case[1], case[3], 2.0)
    parts = pj.GaussianMean(case[1], dim=case[0]), pj.LikelihoodRatioAbove(case[2])
    mechanism, rule = jax.tree.map(lambda x: x.astype(dtype), parts)
    found = pj.leakage.leak_distribution(mechanism, rule, n, noise, shared)
    assert found.both.dtype == dtype
    np.testing.assert_allclose(found.both, both_leaked(*case), rtol=0, atol=1e-9 if dtype == "float64" else 1e-6)


def test_the_spread_of_few_is_a_little_below_that_of_records():
    """As the limit for many users. Sampled: four million releases to 3 users, a million to 10."""
    mechanism, rule = pj.GaussianMean(1.0, dim=2), pj.LikelihoodRatioAbove(0.1)
    law = jax.vmap(lambda n: leak_distribution(mechanism, rule, n, *cast("float64", 1.0, 1.5)))
    sampled = np.array([0.12260, 0.09724])  # Var(K) / n +- 0.00007 and 0.00013; independent leaks: twice as much
    too_low = 1 - jax.jit(law)(jnp.asarray([3.0, 10.0])).spread / sampled
    assert np.all((too_low > 0) & (too_low < np.array([0.03, 0.01])))


def test_both_of_two_users_by_sampling_records():
    """A route without the residuals' geometry: records, their mean without one of them, two log densities."""
    dim, noise, threshold, shared, draws = 12, 3.4512, 0.62838, 5.8649, 1_000_000
    rng = np.random.default_rng(8)
    records = rng.normal(size=(draws, 2, dim))
    mean = records.mean(axis=1)
    released = mean + noise / math.sqrt(2) * math.sqrt(shared) * np.eye(dim)[0]
    without = records[:, ::-1]  # the mean of the other one
    ratio = np.sum((released[:, None] - without) ** 2, -1) - np.sum((released - mean) ** 2, -1)[:, None]
    both = np.all(ratio / noise**2 > threshold, axis=1).mean()  # each density has variance noise^2 / 2
    mechanism, rule = pj.GaussianMean(noise, dim=dim), pj.LikelihoodRatioAbove(threshold)
    found = pj.leakage.leak_distribution(mechanism, rule, *cast("float64", 2.0, noise, shared))
    assert abs(found.both - both) < 4 * math.sqrt(both * (1 - both) / draws)  # 7e-4; the kink once cost 1.4e-3


# What users share.


def shared_moments(noise, n, tau, dim, outside):
    """E[p] and E[p^2] of the leak probability p given the shared noise x ~ chi2_d, by adaptive quadrature over chi."""
    square = noise**2
    gap = tau - dim / 2 * math.log1p(1 / (n - 1))
    start, step = (0, 0) if outside == "shared" else (max(-2 * gap, 0), max(-2 * n * gap, 0))

    def leaked(x):
        shift = square * (n - 1) * x
        limit = shift + 2 * tau * square * (n - 1) if outside == "shared" else square * n * (x + 2 * gap)
        return 1 - scipy.stats.ncx2.cdf(max(limit, 0), dim, shift)

    def moment(power):
        def density(chi):
            return leaked(chi**2) ** power * scipy.stats.chi.pdf(chi, dim)

        width = math.sqrt(n - 1) / noise
        near = [math.sqrt(step) + width * k for k in (-3, -1, 0, 1, 3)] if outside == "recomputed" else [0.01, 0.1, 1]
        points = sorted({c for c in (math.sqrt(start), *near) if math.sqrt(start) <= c < 12})
        ends = [math.sqrt(start), *[c for c in points if c > math.sqrt(start)], 12]
        parts = [scipy.integrate.quad(density, *pair, epsabs=1e-10, limit=200)[0] for pair in itertools.pairwise(ends)]
        return scipy.stats.chi2.cdf(start, dim) + sum(parts)

    return moment(1), moment(2)


@pytest.mark.parametrize(
    ("noise", "n", "tau", "dim", "outside", "tolerance"),
    [
        (0.164, 917.0, 0.00116, 1, "shared", 5e-6),
        (0.164, 917.0, 0.00116, 2, "shared", 1e-6),
        (1.0, 30.0, 0.01, 12, "shared", 1e-6),
        (0.5, 2.0, 0.05, 1, "recomputed", 5e-6),  # a square root's kink where not everybody is leaked any more
        (25.3, 3.36, 0.386, 12, "recomputed", 2e-6),
        (100.0, 3.0, 0.1, 4, "recomputed", 2e-6),
    ],
)
def test_moments_over_the_shared_noise_are_those_of_adaptive_quadrature(noise, n, tau, dim, outside, tolerance):
    mean, rule = pj.GaussianMean(noise, dim=dim), pj.LikelihoodRatioAbove(tau, outside=outside)

    @jax.jit
    def moments(mean, rule, n):
        node, weight = shared_weights(mean, rule, n, mean.noise)
        leaked = jax.vmap(lambda x: leak_distribution(mean, rule, n, mean.noise, x).leaked)(node)
        return jnp.stack([weight @ leaked, weight @ leaked**2, jnp.sum(weight)])

    exact = *shared_moments(noise, n, tau, dim, outside), 1
    assert abs(exact[0] - float(leak(noise, n, tau, dim, outside=outside))) < 1e-8
    np.testing.assert_allclose(moments(mean, rule, jnp.asarray(n)), exact, rtol=0, atol=tolerance)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), (mean, rule))
    np.testing.assert_allclose(moments(*single, jnp.asarray(n, jnp.float32)), exact, rtol=0, atol=2e-5)


@pytest.mark.slow
@DTYPES
@pytest.mark.parametrize("dim", [1, 12])
def test_means_over_the_shared_noise_have_the_derivatives_of_the_leak_probability(dim, dtype):
    def pair(noise, tau):
        parts = pj.GaussianMean(noise, dim=dim), pj.LikelihoodRatioAbove(tau, outside="recomputed")
        return jax.tree.map(lambda x: x.astype(dtype), parts)

    def over_shared(n, noise, tau):
        mean, rule = pair(noise, tau)
        node, weight = shared_weights(mean, rule, n, noise)
        return weight @ jax.vmap(lambda x: leak_distribution(mean, rule, n, noise, x).leaked)(node)

    def exact(n, noise, tau):
        return split(*pair(noise, tau), n, noise).leaked

    n, noise, tau = cast(dtype, [3.4, 2.0, 1e9, 2.0], [25.0, 1e6, 1e-6, 0.5], [0.39, 1e-6, 1.0, 0.05])
    slopes, right = (jax.jit(jax.vmap(jax.grad(f, argnums=(0, 1, 2))))(n, noise, tau) for f in (over_shared, exact))
    finite(slopes)
    if dtype == "float64":
        np.testing.assert_allclose(np.stack(slopes)[:, [0, 3]], np.stack(right)[:, [0, 3]], rtol=1e-3, atol=2e-5)
