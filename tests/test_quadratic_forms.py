"""Tails of Gaussian quadratic forms: against closed forms, gamma mixtures and SciPy, relative to each tail itself."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from assertions import close, finite, probability

from perfjax.quadratic_forms import QuadraticForm

DOUBLE, SINGLE, SINGLE_MANY = 1e-9, 5e-5, 5e-4  # as the docstring of `tails` states
DIMENSIONS = (1, 12, 100_000, *(pytest.param(m, marks=pytest.mark.slow) for m in (3, 1000)))
DTYPES = pytest.mark.parametrize("dtype", ["float64", "float32"])


@functools.partial(jax.jit, static_argnums=(4, 5))
def tails(linear, quadratic, shift, t, multiplicity, one_sided=False):
    """`tails` of a batch of forms, one a row."""

    def one(*terms_and_t):
        *terms, level = terms_and_t
        return QuadraticForm(*terms, multiplicity, one_sided).tails(level)

    return jax.vmap(one)(linear, quadratic, shift, t)


def found_tails(rows, multiplicity, dtype, one_sided=False):
    linear, quadratic, shift, t = (jnp.asarray(np.asarray(x), dtype) for x in zip(*rows, strict=True))
    return [np.asarray(x, float) for x in tails(linear, quadratic, shift, t, multiplicity, one_sided)]


def single(value):
    """The float32 nearest to `value`, as a float: both dtypes are then asked the same question."""
    return float(np.float32(value))


def bound(dtype, multiplicity):
    return DOUBLE if dtype == "float64" else SINGLE_MANY if max(multiplicity) > 1000 else SINGLE


def tails_are(rows, expected, multiplicity, dtype, one_sided=False):
    """Both tails, relative to each where the dtype can hold it, else nearly 0."""
    least = 1e-290 if dtype == "float64" else 1e-30
    for found, exact in zip(found_tails(rows, multiplicity, dtype, one_sided), np.transpose(expected), strict=True):
        probability(found)
        held = exact > least
        close(found[held], exact[held], bound(dtype, multiplicity), of=np.array([str(row) for row in rows])[held])
        assert np.all(found[~held] <= 2 * least)


# What the tests compare with.


def inverse_roots(linear, quadratic):
    """Q is `up` X - `down` Y, X and Y gamma variables of shape m / 2: 1 - a s - b s^2 = (1 - up s) (1 + down s)."""
    root = np.sqrt(linear * linear + 4 * quadratic)
    large = (root + abs(linear)) / 2
    return (large, quadratic / large) if linear >= 0 else (quadratic / large, large)


@functools.cache
def gamma_rule(shape):
    low = max(scipy.special.gammaincinv(shape, 1e-280), 1e-290)
    y = np.exp(np.linspace(np.log(low), np.log(scipy.special.gammainccinv(shape, 1e-300)), 6_001))
    return y, scipy.stats.gamma.pdf(y, shape) * y * np.log(y[1] / y[0])


def gamma_difference(linear, quadratic, m, t):
    """Both tails by a quadrature of positive terms, which keeps a tail relative to itself."""
    up, down = inverse_roots(linear, quadratic)
    if t < 0:  # mirrored: the integrand would have a kink where t + down y is 0
        return gamma_difference(-linear, quadratic, m, -t)[::-1]
    y, weight = gamma_rule(m / 2)
    level = (t + down * y) / up
    return weight @ scipy.special.gammaincc(m / 2, level), weight @ scipy.special.gammainc(m / 2, level)


def two_dimensions(square, t):
    up, down = inverse_roots(square, square)
    share, rest = up / (up + down), down / (up + down)
    if t > 0:
        return share * np.exp(-t / up), -np.expm1(-t / up) * share + rest
    return -np.expm1(t / down) * rest + share, rest * np.exp(t / down)


def four_dimensions(square, t):
    """Erlang for t > 0: E[(1 + (t + down Y) / up) exp(-(t + down Y) / up)], Y a gamma variable of shape 2."""
    up, down = inverse_roots(square, square)
    share = up / (up + down)
    return np.exp(-t / up) * share**2 * (1 + t / up + 2 * share * down / up)


def conditionally_normal(squares, multiplicity, t, nodes=500):
    """Two terms with a = b = k^2: given S = sum k^2 chi2_m, Q is normal with mean S / 2 and variance S."""
    grids = []
    for k2, m in zip(squares, multiplicity, strict=True):
        y = np.exp(np.linspace(np.log(scipy.stats.chi2.ppf(1e-14, m)), np.log(scipy.stats.chi2.isf(1e-40, m)), nodes))
        grids.append((k2 * y, scipy.stats.chi2.pdf(y, m) * y * np.log(y[1] / y[0])))
    (first, p), (second, q) = grids
    s = first[:, None] + second
    z = (s / 2 - t) / np.sqrt(s)
    return tuple(p @ scipy.special.ndtr(sign * z) @ q for sign in (1, -1))


# One term, two sides: what leak probabilities are made of.


def shared_rows(m, count=24, seed=0):
    """a = b = k^2 over thirty decades, t from far in the left tail to far in the right, and as thresholds are."""
    rng = np.random.default_rng(seed + m)
    rows = []
    while len(rows) < count:
        square = single(10 ** rng.uniform(-12, 12))
        mean, deviation = m * square / 2, np.sqrt(m * square * (1 + square / 2))
        t = 10 ** rng.uniform(-6, 1.5) if rng.random() < 0.5 else mean + deviation * rng.normal() * rng.choice([1, 4])
        rows.append(([square], [square], [0.0], single(t)))
    return rows


def recomputed_rows(m, count=24, seed=1):
    """b = 1 / (n gamma^2), a = b - 1 / n, t = tau - (m / 2) ln(n / (n - 1))."""
    rng = np.random.default_rng(seed + m)
    rows = []
    for _ in range(count):
        n, gamma = 1 + 10 ** rng.uniform(-1, 9), 10 ** rng.uniform(-3, 3)
        quadratic = single(1 / (n * gamma**2))
        linear = single(quadratic - 1 / n)
        rows.append(([linear], [quadratic], [0.0], single(10 ** rng.uniform(-4, 1) - m / 2 * np.log1p(1 / (n - 1)))))
    return [row for row in rows if row[0][0] != 0]


@DTYPES
@pytest.mark.parametrize("m", DIMENSIONS)
def test_one_term_is_a_difference_of_gamma_variables(m, dtype):
    rows = shared_rows(m) + recomputed_rows(m)
    expected = [gamma_difference(a[0], b[0], m, t) for a, b, _, t in rows]
    tails_are(rows, expected, (m,), dtype)


@DTYPES
def test_two_dimensions_in_closed_form(dtype):
    squares = [single(10.0**power) for power in range(-18, 19, 3)]
    levels = [1e-9, 1e-6, 0.02, 10.0, -0.02, -5.0, -300.0]
    rows = [([k], [k], [0.0], single(t)) for k in squares for t in levels]
    rows += [([k], [k], [0.0], single(share * k)) for k in squares for share in (1e-6, 0.5, 1.0, 3.0, 60.0)]
    tails_are(rows, [two_dimensions(k[0], t) for k, _, _, t in rows], (2,), dtype)


@DTYPES
def test_four_dimensions_in_closed_form(dtype):
    rows = [([k], [k], [0.0], t) for k in map(single, (1e-4, 0.03, 1.0, 50.0, 1e6)) for t in map(single, (0.02, 1, 30))]
    exact = np.array([four_dimensions(k[0], t) for k, _, _, t in rows])
    above = found_tails(rows, (4,), dtype)[0]
    held = exact > (0 if dtype == "float64" else 1e-30)
    close(above[held], exact[held], bound(dtype, (4,)))


def test_the_gamma_mixture_agrees_with_the_closed_form():
    """The reference of the other tests, against the reference of these two."""
    for k in (1e-6, 0.3, 1e5):
        for t in (0.01 * k, 0.02, 2.0, -1.0):
            close(gamma_difference(k, k, 2, t), two_dimensions(k, t), 1e-11)
        close(gamma_difference(k, k, 4, 0.7)[0], four_dimensions(k, 0.7), 1e-11)


# Several terms.


@DTYPES
@pytest.mark.parametrize("multiplicity", [(1, 1), (2, 10)])
def test_two_terms_are_a_normal_given_their_sizes(multiplicity, dtype):
    rng = np.random.default_rng(sum(multiplicity))
    rows, expected = [], []
    for _ in range(8):
        squares = [single(x) for x in 10 ** rng.uniform(-3, 0.3, 2)]
        mean = np.dot(squares, multiplicity) / 2
        deviation = np.sqrt(np.dot(np.multiply(squares, 1 + np.divide(squares, 2)), multiplicity))
        t = single(rng.choice([0.02, 1.0, mean - 2 * deviation, mean + 4 * deviation]))
        rows.append((squares, squares, [0.0, 0.0], t))
        expected.append(conditionally_normal(squares, multiplicity, t))
    tails_are(rows, expected, multiplicity, dtype)


@DTYPES
@pytest.mark.parametrize("rest", [(1,), (2, 10)])
def test_terms_too_small_to_matter_change_nothing(rest, dtype):
    """The slowest decay of the integrand lies between the singularities of terms far apart."""
    rows, expected = [], []
    for square, share in itertools.product(map(single, (1e-4, 1.0, 1e4)), (1e-1, 1e-3, 1e-6, 1e-9)):
        t = single(share * max(square, np.sqrt(square)))
        squares = [square, *(single(1e-26) for _ in rest)]
        rows.append((squares, squares, [0.0] * len(squares), t))
        expected.append(gamma_difference(square, square, 1, t))
    tails_are(rows, expected, (1, *rest), dtype)


def test_equal_terms_are_one_term():
    rows = shared_rows(3)
    apart = [(a * 3, b * 3, c * 3, t) for a, b, c, t in rows]
    for one, three in zip(found_tails(rows, (3,), "float64"), found_tails(apart, (1, 1, 1), "float64"), strict=True):
        close(three, one, 2 * DOUBLE)


# One side: squared distances from a center.


def one_sided_rows(m, count=24, seed=2):
    rng = np.random.default_rng(seed + m)
    rows, questions = [], []
    while len(rows) < count:
        variance, centrality = 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-3, 5)
        deviation = np.sqrt(2 * m + 4 * centrality)
        x = m + centrality + deviation * rng.normal() * rng.choice([0.3, 1, 4])
        linear, shift = single(2 * variance), single(2 * variance**2 * centrality)
        variance, centrality = linear / 2, 2 * shift / linear**2
        t = single(variance * (x - centrality))
        x = t / variance + centrality
        if x > 0.01 * (m + centrality):  # nearer to the bound, t itself is not known well enough
            rows.append(([linear], [0.0], [shift], t))
            questions.append((x, m, centrality))
    return rows, questions


def noncentral(x, m, centrality):
    """Both tails of the noncentral chi-square as a Poisson mixture of central ones: positive terms."""
    half = centrality / 2
    reach = 40 * np.sqrt(half + x / 4 + m) + 400
    middle = np.sqrt(half * max(x, half) / 2 + half * half)
    k = np.arange(max(0, int(min(half, middle) - reach)), int(max(half, middle) + reach))
    weight = scipy.stats.poisson.pmf(k, half)
    return weight @ scipy.special.gammaincc(m / 2 + k, x / 2), weight @ scipy.special.gammainc(m / 2 + k, x / 2)


@DTYPES
@pytest.mark.parametrize("m", DIMENSIONS)
def test_one_side_is_a_noncentral_chi_square(m, dtype):
    rows, questions = one_sided_rows(m)
    tails_are(rows, [noncentral(*question) for question in questions], (m,), dtype, one_sided=True)


def test_the_poisson_mixture_agrees_with_scipy():
    for x, m, centrality in ((3.0, 2, 1.0), (150.0, 12, 80.0), (40.0, 3, 10.0)):
        law = scipy.stats.ncx2(m, centrality)
        close(noncentral(x, m, centrality), (law.sf(x), law.cdf(x)), 1e-11)


@DTYPES
def test_a_center_at_zero_is_a_chi_square(dtype):
    for m in (1, 2, 12):
        x = np.array([single(x) for x in (0.01 * m, 0.5 * m, m, 3 * m, 10.0 * m)])
        rows = [([2.0], [0.0], [0.0], level) for level in x]
        tails_are(rows, np.transpose([scipy.stats.chi2.sf(x, m), scipy.stats.chi2.cdf(x, m)]), (m,), dtype, True)


# Derivatives, limits, transformations.


def derivatives_in_two_dimensions(square, t):
    """Of P(Q > t) by k^2 and by t > 0; every term has one sign."""
    root = np.sqrt(square * square + 4 * square)
    up = (root + square) / 2
    by_square = square / root**3 + t * ((square + 2) / root + 1) / (2 * up * root)
    return np.exp(-t / up) * by_square, -np.exp(-t / up) / root


@DTYPES
def test_derivatives_are_as_accurate_as_the_tails(dtype):
    at = [x.ravel() for x in np.meshgrid(10.0 ** np.arange(-3.0, 7.0, 1.5), [0.02, 0.5, 3.0], indexing="ij")]
    at = [x.astype("float32").astype(float) for x in at]

    def ours(square, t):
        return jnp.stack(QuadraticForm(square[None], square[None], jnp.zeros(1, square.dtype), (2,)).tails(t))

    found = jax.jit(jax.vmap(jax.jacfwd(ours, argnums=(0, 1))))(*(jnp.asarray(x, dtype) for x in at))
    tolerance = 1e-8 if dtype == "float64" else 1e-4
    for by, exact in zip(found, derivatives_in_two_dimensions(*at), strict=True):
        held = np.abs(exact) > (1e-250 if dtype == "float64" else 1e-25)
        assert held.sum() > 10
        close(np.asarray(by)[held, 0], exact[held], tolerance)
        close(np.asarray(by)[held, 1], -exact[held], tolerance)


def test_slope_and_curvature_are_derivatives_of_the_cumulant():
    forms = [
        (QuadraticForm(jnp.array([0.5, -0.2]), jnp.array([0.5, 0.1]), jnp.zeros(2), (1, 3)), -0.7, 0.9),
        (QuadraticForm(jnp.array([2.0]), jnp.zeros(1), jnp.array([3.0]), (2,), True), -3.0, 0.4),
    ]
    for form, low, high in forms:
        for s in (low, high):
            s = jnp.asarray(s)
            close(form.slope(s), jax.grad(lambda x, form=form: form.cumulant(x))(s), 1e-12)
            close(form.curvature(s), jax.grad(lambda x, form=form: form.slope(x))(s), 1e-12)
        close(jax.grad(lambda x, form=form: form.cumulant(x))(jnp.asarray(0.0)), form.slope(jnp.asarray(0.0)), 1e-14)


def test_singularities_are_the_nearest_roots():
    form = QuadraticForm(jnp.array([0.5, -0.2, 1e9]), jnp.array([0.5, 0.1, 1e-9]), jnp.zeros(3), (1, 1, 1))
    low, high = form.singularities()
    roots = np.concatenate([np.roots([-b, -a, 1]) for a, b in ((0.5, 0.5), (-0.2, 0.1))])
    close(low, roots[roots < 0].max(), 1e-12)
    close(high, 1e-9, 1e-12)
    one_sided = QuadraticForm(jnp.array([4.0, 2.0]), jnp.zeros(2), jnp.zeros(2), (1, 1), True)
    assert [float(x) for x in one_sided.singularities()] == [-np.inf, 0.25]


@pytest.mark.slow
@pytest.mark.parametrize(("m", "dtype"), [(1, "float64"), (12, "float32")])
def test_far_out_a_tail_is_0_and_its_derivative_finite(m, dtype):
    def above(square, t):
        return QuadraticForm(square[None], square[None], jnp.zeros(1, square.dtype), (m,)).tails(t)

    both = jax.jit(jax.vmap(jax.jacrev(lambda square, t: jnp.stack(above(square, t)), argnums=(0, 1))))
    k = 10.0 ** np.arange(-18, 16, 3)
    square, t = (jnp.asarray(x.ravel(), dtype) for x in np.meshgrid(k, [-1e6, -1.0, 1e-6, 1.0, 1e6], indexing="ij"))
    finite(both(square, t))
    found = jax.jit(jax.vmap(above))(square, t)
    probability(found.above)
    probability(found.below)
    assert np.all(np.abs(np.asarray(found.above) + np.asarray(found.below) - 1) < 1e-6)
    far = jax.jit(above)(jnp.asarray(1e-9, dtype), jnp.asarray(1.0, dtype))
    assert [float(x) for x in far] == [0.0, 1.0]


def test_tails_keep_their_dtype_under_jit_and_vmap():
    rows = shared_rows(12, count=5)
    for dtype in ("float64", "float32"):
        arrays = [jnp.asarray(np.asarray(x), dtype) for x in zip(*rows, strict=True)]
        batch = tails(*arrays, (12,))
        assert batch.above.dtype == batch.below.dtype == dtype
        alone = jax.jit(lambda a, b, c, t: QuadraticForm(a, b, c, (12,)).tails(t))(*(x[2] for x in arrays))
        close(alone, [batch.above[2], batch.below[2]], 1e-10 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (([1.0, -0.5], [0.0, 0.0], [0.4, 0.3], (1, 1), False), "`shift` must lie in [0, 0], but is 0.4."),
        (([1.0, -0.5], [0.0, 0.0], [0.4, 0.3], (1, 1), True), "`linear` must lie in (0, inf), but is -0.5."),
        (([1.0], [0.2], [0.4], (1,), True), "`quadratic` must lie in [0, 0], but is 0.2."),
        (([1.0], [-0.2], [0.0], (1,), False), "`quadratic` must lie in [0, inf), but is -0.2."),
        (([1.0], [0.0], [-0.4], (1,), True), "`shift` must lie in [0, inf), but is -0.4."),
        (([math.nan], [0.2], [0.0], (1,), False), "`linear` must lie in (-inf, inf), but is nan."),
        (([1.0], [0.2], [0.0], (1, 1), False), "`multiplicity` must hold 1 positive integers, but is (1, 1)."),
        (([1.0], [0.2], [0.0], (0,), False), "`multiplicity` must hold 1 positive integers, but is (0,)."),
    ],
)
def test_a_form_that_is_neither_case_is_refused(terms, message):
    *arrays, multiplicity, one_sided = terms
    arrays = [jnp.array(x) for x in arrays]
    with pytest.raises(ValueError, match=re.escape(f"Argument {message}")) as caught:
        QuadraticForm(*arrays, multiplicity, one_sided)
    assert "\n" not in str(caught.value)


def test_a_traced_form_that_is_neither_case_is_nan():
    """Mixed signs with a shift: 0.583 was printed for a probability of 0.5221, and NaN on one side only."""
    for one_sided in (False, True):
        of = jax.jit(lambda a, c, side=one_sided: QuadraticForm(a, jnp.zeros(2), c, (1, 1), side).tails(jnp.array(0.3)))
        assert np.all(np.isnan(of(jnp.array([1.0, -0.5]), jnp.array([0.4, 0.3]))))
        assert np.all(np.isfinite(of(jnp.array([1.0, 0.5]), jnp.array([0.4, 0.3]) * float(one_sided))))
