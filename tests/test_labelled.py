"""One labelled record: closed forms against the general Fisher geometry and against search."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from assertions import gradient_is_central_difference

import perfjax.reconstruction as rc
from perfjax import accounting as ac

KAPPA = {
    "basic": {"accountant": "basic"},
    "zcdp": {"accountant": "zcdp"},
    "rdp64": {"accountant": "rdp", "order": 64.0},
    "gdp": {"accountant": "gdp"},
}


def kappa(releases, name, epsilon=1.0, delta=1e-5):
    return ac.kappa(releases=releases, epsilon=epsilon, delta=delta, **KAPPA[name])


def gram(a, c, d, e, m):
    matrix = np.full((m, m), float(e))
    np.fill_diagonal(matrix, d)
    matrix[0], matrix[:, 0] = c, c
    matrix[0, 0] = a
    return matrix


@pytest.mark.parametrize(
    "values", [(7, 2, 5, 1, 6), (7, 2, 5, -1, 4), (7, 2, 5, 5, 6), (7, 0, 5, 3, 2), (3, 9, 9, 9, 1)]
)
def test_one_contrast_lemma_is_the_schur_complement(values):
    found = rc.one_contrast_information(*map(float, values))
    expected = rc.schur_information(gram(*values), 1)[0, 0] if values[-1] > 1 else values[0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_one_contrast_lemma_at_the_edge_of_positive_semidefinite():
    """d + (m - 2) e = 0 forces c = 0; nothing is known of the background's sum, and nothing needed."""
    assert rc.one_contrast_information(7.0, 0.0, 2.0, -1.0, 4) == 7
    for m in (2, 5):
        np.testing.assert_allclose(
            rc.exchangeable_information(3.0, 1.0, m), rc.one_contrast_information(3.0, 1.0, 3.0, 1.0, m), rtol=1e-12
        )
    assert rc.exchangeable_information(3.0, 3.0, 5) == 0  # everybody in every release


@pytest.mark.parametrize(("m", "s"), [(6, 3), (5, 1), (5, 4), (4, 4)])
def test_all_subset_means(m, s):
    rows = np.zeros((0, m))
    for members in itertools.combinations(range(m), s):
        row = np.zeros(m)
        row[list(members)] = 1 / s
        rows = np.vstack([rows, row])
    found = rc.profiled_information(*rc.split_columns(rows, 0))[0, 0]
    np.testing.assert_allclose(rc.subset_means_information(m, s), found, atol=1e-12)


def test_the_size_of_the_background_cancels():
    """Noise is calibrated to sensitivities Delta/(n + 1) and Delta/n."""
    for n in (1.0, 50.0, 1e6):
        risk = rc.in_out_risk(n, in_releases=3, out_releases=5, in_variance=2.0 / (n + 1) ** 2, out_variance=2.0 / n**2)
        np.testing.assert_allclose(risk, rc.calibrated_risk(2.0, 3, 5), rtol=1e-12)


def test_no_risk_is_finite_without_both_kinds():
    variances = {"in_variance": 1.0, "out_variance": 1.0}

    def risk(l_in, l_out):
        return rc.in_out_risk(5.0, in_releases=l_in, out_releases=l_out, **variances)

    assert np.isinf(risk(4.0, 0.0))
    assert np.isinf(risk(0.0, 4.0))
    assert jax.grad(risk)(4.0, 0.0) == 0
    rows = np.full((4, 6), 1 / 6)
    assert rc.target_reason(*rc.split_columns(rows, 0)) == rc.Reason.IN_NUISANCE_SPAN


def test_the_split_is_the_best_of_all():
    rng = np.random.default_rng(0)
    total, n = rng.integers(2, 30, 60), rng.integers(1, 40, 60)
    v_in, v_out = rng.lognormal(0, 2, (2, 60))
    real, whole = map(np.asarray, rc.in_out_split(total, n, in_variance=v_in, out_variance=v_out))
    for k in range(60):
        counts = np.arange(1, total[k])
        risks = (n[k] + 1) ** 2 * v_in[k] / counts + n[k] ** 2 * v_out[k] / (total[k] - counts)
        np.testing.assert_allclose(risks[int(whole[k]) - 1], risks.min(), rtol=1e-12)
        a, b = (n[k] + 1) * np.sqrt(v_in[k]), n[k] * np.sqrt(v_out[k])
        np.testing.assert_allclose(a**2 / real[k] + b**2 / (total[k] - real[k]), (a + b) ** 2 / total[k], rtol=1e-10)


@pytest.mark.slow
def test_scaling_of_a_balanced_split_under_every_accountant():
    """Flat for linear accountants and even numbers, L/(L² - 1) for odd ones, rising under basic composition."""
    even, odd = np.arange(2.0, 41, 2), np.arange(3.0, 41, 2)
    flat = {"zcdp": 96.0618, "rdp64": 156.6218, "gdp": 55.6704}
    for name, value in flat.items():
        np.testing.assert_allclose(rc.balanced_risk(kappa(even, name), even), value, atol=5e-5)
        expected = kappa(odd, name) * 4 * odd / (odd**2 - 1)
        np.testing.assert_allclose(rc.balanced_risk(kappa(odd, name), odd), expected, rtol=1e-12)
        assert np.all(expected > value)
    basic = np.asarray(rc.balanced_risk(kappa(even, "basic"), even))
    np.testing.assert_allclose(basic, 8 * even * np.log(1.25 * even / 1e-5), rtol=1e-12)
    np.testing.assert_allclose(basic[[0, 4, 19]], [198.867, 1123.092, 4935.984], atol=5e-4)


def test_a_balanced_split_is_the_worst_when_budgets_need_not_be_equal():
    """(1, L - 1) is the best; eq (39) bounds uniform budgets alone."""
    total, c = 10, np.log(1.25 / 1e-6)
    counts = np.arange(1.0, total)
    risk = np.asarray(rc.basic_allocation_risk(counts, total - counts, epsilon=1.0, in_delta=1e-6, out_delta=1e-6))
    assert risk.argmax() == 4
    assert risk.argmin() in (0, 8)
    np.testing.assert_allclose(risk[0] / (2 * c), (1 + 9 ** (1 / 3)) ** 3, rtol=1e-12)
    np.testing.assert_allclose(risk[4] / (2 * c), 4 * total, rtol=1e-12)  # as under equal budgets
    np.testing.assert_allclose((1 + 9 ** (1 / 3)) ** 3, 29.2205, atol=5e-5)
    two = rc.basic_allocation_risk(1.0, 1.0, epsilon=1.0, in_delta=1e-6, out_delta=1e-6)
    np.testing.assert_allclose(two, 16 * c, rtol=1e-12)
    assert two < risk.min()


@pytest.mark.parametrize(("l_in", "l_out"), [(3.0, 8.0), (1.0, 1.0)])
def test_no_other_allocation_does_better(l_in, l_out):
    def risk(log_odds, in_delta=1e-6, out_delta=5e-7):
        share = 1 / (1 + np.exp(-log_odds))
        parts = (2 * np.log(1.25 / in_delta) * l_in / share**2, 2 * np.log(1.25 / out_delta) * l_out / (1 - share) ** 2)
        return sum(parts) / 1.3**2

    given = {"epsilon": 1.3, "in_delta": 1e-6, "out_delta": 5e-7}
    best = scipy.optimize.minimize_scalar(risk, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9})
    np.testing.assert_allclose(rc.basic_allocation_risk(l_in, l_out, **given), best.fun, rtol=1e-9)
    in_epsilon, out_epsilon = rc.basic_allocation(l_in, l_out, **given)
    ratio = (np.log(1.25 / 1e-6) / np.log(1.25 / 5e-7)) ** (1 / 3) * (l_out / l_in) ** (2 / 3)
    np.testing.assert_allclose(in_epsilon / out_epsilon, ratio, rtol=1e-12)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.3, 0.99])
def test_free_deltas_are_the_best(delta):
    l_in, l_out = 2.0, 7.0

    def risk(log_odds):
        spent = delta / (1 + np.exp(-log_odds))
        parts = (l_in * np.log(1.25 * l_in / spent), l_out * np.log(1.25 * l_out / (delta - spent)))
        return sum(np.cbrt(part) for part in parts)

    best = min(risk(x) for x in np.linspace(-12, 12, 20001))
    in_delta, out_delta = rc.basic_free_delta(l_in, l_out, delta=delta)
    np.testing.assert_allclose(l_in * in_delta + l_out * out_delta, delta, rtol=1e-12)
    found = risk(float(jnp.log(in_delta * l_in) - jnp.log(out_delta * l_out)))
    assert found <= best * (1 + 1e-12)
    np.testing.assert_allclose(found, best, rtol=1e-7)


def test_an_additive_budget_leaves_nothing_to_allocate():
    """Equal shares are best, whatever the numbers of releases, odd ones included."""
    rho = ac.zcdp_rho(epsilon=1.0, delta=1e-5, conversion="classic")
    one = kappa(1, "zcdp")
    np.testing.assert_allclose(rc.additive_risk(one), 2 / rho, rtol=1e-12)
    shares = np.linspace(0.05, 0.95, 19)
    assert np.argmin(rc.additive_risk(one, in_share=shares)) == 9
    np.testing.assert_allclose(
        rc.additive_risk(kappa(1, "gdp")), 4 / ac.gaussian_mu(epsilon=1.0, delta=1e-5) ** 2, rtol=1e-12
    )


def test_the_bound_is_above_the_error_of_always_answering_zero_unless_the_budget_is_large():
    """Unbiased bounds below Delta²/4 need mu > 4; any estimator is bounded by van Trees."""
    trivial = float(rc.trivial_risk(1, radius=0.5))
    assert trivial == 0.25
    for name in KAPPA:
        assert rc.balanced_risk(kappa(2, name), 2) > 200 * trivial
    assert rc.balanced_risk(kappa(2, "basic"), 2) > 790 * trivial
    for mu, below in ((3.9, False), (4.1, True)):
        assert (rc.additive_risk(1 / mu**2) < trivial) == below
    information = 1 / rc.balanced_risk(kappa(2, "gdp"), 2)
    bound = rc.van_trees_bound(information[None, None], radius=0.5)
    assert 0 < bound < trivial


def test_van_trees_bounds_the_error_of_the_posterior_mean():
    """Its own prior, a Gaussian observation of variance 1/I: the Bayes risk by quadrature."""
    for information in (0.5, 20.0, 1000.0):
        x = np.linspace(-1, 1, 801)
        y = np.linspace(-1 - 6 / np.sqrt(information), 1 + 6 / np.sqrt(information), 1201)
        joint = np.cos(np.pi * x / 2) ** 2 * np.exp(-information * (y[:, None] - x) ** 2 / 2)
        mean = joint @ x / joint.sum(1)
        risk = np.sum(joint * (mean[:, None] - x) ** 2) / joint.sum()
        bound = float(rc.van_trees_bound(np.array([[information]])))
        assert bound <= risk * (1 + 1e-6)
        assert bound > 0.7 * risk


@pytest.mark.slow
def test_what_stands_beside_the_bound():
    """IN and OUT means of 1 + 3 records at a budget that resolves nothing: the bound is worse than a guess."""
    rows = np.array([[1 / 4] * 4, [0, 1 / 3, 1 / 3, 1 / 3]])
    noise = np.asarray(kappa(2, "gdp")) / np.array([16.0, 9.0])
    found = rc.target_risk(*rc.split_columns(rc.whitened(rows, noise), 0), radius=0.5)
    np.testing.assert_allclose(found.bound, rc.balanced_risk(kappa(2, "gdp"), 2), rtol=1e-10)
    full = rows.T / noise @ rows + (np.pi / 0.5) ** 2 * np.eye(4)
    np.testing.assert_allclose(found.van_trees, np.linalg.inv(full)[0, 0], rtol=1e-10)
    assert found.van_trees < found.trivial < found.bound
    static = rc.target_risk(np.ones((2, 1)), np.ones((2, 1)), radius=0.5)
    assert np.isinf(static.bound)
    assert np.isfinite(static.van_trees)
    assert rc.Reason.IN_NUISANCE_SPAN.meaning in str(static)
    assert set(found.to_xarray()) == {"bound", "reason", "van_trees", "trivial"}


@pytest.mark.slow
def test_risks_are_differentiable():
    def risk(epsilon, delta, width):
        return rc.balanced_risk(
            ac.kappa(releases=7.0, epsilon=epsilon, delta=delta, accountant="zcdp"), 7.0, width=width
        )

    def allocated(epsilon, in_delta, out_delta):
        return rc.basic_allocation_risk(3.0, 8.0, epsilon=epsilon, in_delta=in_delta, out_delta=out_delta)

    gradient_is_central_difference(risk, 1.2, 1e-5, 2.0, rtol=1e-7)
    gradient_is_central_difference(allocated, 1.2, 1e-6, 1e-5, rtol=1e-7)
    gradient_is_central_difference(lambda d: rc.basic_free_delta(2.0, 7.0, delta=d)[0], 1e-5, rtol=1e-7)


def test_one_call_takes_all_numbers_of_releases_and_budgets():
    releases, epsilon = np.arange(2.0, 9), np.array([[0.5], [1.0]])
    found = rc.balanced_risk(ac.kappa(releases=releases, epsilon=epsilon, delta=1e-5, accountant="zcdp"), releases)
    assert found.shape == (2, 7)
    mapped = jax.vmap(lambda k, n: rc.balanced_risk(k, n))(jnp.full(7, 3.0), jnp.asarray(releases))
    np.testing.assert_allclose(mapped, rc.balanced_risk(3.0, releases))
    assert rc.balanced_risk(np.float32(3), np.float32(4)).dtype == jnp.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rc.balanced_risk(1.0, 1), "Argument `releases` must lie in [2, inf], but is 1."),
        (lambda: rc.calibrated_risk(1.0, 0, 1), "Argument `in_releases` must lie in [1, inf], but is 0."),
        (lambda: rc.calibrated_risk(0.0, 1, 1), "Argument `kappa` must lie in (0, inf], but is 0."),
        (
            lambda: rc.basic_allocation_risk(1, 1, epsilon=0.0, in_delta=0.1, out_delta=0.1),
            "Argument `epsilon` must lie in (0, inf), but is 0.",
        ),
        (lambda: rc.basic_free_delta(1, 1, delta=1.0), "Argument `delta` must lie in (0, 1), but is 1."),
        (lambda: rc.additive_risk(1.0, in_share=1.0), "Argument `in_share` must lie in (0, 1), but is 1."),
        (
            lambda: rc.subset_means_information(3, 4),
            "Argument `subset` must be at most the number of records, 3, but is 4.",
        ),
        (lambda: rc.in_out_estimate(1.0, 1.0, 0), "Argument `background` must lie in [1, inf], but is 0."),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(ValueError, match="Argument") as found:
        call()
    assert str(found.value) == message
