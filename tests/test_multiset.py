"""Bounds on the multiset of the records: moments, thresholds, and the best number of releases."""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.integrate
from assertions import gradient_is_central_difference

import perfjax.reconstruction as rc
from perfjax import accounting as ac

PAPER = rc.Moments(1.0, "paper")
STEPS = {"logistic": rc.Logistic(0.1), "smoothstep": rc.Smoothstep(0.3), "bump": rc.Bump(0.5)}
each_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())


def thresholds(step, grid="midpoint", sensitivity="paper"):
    return rc.Thresholds(step, grid=grid, sensitivity=sensitivity)


def scanned(family, z, accountant, low=2, high=40, epsilon=1.0):
    order = 64.0 if accountant == "rdp" else None
    return rc.scan_releases(
        family, z, releases=(low, high), epsilon=epsilon, delta=1e-5, accountant=accountant, order=order
    )


def exact_trace(z, releases):
    """tr A_L^-1 for moments in 60 digits."""
    with mpmath.workdps(60):
        r = [mpmath.mpf(x) for x in z]
        m = len(r)
        a = mpmath.matrix(m, m)
        for j, k in itertools.product(range(m), repeat=2):
            a[j, k] = sum(n * n * (r[j] * r[k]) ** (n - 1) for n in range(1, releases + 1)) / 4
        inverse = a**-1
        return float(sum(inverse[k, k] for k in range(m)))


# Moments


def test_energy_is_the_sum_also_where_the_closed_form_loses_its_digits():
    x = np.array([-1.0, -0.5, 0.0, 0.9, 0.999, 0.999999, 1.0])
    for count in (1, 2, 9):
        expected = [sum(n * n * v ** (n - 1) for n in range(1, count + 1)) for v in x]
        np.testing.assert_allclose(rc.moment_energy(x, count), expected, rtol=1e-14)
    np.testing.assert_allclose(rc.moment_energy(1.0, 9), 9 * 10 * 19 / 6)
    np.testing.assert_allclose(rc.moment_energy(0.5, 60), 1.5 / 0.5**3, rtol=1e-12)
    slope = jax.grad(lambda v: rc.moment_energy(v, 3))
    np.testing.assert_allclose([slope(0.0), slope(-0.5)], [4, 4 - 9], rtol=1e-14)


def test_information_has_the_energy_as_its_entries():
    z = np.array([-0.9, -0.2, 0.3, 0.95]) * 3
    found = rc.multiset_information(rc.Moments(3.0, "paper"), z, 8)
    expected = rc.moment_energy(np.multiply.outer(z, z) / 9, 8) / 36
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(("z", "releases"), [((-0.4, 0.7), 2), ((-0.5, 0.1, 0.8), 6), ((-0.9, -0.2, 0.3, 0.95), 8)])
def test_bound_and_its_sandwiches(z, releases):
    found = float(rc.multiset_bound(PAPER, z, releases, kappa=1.0))
    np.testing.assert_allclose(found, exact_trace(z, releases), rtol=1e-11)
    least = np.linalg.eigvalsh(np.asarray(rc.multiset_information(PAPER, z, releases)))[0]
    assert 1 / least <= found <= len(z) / least
    each = np.asarray(rc.coordinate_bound(z, releases, kappa=1.0))
    assert rc.interior_bound(z, kappa=1.0).shape == each.shape
    assert np.all(rc.interior_bound(z, kappa=1.0) <= each)
    for bound in (
        rc.determinant_bound(z, releases, kappa=1.0),
        each.sum(),
        rc.trace_bound(PAPER, z, releases, kappa=1.0),
    ):
        assert bound <= found * (1 + 1e-12)


@pytest.mark.slow
def test_the_order_of_the_records_does_not_matter():
    z = np.array([-0.5, 0.1, 0.8])
    for order in itertools.permutations(range(3)):
        found = rc.multiset_bound(PAPER, z[list(order)], 5, kappa=1.0)
        np.testing.assert_allclose(found, rc.multiset_bound(PAPER, z, 5, kappa=1.0), rtol=1e-12)


@pytest.mark.parametrize(("gap", "rtol"), [(1e-3, 1e-12), (1e-6, 1e-9), (1e-8, 1e-7)])
def test_nearly_equal_records_keep_their_digits_in_float64(gap, rtol):
    z = np.array([0.3, 0.3 + gap])
    np.testing.assert_allclose(rc.multiset_bound(PAPER, z, 5, kappa=1.0), exact_trace(z, 5), rtol=rtol)
    np.testing.assert_allclose(rc.pair_bound(z, 5, kappa=1.0), exact_trace(z, 5), rtol=rtol)


@pytest.mark.parametrize("middle", [-0.8, -0.2, 0.3, 0.6])
def test_nearly_equal_records_in_float32(middle):
    z = np.array([middle, middle + 1e-3], np.float32)
    found = rc.multiset_bound(PAPER, z, 5, kappa=np.float32(1))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact_trace(z.astype(float), 5), rtol=1e-3)


@pytest.mark.slow
def test_closed_forms_of_a_pair():
    z = np.array([[-0.4, 0.7], [-0.6, 1.0], [-1.0, 1.0], [0.3, 0.31], [-0.2, 0.2]])
    for releases in (2, 9):
        general = rc.multiset_bound(PAPER, z, releases, kappa=1.0, max_releases=9)
        np.testing.assert_allclose(rc.pair_bound(z, releases, kappa=1.0, max_releases=9), general, rtol=1e-9)
        direct = [
            rc.moment_energy(a * a, releases) * rc.moment_energy(b * b, releases)
            - rc.moment_energy(a * b, releases) ** 2
            for a, b in z
        ]
        np.testing.assert_allclose(rc.pair_determinant(z, releases), direct, rtol=1e-8)
    np.testing.assert_allclose(rc.two_moment_bound(z, kappa=1.0), rc.pair_bound(z, 2, kappa=1.0), rtol=1e-10)
    assert np.isinf(rc.pair_bound(z[0], 1, kappa=1.0))
    assert np.isinf(rc.two_moment_bound([0.3, 0.3], kappa=1.0))


@pytest.mark.slow
def test_the_boundary_pair_falls_with_every_moment_under_every_accountant():
    releases = np.arange(2.0, 41)
    for accountant in ("basic", "zcdp", "gdp", "basic-analytic"):
        noise = ac.kappa(releases=releases, epsilon=1.0, delta=1e-5, accountant=accountant)
        found = np.asarray(rc.boundary_pair_bound(releases, kappa=noise))
        assert np.all(np.diff(found) < 0)
    general = rc.pair_bound(np.array([[-1.0, 1.0]] * 39), releases, kappa=noise)
    np.testing.assert_allclose(found, general, rtol=1e-12)


@pytest.mark.slow
def test_the_two_moment_law_flattens_for_wide_pairs():
    """Not gap^-2: at gap = R the bound is five times what that law, fitted to narrow pairs, says."""
    narrow, wide = (float(rc.two_moment_bound([-g, g], kappa=1.0)) for g in (1e-4, 1.0))
    np.testing.assert_allclose(wide / (narrow * 1e-8), 5, rtol=1e-6)
    mid, gap = 0.1, 0.3

    def bound(mid, gap):
        return rc.two_moment_bound(jnp.stack([mid - gap, mid + gap]), kappa=2.0)

    by_mid, by_gap = jax.grad(bound, (0, 1))(mid, gap)
    np.testing.assert_allclose(by_mid, 4 * 2 * mid / gap**2, rtol=1e-12)
    np.testing.assert_allclose(by_gap, -2 * (1 + 4 * mid**2) / gap**3, rtol=1e-12)


@pytest.mark.slow
def test_when_one_more_moment_lowers_the_bound_on_one_record():
    """It does iff (L + 1)² r^(2L)/F(r², L) exceeds kappa_(L+1)/kappa_L - 1: at r = 0.7 up to L = 1, and 4."""
    releases = np.arange(1.0, 12)
    for accountant, last in (("basic", 1), ("zcdp", 4)):
        noise = ac.kappa(releases=releases, epsilon=1.0, delta=1e-5, accountant=accountant)
        each = np.asarray(rc.coordinate_bound(np.full((11, 1), 0.7), releases, kappa=noise))[:, 0]
        falls = np.diff(each) < 0
        ratio = (releases[1:]) ** 2 * 0.7 ** (2 * releases[:-1]) / rc.moment_energy(np.full(10, 0.49), releases[:-1])
        np.testing.assert_array_equal(falls, ratio > noise[1:] / noise[:-1] - 1)
        np.testing.assert_array_equal(falls, releases[:-1] < last)


# Sensitivities


def test_even_moments_move_half_as_far_as_the_paper_says():
    grid = np.linspace(-1, 1, 201)
    for order, (exact, paper) in enumerate(zip(rc.Moments(1.0).widths(6, 6), PAPER.widths(6, 6), strict=True), start=1):
        moved = np.ptp(grid**order)
        np.testing.assert_allclose(moved, exact, rtol=1e-12)
        assert moved <= paper


@pytest.mark.slow
@pytest.mark.parametrize("sensitivity", ["paper", "exact"])
def test_joint_sensitivity_of_moments_is_the_largest_over_all_swaps(sensitivity):
    family = rc.Moments(2.0, sensitivity)
    grid = np.linspace(-1, 1, 401)
    power = np.arange(1, 10)[:, None]
    width = np.where((power % 2 == 0) & (sensitivity == "exact"), 1, 2)
    scaled = grid**power / width
    moved = np.cumsum((scaled[:, :, None] - scaled[:, None, :]) ** 2, 0).max((1, 2))
    found = np.asarray(family.joint_sensitivity(np.arange(1.0, 10), 9))
    assert np.all(found >= moved * (1 - 1e-12))
    np.testing.assert_allclose(found, moved, rtol=1e-3)
    if sensitivity == "paper":
        np.testing.assert_allclose(found, np.ceil(np.arange(1, 10) / 2))


@each_step
def test_threshold_counts_move_by_the_range_of_their_step(step):
    records = np.linspace(-1, 1, 4001)
    exact, paper = (thresholds(step, "endpoint", sensitivity) for sensitivity in ("exact", "paper"))
    values = np.asarray(exact.features(jnp.asarray(records), 5, 5))
    np.testing.assert_allclose(exact.widths(5, 5), np.ptp(values, 1), rtol=1e-6)
    assert np.all(exact.widths(5, 5) <= 1)
    np.testing.assert_array_equal(paper.widths(5, 5), 2)
    assert np.all(exact.joint_sensitivity(5.0, 5) <= 5 + 1e-12)
    assert np.all(paper.joint_sensitivity(5.0, 5) <= 5 / 4)
    least = min(np.ptp(np.asarray(step.value(jnp.asarray(records - t)))) for t in np.linspace(-1, 1, 101))
    np.testing.assert_allclose(step.least_spread(jnp.ones(())), least, rtol=1e-4)


# Thresholds


@each_step
def test_steps_and_their_integrals(step):
    u = jnp.linspace(-0.97, 1.03, 41)
    np.testing.assert_allclose(step.slope(u), jax.vmap(jax.grad(step.value))(u), rtol=1e-9, atol=1e-12)
    fine = jnp.linspace(-5, 5, 400_001)
    np.testing.assert_allclose(np.trapezoid(step.slope(fine) ** 2, fine), step.energy, rtol=1e-7)
    np.testing.assert_allclose(jnp.max(jnp.abs(step.slope(fine))), step.steepest, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("sensitivity", ["paper", "exact"])
@each_step
def test_the_limit_of_fine_grids_is_the_kernel(step, sensitivity):
    z = np.array([-0.95, 0.1, 0.3])
    family = thresholds(step, sensitivity=sensitivity)

    def integrand(t, j, k):
        slopes = np.asarray(step.slope(jnp.asarray(z[[j, k]] - t)))
        return float(slopes[0] * slopes[1] / family._width(jnp.asarray(t)) ** 2 / 2)

    found = np.asarray(family.limit_information(jnp.asarray(z)))
    np.testing.assert_allclose(found, rc.multiset_information(family, z, 4000) / 4000, rtol=1e-4, atol=1e-6)
    points = [max(-1, z[1] - float(step.bandwidth)), min(1, z[1] + float(step.bandwidth)), z[1]]
    expected, _ = scipy.integrate.quad(integrand, -1, 1, args=(1, 1), points=points, limit=200)
    np.testing.assert_allclose(found[1, 1], expected, rtol=1e-8)


def test_thresholds_lie_where_the_grid_says():
    expected = {
        "midpoint": [-0.75, -0.25, 0.25, 0.75],
        "interior": [-0.6, -0.2, 0.2, 0.6],
        "endpoint": [-1, -1 / 3, 1 / 3, 1],
    }
    for grid, t in expected.items():
        np.testing.assert_allclose(thresholds(STEPS["bump"], grid).thresholds(4, 4), t, atol=1e-15)
    given = thresholds(STEPS["bump"], [0.3, -0.1])
    np.testing.assert_array_equal(given.thresholds(1, 1), [0.3])
    assert thresholds(STEPS["bump"], "endpoint").thresholds(1, 1)[0] == -1


TABLE = {
    ("logistic", (-0.5, 0, 0.5)): ((3, 1184.29), (3, 444.824), (5, 1284.19)),
    ("logistic", (-0.6, 0.1, 0.5)): ((3, 942.589), (3, 629.417), (5, 1812.12)),
    ("logistic", (-0.1, 0, 0.1)): ((7, 49824.9), (7, 37298.5), (9, 62789.2)),
    ("logistic", (-0.95, 0, 0.95)): ((5, 2820.87), (10, 8884.20), (3, 482.511)),
    ("logistic", (-0.98, -0.9, 0.3)): ((14, 117983), (22, 305583), (9, 28267.2)),
    ("smoothstep", (-0.5, 0, 0.5)): ((3, 766.529), (3, 443.567), (5, 1281.17)),
    ("smoothstep", (-0.95, 0, 0.95)): ((5, 1945.48), (8, 5795.92), (3, 460.706)),
    ("bump", (-0.5, 0, 0.5)): ((4, 466.573), (5, 1016.59), (7, 2042.76)),
    ("bump", (-0.95, 0, 0.95)): ((4, 558.251), (4, 528.081), (6, 1156.68)),
}


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["midpoint", "interior", "endpoint"])
@each_step
def test_table_of_best_numbers_of_thresholds(step, grid):
    """Which triples need more thresholds depends on the grid: near the ends, reversed between two of them."""
    kind = next(name for name, other in STEPS.items() if other is step)
    column = ["midpoint", "interior", "endpoint"].index(grid)
    rows = {z: row[column] for (name, z), row in TABLE.items() if name == kind}
    found = scanned(thresholds(step, grid), np.array(list(rows)), "basic", 3, 60)
    counts, values = zip(*rows.values(), strict=True)
    np.testing.assert_array_equal(found.best_releases, counts)
    np.testing.assert_allclose(found.best_bound, values, rtol=5e-6)


@pytest.mark.slow
def test_thresholds_level_off_under_a_linear_accountant():
    """tr K^-1/(2 rho): a best number of releases need not exist, and no certificate claims one."""
    z = jnp.asarray([-0.95, 0.0, 0.95])
    family = thresholds(STEPS["logistic"], "interior")
    found = scanned(family, z, "zcdp", 150, 200)
    assert found.status == rc.ScanStatus.STILL_DECREASING
    assert found.certified_at == 0
    rho = float(ac.zcdp_rho(epsilon=1.0, delta=1e-5, conversion="classic"))
    plateau = np.trace(np.linalg.inv(family.limit_information(z))) / (2 * rho)
    far = rc.multiset_bound(family, z, 20_000, kappa=20_000 / (2 * rho))
    np.testing.assert_allclose(far, plateau, rtol=1e-2)


# The best number of releases


MOMENT_TABLE = {
    (-0.4, 0.7): {
        "basic": (2, 378.0125, 3),
        "zcdp": (2, 182.5967, 4),
        "rdp": (2, 297.7109, 4),
        "gdp": (2, 105.8199, 4),
    },
    (-0.6, 1.0): {"basic": (2, 288.9793, 4), "zcdp": (4, 103.1448, 6), "rdp": (4, 168.1702, 6), "gdp": (4, 59.7753, 6)},
    (-1.0, 1.0): {"basic": (40, 17.86, 0), "zcdp": (40, 0.34758, 0), "rdp": (40, 0.56671, 0), "gdp": (40, 0.20143, 0)},
}


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["basic", "zcdp", "rdp", "gdp"])
def test_table_of_best_numbers_of_moments(accountant):
    found = scanned(PAPER, np.array(list(MOMENT_TABLE)), accountant)
    counts, values, certified = zip(*(row[accountant] for row in MOMENT_TABLE.values()), strict=True)
    np.testing.assert_array_equal(found.best_releases, counts)
    np.testing.assert_allclose(found.best_bound, values, rtol=3e-5)
    np.testing.assert_array_equal(found.certified_at, certified)
    expected = [rc.ScanStatus.CERTIFIED, rc.ScanStatus.CERTIFIED, rc.ScanStatus.STILL_DECREASING]
    np.testing.assert_array_equal(found.status, expected)
    assert "batch (3,)" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("sensitivity", ["paper", "exact"])
def test_certificates_are_never_wrong(sensitivity):
    """What the scan to 40 finds beyond a certificate is never lower; the limit is below every trace."""
    z = np.sort(np.random.default_rng(4).uniform(-1, 1, (200, 3)), -1)
    z[:40, 0], z[20:40, 2] = -1, 1
    for accountant in ("basic", "zcdp"):
        found = scanned(rc.Moments(1.0, sensitivity), z, accountant)
        certified = np.asarray(found.certified_at)
        assert (certified > 0).sum() > 150
        bound = np.where(np.arange(2, 41) >= certified[:, None], found.bound, np.inf)
        assert np.all(bound.min(1)[certified > 0] >= found.best_bound[certified > 0])
        assert np.all(found.lower_limit <= found.bound * (1 + 1e-9))


@pytest.mark.slow
def test_a_certificate_for_thresholds_under_basic_composition():
    found = scanned(thresholds(STEPS["bump"]), [-0.5, 0.0, 0.5], "basic", 3, 60)
    assert found.status == rc.ScanStatus.CERTIFIED
    assert np.all(found.lower_limit <= found.bound)


@pytest.mark.slow
def test_a_scan_says_what_it_found():
    found = scanned(PAPER, [-0.6, 1.0], "basic")
    text = str(found)
    for expected in (
        "certified",
        "best number of releases     2",
        "288.979",
        "van Trees",
        "always answering 0",
        "proven",
    ):
        assert expected in text, text
    dataset = found.to_xarray()
    assert set(dataset.sizes) == {"releases", "record"}
    np.testing.assert_allclose(dataset.bound.sel(releases=2), 288.9793, rtol=1e-6)
    assert "certified" in dataset.status.attrs["meanings"]
    nothing = scanned(PAPER, [0.3, 0.3], "zcdp")
    assert nothing.status == rc.ScanStatus.NOT_IDENTIFIED
    assert rc.Reason.COLLISION.meaning in str(nothing)


# Beside the bound


@pytest.mark.slow
def test_van_trees_bounds_the_bayes_risk_of_the_sorted_pair():
    """The posterior mean under the same prior, two moments: its risk by importance sampling on a grid."""
    z, noise = np.array([-0.4, 0.7]), 0.05
    bound = float(rc.multiset_van_trees_bound(PAPER, z, 2, kappa=noise))
    edges = [(-1.0, 0.15), (0.15, 1.0)]
    axes = [np.linspace(low, high, 102)[1:-1] for low, high in edges]
    prior = [
        np.cos(np.pi * (2 * axis - low - high) / (high - low) / 2) ** 2
        for axis, (low, high) in zip(axes, edges, strict=True)
    ]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    weight = np.multiply.outer(*prior).ravel()
    means = np.stack([grid.mean(1), (grid**2).mean(1)], 1)
    rng = np.random.default_rng(0)
    truth = rng.choice(len(grid), 4000, p=weight / weight.sum())
    y = means[truth] + np.sqrt(noise) * rng.normal(size=(4000, 2))
    posterior = weight * np.exp(-((y[:, None, :] - means) ** 2).sum(-1) / (2 * noise))
    risk = np.mean(np.sum((posterior @ grid / posterior.sum(1, keepdims=True) - grid[truth]) ** 2, 1))
    assert 0.4 * risk < bound < risk
    assert rc.multiset_bound(PAPER, z, 2, kappa=noise) > bound


def test_van_trees_stays_finite_where_nothing_is_identified():
    z = np.array([[0.3, 0.3, 0.3], [0.3, 0.3, 0.5], [-0.4, 0.2, 0.6]])
    found = np.asarray(rc.multiset_van_trees_bound(PAPER, z, 2, kappa=np.array([1.0, 1.0, np.inf])))
    assert np.all(np.isfinite(found) & (found > 0))
    halves = np.array([0.9, 0.5, 0.6]) / 2
    np.testing.assert_allclose(found[2], np.sum(halves**2) / np.pi**2, rtol=1e-12)


# Nothing identified


REASONS = [
    (PAPER, (-0.5, 0.1, 0.8), 3, 1.0, "IDENTIFIED"),
    (PAPER, (-0.5, 0.1, 0.8), 2, 1.0, "TOO_FEW_RELEASES"),
    (PAPER, (-0.5, 0.1, 0.1), 5, 1.0, "COLLISION"),
    (PAPER, (-0.5, 0.1, 0.8), 5, math.inf, "INFEASIBLE_BUDGET"),
    (thresholds(rc.Bump(0.1), [-0.5, -0.45, -0.4]), (-0.5, -0.45, 0.8), 3, 1.0, "NOT_RELEASED"),
    (thresholds(rc.Smoothstep(3.0)), (-0.8, -0.2, 0.3, 0.9), 30, 1.0, "RANK_DEFICIENT"),
]


@pytest.mark.parametrize(("family", "z", "releases", "kappa", "reason"), REASONS[:4])
def test_bounds_are_infinite_for_a_reason(family, z, releases, kappa, reason):
    given = {"kappa": kappa, "max_releases": 5}
    assert rc.Reason(int(rc.multiset_reason(family, z, releases, **given))).name == reason
    assert np.isfinite(rc.multiset_bound(family, z, releases, **given)) == (reason == "IDENTIFIED")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "z", "releases", "kappa", "reason"), REASONS)
def test_infinite_bounds_have_a_zero_gradient(family, z, releases, kappa, reason):
    """Never an exception, never a large number."""
    assert rc.Reason(int(rc.multiset_reason(family, z, releases, kappa=kappa))).name == reason
    bound, slope = jax.value_and_grad(lambda z: rc.multiset_bound(family, z, releases, kappa=kappa))(jnp.asarray(z))
    assert np.isfinite(bound) == (reason == "IDENTIFIED")
    assert np.all(np.isfinite(slope))
    assert np.all(slope == 0) == (reason != "IDENTIFIED")


@pytest.mark.slow
def test_an_infeasible_budget_is_infinite_not_an_error():
    found = scanned(PAPER, [-0.4, 0.7], "rdp", epsilon=0.1)
    assert np.all(np.isinf(found.bound))
    assert np.all(found.reason == rc.Reason.INFEASIBLE_BUDGET)
    assert "No finite noise" in str(found)


# Derivatives, batches, precision


@pytest.mark.slow
def test_bounds_are_differentiable_in_records_budget_and_family():
    def moments(a, b, c, epsilon):
        noise = ac.kappa(releases=6.0, epsilon=epsilon, delta=1e-5, accountant="basic")
        return jnp.log(rc.multiset_bound(PAPER, jnp.stack([-a, b, c]), 6, kappa=noise))

    def steps(a, b, width, t):
        family = rc.Thresholds(rc.Logistic(width), grid=jnp.stack([-t, 0.5 * t, t, 2 * t]))
        return jnp.log(rc.multiset_bound(family, jnp.stack([-a, b]), 4, kappa=2.0))

    def closed(a, b, epsilon):
        noise = ac.kappa(releases=6.0, epsilon=epsilon, delta=1e-5, accountant="zcdp")
        z = jnp.stack([-a, b])
        return (
            jnp.log(rc.pair_bound(z, 6, kappa=noise))
            + jnp.log(rc.determinant_bound(z, 6, kappa=noise))
            + jnp.sum(jnp.log(rc.coordinate_bound(z, 6, kappa=noise)))
            + jnp.log(rc.multiset_van_trees_bound(PAPER, z, 6, kappa=noise))
            + jnp.log(rc.trace_bound(PAPER, z, 6, kappa=noise))
        )

    gradient_is_central_difference(moments, 0.5, 0.1, 0.8, 1.3, rtol=1e-7)
    gradient_is_central_difference(steps, 0.5, 0.3, 0.2, 0.4, rtol=1e-7)
    gradient_is_central_difference(closed, 0.5, 0.3, 1.3, rtol=1e-7)


def test_the_derivative_at_zero_and_across_signs():
    slope = jax.grad(lambda z: rc.multiset_bound(PAPER, z, 5, kappa=1.0))(jnp.asarray([-0.3, 0.0, 0.4]))
    step = 1e-6
    for k in range(3):
        moved = [
            rc.multiset_bound(PAPER, np.array([-0.3, 0.0, 0.4]) + s * step * np.eye(3)[k], 5, kappa=1.0)
            for s in (-1, 1)
        ]
        np.testing.assert_allclose(slope[k], (moved[1] - moved[0]) / (2 * step), rtol=1e-6)


def test_records_budgets_and_numbers_of_releases_in_one_mapped_call():
    z = jnp.asarray(np.random.default_rng(1).uniform(-1, 1, (4, 3)))
    epsilon, releases = jnp.asarray([0.5, 2.0]), jnp.asarray([3, 7, 5])

    def bound(z, epsilon, releases):
        noise = ac.kappa(releases=releases, epsilon=epsilon, delta=1e-5, accountant="basic")
        return rc.multiset_bound(PAPER, z, releases, kappa=noise, max_releases=7)

    over_l = jax.vmap(bound, (None, None, 0))
    mapped = jax.jit(jax.vmap(jax.vmap(over_l, (None, 0, None)), (0, None, None)))(z, epsilon, releases)
    assert mapped.shape == (4, 2, 3)
    noise = ac.kappa(releases=releases, epsilon=epsilon[:, None], delta=1e-5, accountant="basic")
    found = rc.multiset_bound(PAPER, z[:, None, None, :], releases, kappa=noise)
    np.testing.assert_allclose(found, mapped, rtol=1e-11)


@pytest.mark.slow
def test_any_features_of_one_record():
    family = rc.FeatureMeans(lambda x: jnp.stack([x, x**2, x**3]), width=[2.0, 1.0, 2.0])
    z = [-0.5, 0.1, 0.8]
    expected = rc.multiset_bound(rc.Moments(1.0), z, 3, kappa=1.0)
    np.testing.assert_allclose(rc.multiset_bound(family, z, 3, kappa=1.0), expected, rtol=1e-12)
    assert scanned(family, z, "zcdp", 1, 3).status == rc.ScanStatus.STILL_DECREASING


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rc.multiset_bound(PAPER, [0.2, 1.1], 2, kappa=1.0),
            "Argument `records` must lie in [-1, 1], but is 1.1.",
        ),
        (lambda: rc.multiset_bound(PAPER, [0.2], 0, kappa=1.0), "Argument `releases` must lie in [1, inf), but is 0."),
        (lambda: rc.multiset_bound(PAPER, [0.2], 2.5, kappa=1.0), "Argument `releases` must be whole, but is 2.5."),
        (lambda: rc.multiset_bound(PAPER, [0.2], 2, kappa=0.0), "Argument `kappa` must lie in (0, inf], but is 0."),
        (
            lambda: rc.multiset_bound(PAPER, [], 2, kappa=1.0),
            "Argument `records` must hold at least 1 records along their last axis, but is of shape (0,).",
        ),
        (
            lambda: rc.pair_bound([0.1, 0.2, 0.3], 2, kappa=1.0),
            "Argument `records` must hold exactly 2 records along their last axis, but is of shape (3,).",
        ),
        (lambda: rc.Moments(0.0), "Argument `radius` must lie in (0, inf), but is 0."),
        (lambda: rc.Moments(1.0, "tight"), 'Argument `sensitivity` must be "exact" or "paper", but is "tight".'),
        (
            lambda: rc.Thresholds(rc.Bump(0.5), grid="uniform"),
            'Argument `grid` must be "midpoint" or "interior" or "endpoint", but is "uniform".',
        ),
        (
            lambda: rc.Thresholds(rc.Bump(0.5), grid=None),
            'Argument `grid` must be "midpoint", "interior", "endpoint" or the thresholds themselves, but is None.',
        ),
        (lambda: rc.Thresholds(rc.Bump(0.5), grid=[2.0]), "Argument `grid` must lie in [-1, 1], but is 2."),
        (
            lambda: rc.multiset_bound(thresholds(rc.Bump(0.5), [0.1]), [0.2], 2, kappa=1.0),
            "Argument `grid` must hold at least 2 thresholds, one per release, but is of 1.",
        ),
        (lambda: rc.Bump(0.0), "Argument `bandwidth` must lie in (0, inf), but is 0."),
        (
            lambda: scanned(PAPER, [0.2], "basic", 0, 3),
            "Argument `releases` must be the least and the greatest number, two integers from 1 up in order, "
            "but is (0, 3).",
        ),
        (lambda: scanned(PAPER, [0.2], "basic", epsilon=0.0), "Argument `epsilon` must lie in (0, inf), but is 0."),
        (
            lambda: jax.jit(lambda n: rc.multiset_bound(PAPER, [0.2], n, kappa=1.0))(2),
            "Argument `max_releases` must be given where the number of releases is traced, but is None.",
        ),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(ValueError, match="Argument") as found:
        call()
    assert str(found.value) == message
