"""Designs of releases: optimal shares of a budget, their certificates and derivatives, and telling labels apart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import close, gradient_is_central_difference
from oracle import cases_of_item
from scipy.optimize import minimize_scalar

import perfjax as pj
from perfjax.reconstruction import Moments
from perfjax.reconstruction.design import a_optimal, basic_optimal, bound, c_optimal
from perfjax.reconstruction.design_labels import (
    HybridTranscript,
    closest_records,
    label_risk,
    least_label_risk,
    minimal_shares,
    profiled_separation,
    separated_optimal,
    swap_separations,
)

Z = (-0.5, 0.1, 0.8)
CASES = cases_of_item("reconstruction", 8)


def unit(m, j):
    return np.eye(m)[j]


def hybrid(features=4, target=2, m=3, radius=1.0):
    """Moments of all records, and one mean without the target, at the sensitivities of the paper."""
    return HybridTranscript(Moments(radius, "paper"), features, np.arange(m)[None] != target)


def of_case(inputs):
    return hybrid(inputs["L_feat"], inputs["target"], len(inputs["z"]), float(inputs["R"]))


def rows_of(inputs):
    return of_case(inputs).rows(inputs["z"]), unit(len(inputs["z"]), inputs.get("target", 0))


def moment_rows(inputs):
    return hybrid(inputs["L_feat"]).rows(inputs["z"])[: inputs["L_feat"]]


def trace(rows, shares):
    return sum(bound(rows, shares, unit(rows.shape[1], k)) for k in range(rows.shape[1]))


def fewest(inputs):
    """The least bound over counts of releases, uniformly split, by basic composition."""
    z, eps, delta = inputs["z"], inputs["eps"], inputs["delta"]
    rows, contrast = hybrid(5).rows(z), unit(3, inputs["target"])
    counts = np.array(
        [
            [*(np.arange(5) < features) + np.array([inside, 0, 0, 0, 0]), outside]
            for features in range(1, 6)
            for inside in range(4)
            for outside in range(1, 4)
        ],
        float,
    )
    unscaled = jax.vmap(lambda count: bound(rows, count, contrast))(counts)
    found = unscaled * pj.accounting.kappa(releases=counts.sum(axis=1), epsilon=eps, delta=delta, accountant="basic")
    best = counts[np.argmin(found)]
    assert best.tolist() == [1.0] * inputs["L_feat"] + [0.0] * (5 - inputs["L_feat"]) + [inputs["L_out"]]
    return np.min(found)


def labelled_errors(z, shares, kappa, target, trials):
    """Squared errors for the target of the likeliest records in the box, labels kept."""
    transcript = hybrid(len(shares) - 1, target)
    shares = jnp.asarray(shares)
    present = shares > 1e-12
    std = jnp.where(present, jnp.sqrt(kappa / jnp.where(present, shares, 1)), 0)
    noise = std * jax.random.normal(jax.random.key(0), (trials, shares.size))

    def one(noise):
        found = closest_records(transcript, transcript.values(jnp.asarray(z)) + noise, shares, low=-1.0, high=1.0)
        return (found[target] - z[target]) ** 2

    return np.asarray(jax.jit(lambda noise: jax.lax.map(one, noise, batch_size=200))(noise))


def found(case):
    """What perfjax says to a case of the oracle."""
    inputs, kind = case["inputs"], case["id"].removeprefix("hybrid.")
    if kind.startswith(("copt.linear", "inout")):
        return c_optimal(*rows_of(inputs)).value
    if kind == "copt.autodiff":
        rows, contrast = rows_of(inputs)
        return minimal_shares(lambda shares: bound(rows, shares, contrast), len(rows)).value
    if kind == "grad":
        rows, contrast = rows_of(inputs)
        return jax.grad(lambda shares: bound(rows, shares, contrast))(jnp.asarray([0.1, 0.2, 0.3, 0.2, 0.2]))
    if kind.startswith("aopt"):
        rows = moment_rows(inputs)
        return a_optimal(rows).value if kind == "aopt.multiset" else trace(rows, np.full(len(rows), 1 / len(rows)))
    if kind.startswith("copt.basic"):
        return basic_optimal(*rows_of(inputs)).value
    if kind.startswith("proxy"):
        kappa = 1 / (2 * inputs["rho_tot"])
        return least_label_risk(of_case(inputs), inputs["z"], target=inputs["target"], kappa=kappa).value
    if kind.startswith("integer"):
        return fewest(inputs)
    kappa, z, shares = 1 / (2 * inputs["rho_tot"]), inputs["z"], inputs["shares"]
    transcript = hybrid(len(shares) - 1)
    if kind == "profiled_separation":
        return profiled_separation(transcript, z, shares, kappa=kappa, low=-1.0, high=[1.0, 1.0, 0.45])
    errors = labelled_errors(z, shares, kappa, inputs["target"], 2000)
    if kind == "mc.rho2000":
        local = kappa * bound(transcript.rows(z), shares, unit(3, 2))
        close(local, case["value"], 1e-9)
        assert abs(errors.mean() - local) < 4 * errors.std() / np.sqrt(errors.size)
    return errors.mean()


def cost(case):
    return pytest.mark.slow if ".mc." in case["id"] else ()


@pytest.mark.parametrize("case", [pytest.param(c, marks=cost(c), id=c["id"]) for c in CASES])
def test_reference_values(case):
    np.testing.assert_allclose(found(case), case["value"], rtol=case["rtol"], atol=case["atol"])


# Numbers of the example, in its own words.


def test_features_carry_the_precision_and_a_small_share_completes_the_direction():
    design = c_optimal(hybrid().rows(Z), unit(3, 2))
    np.testing.assert_allclose(design.shares, [0, 0, 0.4058, 0.5797, 0.0145], atol=5e-5)
    separation = swap_separations(hybrid(), Z, design.shares, target=2, kappa=1 / 400)
    assert separation[1] < 1  # at rho = 200 the labels are anybody's guess
    np.testing.assert_allclose(c_optimal(hybrid(target=0).rows(Z), unit(3, 0)).value, 4.900358, rtol=1e-6)
    assert c_optimal(hybrid(target=0).rows(Z), unit(3, 0)).shares[-1] == 0
    np.testing.assert_allclose(c_optimal(hybrid(1).rows(Z), unit(3, 2)).value, 16, rtol=1e-12)
    rows = hybrid().rows(Z)
    fixed = minimize_scalar(
        lambda x: float(bound(rows, [0, 0, 0.7 * x, 0.7 * (1 - x), 0.3], unit(3, 2))), bounds=(0, 1), method="bounded"
    )
    np.testing.assert_allclose(fixed.fun, 1.436042, rtol=1e-6)


def test_shares_of_the_whole_multiset():
    design = a_optimal(hybrid().rows(Z)[:4])
    np.testing.assert_allclose(design.shares, [0.3627, 0.2696, 0.3678, 0], atol=5e-5)
    assert design.gap <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rho", "shares", "risk"),
    [
        pytest.param(4.930918875, (0, 0, 0.199, 0.285, 0.516), 0.771961, marks=pytest.mark.slow),
        (200.0, (0, 0, 0.176, 0.252, 0.571), 0.00785958),
    ],
)
def test_telling_labels_apart_takes_half_of_the_budget(rho, shares, risk):
    design = least_label_risk(hybrid(), Z, target=2, kappa=1 / (2 * rho))
    np.testing.assert_allclose(design.value, risk, rtol=1e-6)
    np.testing.assert_allclose(design.shares, shares, atol=6e-4)
    assert design.gap < 1e-6
    np.testing.assert_allclose(label_risk(hybrid(), Z, design.shares, target=2, kappa=1 / (2 * rho)), design.value)


def cusped(shares):
    """Least, 1, at (.2, .3, .5); slopes grow without bound there, and a descent steps over it."""
    return 1 + jnp.sum(jnp.sqrt(jnp.abs(shares - jnp.asarray([0.2, 0.3, 0.5]))))


@pytest.mark.slow
def test_further_steps_never_give_worse_shares():
    values = [float(minimal_shares(cusped, 3, steps=steps).value) for steps in (9, 10, 12)]
    assert values[1] <= values[0] * (1 + 1e-9)
    assert values[2] <= values[1] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("dtype", "accuracy"), [("float64", 1e-10), pytest.param("float32", 1e-4, marks=pytest.mark.slow)]
)
def test_a_gap_certifies_where_only_one_type_has_a_share(dtype, accuracy):
    """x_1 alone: the first type gives it for V = 1. The slopes by the others' shares depend on how these vanish."""
    a = jnp.asarray([[1.0, 0.0], [3.0, 1.0], [3.2, 2.0]], dtype)

    def variance(shares):
        (p, q), (_, r) = a.T @ (shares[:, None] * a)
        return r / (p * r - q * q)

    design = minimal_shares(variance, 3, dtype=dtype)
    np.testing.assert_allclose(design.value, 1, rtol=accuracy)
    assert design.gap < accuracy
    early = minimal_shares(variance, 3, steps=2, dtype=dtype)
    assert early.value * (1 - early.gap) <= 1 + accuracy
    assert early.gap > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "accuracy"), [("float64", 1e-9), ("float32", 2e-4)])
def test_shares_beside_a_fixed_one(dtype, accuracy):
    """30 % of the budget on the mean without the target: 1.436042, however many steps."""
    rows, contrast = jnp.asarray(hybrid().rows(Z), dtype), jnp.asarray(unit(3, 2), dtype)

    def risk(others):
        return bound(rows, jnp.append(0.7 * others, jnp.asarray(0.3, dtype)), contrast)

    exact = minimize_scalar(
        lambda x: float(bound(hybrid().rows(Z), [0, 0, 0.7 * x, 0.7 * (1 - x), 0.3], unit(3, 2))),
        bounds=(0, 1),
        method="bounded",
        options={"xatol": 1e-10},
    ).fun
    np.testing.assert_allclose(exact, 1.436042, atol=5e-7)
    for steps in (60, 300):
        design = minimal_shares(risk, 4, steps=steps, dtype=dtype)
        np.testing.assert_allclose(design.value, exact, rtol=accuracy)
        assert design.gap < accuracy


@pytest.mark.slow
def test_the_gap_of_a_label_risk_certifies():
    """Target 0.1: the sum of all and the mean without it get half of the budget each, V = 16, and labels show."""
    kappa = 1 / 4000
    design = least_label_risk(hybrid(target=1), Z, target=1, kappa=kappa)
    np.testing.assert_allclose(design.shares, [0.5, 0, 0, 0, 0.5], atol=1e-6)
    np.testing.assert_allclose(design.value, 16 * kappa, rtol=2e-9)  # wrong labels add 4e-12
    assert design.gap < 1e-9


def test_a_label_risk_is_convex_in_the_shares():
    """On which its certificate rests: on a line it lies below its chord, and above its tangent."""
    one, other = np.random.default_rng(5).dirichlet(np.full(5, 0.5), (2, 200))
    risk = jax.jit(jax.vmap(lambda b: label_risk(hybrid(), Z, b, target=2, kappa=1 / 400)))
    middle = risk((one + other) / 2)
    assert np.all(middle <= (risk(one) + risk(other)) / 2 * (1 + 1e-12))


@pytest.mark.parametrize("separation", [0.0, 2.0, 4.0])
def test_the_gap_of_separated_shares_certifies(separation):
    """Target 0.1: half of the budget on the mean without it separates the nearest swap by more than 4 anyway."""
    design = separated_optimal(hybrid(target=1), Z, target=1, kappa=1 / 400, separation=separation)
    np.testing.assert_allclose(design.value, 16 / 400, rtol=1e-9)
    assert design.gap < 1e-9


def test_at_a_small_budget_no_design_tells_labels_apart():
    rho = float(pj.accounting.zcdp_rho(epsilon=1.0, delta=1e-5, conversion="classic"))
    everything = swap_separations(hybrid(), Z, [0, 0, 0, 0, 1.0], target=2, kappa=1 / (2 * rho))
    assert np.all(everything < 0.2)


def test_a_swap_is_an_upper_bound_on_the_distance():
    shares, kappa = np.array([0, 0, 0.1764, 0.2521, 0.5715]), 1 / 400
    swaps = swap_separations(hybrid(), Z, shares, target=2, kappa=kappa)
    np.testing.assert_allclose(swaps[1], 5.292, rtol=1e-3)
    assert swaps[2] == 0
    profiled = profiled_separation(hybrid(), Z, shares, kappa=kappa, low=-1.0, high=[1, 1, 0.1])
    assert profiled <= swaps[1]
    box = profiled_separation(hybrid(), Z, shares, kappa=kappa, low=-1.0, high=1.0)
    np.testing.assert_allclose(box, 0, atol=1e-6)  # the truth itself lies in it


# Correct and honest, on other problems.

RANDOM = np.random.default_rng(3).normal(size=(8, 7, 3))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_shares_beat_the_optimal_ones(seed):
    rows, contrast = RANDOM[seed], RANDOM[seed + 4][0]
    shares = np.random.default_rng(seed).dirichlet(np.full(7, 0.3), 20_000)
    least = np.asarray(jax.vmap(lambda b: bound(rows, b, contrast))(shares)).min()
    design = c_optimal(rows, contrast)
    assert least >= design.value * (1 - 1e-9)
    assert least < design.value * 1.3
    np.testing.assert_allclose(bound(rows, design.shares, contrast), design.value, rtol=1e-6)
    assert abs(design.gap) < 1e-12
    gradient = minimal_shares(lambda b: bound(rows, b, contrast), 7)
    np.testing.assert_allclose(gradient.value, design.value, rtol=1e-4)
    traces = np.asarray(jax.vmap(lambda b: trace(rows, b))(shares[:5000])).min()
    whole = a_optimal(rows)
    assert traces >= whole.value
    np.testing.assert_allclose(trace(rows, whole.shares), whole.value, rtol=1e-9)
    early = a_optimal(rows, max_steps=5)
    assert early.value * (1 - early.gap) <= whole.value <= early.value


def test_basic_composition_is_no_better_than_any_shares_of_it():
    rows, contrast, counts = RANDOM[0], RANDOM[4][0], np.array([2.0, 2, 3, 4, 2, 4, 3])
    design = basic_optimal(rows, contrast, counts)
    u = np.random.default_rng(0).dirichlet(np.full(7, 0.3), 20_000)
    values = np.asarray(jax.vmap(lambda b: bound(rows, b, contrast))(u**2 / counts))
    assert values.min() >= design.value * (1 - 1e-9)
    assert values.min() < design.value * 1.5
    np.testing.assert_allclose(bound(rows, design.shares**2 / counts, contrast), design.value, rtol=1e-9)
    assert basic_optimal(rows, contrast).value < design.value  # repeats only lose


def test_an_in_and_an_out_mean_follow_the_cube_root_law():
    rows = hybrid(1).rows(Z)
    found = basic_optimal(rows, unit(3, 2), [3.0, 5.0]).value
    np.testing.assert_allclose(found, 4 * (3 ** (1 / 3) + 5 ** (1 / 3)) ** 3, rtol=1e-9)


@pytest.mark.slow
def test_separation_is_bought_with_precision():
    design = functools.partial(separated_optimal, hybrid(), Z, target=2, kappa=1 / 400)
    free = design(separation=0.0)
    np.testing.assert_allclose(free.value, c_optimal(hybrid().rows(Z), unit(3, 2)).value / 400, rtol=1e-6)
    apart = design(separation=5.0)
    assert apart.gap < 1e-6
    assert apart.value > 1.5 * free.value
    separations = swap_separations(hybrid(), Z, apart.shares, target=2, kappa=1 / 400)
    np.testing.assert_allclose(np.delete(separations, 2).min(), 5, rtol=1e-7)
    # All of the budget on the mean without the target separates the nearest swap by 7.
    assert np.isinf(design(separation=7.1).value)
    assert np.all(np.isnan(design(separation=7.1).shares))
    shares = np.random.default_rng(0).dirichlet(np.full(5, 0.4), 20_000)
    nearest = jax.vmap(lambda b: jnp.sort(swap_separations(hybrid(), Z, b, target=2, kappa=1 / 400))[1])(shares)
    values = np.asarray(jax.vmap(lambda b: bound(hybrid().rows(Z), b, unit(3, 2)))(shares))[nearest >= 5] / 400
    assert len(values) > 1000
    assert values.min() >= apart.value * (1 - 1e-9)


def test_what_no_shares_identify():
    rows = hybrid(3).rows(Z)[:2]
    for design in (c_optimal(rows, unit(3, 0)), basic_optimal(rows, unit(3, 0)), a_optimal(rows)):
        assert np.isinf(design.value)
        assert np.all(np.isnan(design.shares))
    assert np.isinf(a_optimal(hybrid(4).rows([0.3, 0.3, 0.8])[:4]).value)  # two equal records
    assert np.isinf(bound(rows, [0.5, 0.5], unit(3, 0)))
    close(c_optimal(rows, [1.0, 1.0, 1.0]).value, 4, 1e-9)  # their sum is known all the same
    close(basic_optimal(rows, [1.0, 1.0, 1.0]).value, 4, 1e-9)


# Derivatives and transforms.


VALUES = {
    "c": lambda z: c_optimal(rows_at(z), unit(3, 2)).value,
    "share": lambda z: c_optimal(rows_at(z), unit(3, 2)).shares[4],
    "basic": lambda z: basic_optimal(rows_at(z), unit(3, 2)).value,
    "a": lambda z: a_optimal(rows_at(z)[:3]).value,
    "risk": lambda z: label_risk(hybrid(), z, np.array([0.1, 0.2, 0.3, 0.1, 0.3]), target=2, kappa=0.02),
}


def rows_at(z):
    return jax.jacfwd(hybrid().values)(z)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "c" else pytest.mark.slow) for name in VALUES])
def test_derivatives_are_differences(name):
    value, slope = VALUES[name], jax.jit(jax.grad(VALUES[name]))(jnp.asarray(Z))
    value = jax.jit(value)
    for k in range(3):
        step = 1e-4 * unit(3, k)
        ends = [float(value(jnp.asarray(Z) + h * step)) for h in (1, -1, 2, -2)]
        difference = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / 12e-4
        np.testing.assert_allclose(slope[k], difference, rtol=1e-6, atol=1e-8)
    assert np.sum(np.abs(slope) > 1e-3) >= 2  # a share does not depend on the target itself


@pytest.mark.study
def test_a_profiled_separation_and_the_closest_records_have_derivatives():
    shares = jnp.asarray([0.1, 0.2, 0.3, 0.1, 0.3])

    def apart(kappa, high):
        ends = jnp.ones(3).at[2].set(high)
        return profiled_separation(hybrid(), Z, shares, kappa=kappa, low=-1.0, high=ends)

    gradient_is_central_difference(apart, 0.01, 0.45, rtol=1e-5)
    released = hybrid().values(jnp.asarray(Z))

    def record(shift):
        return closest_records(hybrid(), released * shift, shares, low=-1.0, high=1.0)[2]

    gradient_is_central_difference(record, 1.01, rtol=1e-4)


def test_many_problems_at_once():
    rows, contrasts = jnp.asarray(RANDOM[:4]), jnp.asarray(RANDOM[4:, 0])
    for solve in (c_optimal, basic_optimal):
        together = jax.jit(jax.vmap(solve))(rows, contrasts)
        for k in range(4):
            alone = solve(rows[k], contrasts[k])
            np.testing.assert_allclose(together.value[k], alone.value, rtol=1e-9)
            np.testing.assert_allclose(together.shares[k], alone.shares, atol=1e-9)


@pytest.mark.parametrize("solve", [c_optimal, basic_optimal, lambda rows, contrast: a_optimal(rows)])
def test_float32_in_float32_out(solve):
    rows = jnp.asarray(hybrid().rows(Z), "float32")
    design = solve(rows, jnp.asarray(unit(3, 2), "float32"))
    assert design.value.dtype == "float32"
    np.testing.assert_allclose(design.value, solve(rows.astype("float64"), unit(3, 2)).value, rtol=1e-3)


def test_a_design_says_what_it_is():
    design = c_optimal(hybrid().rows(Z), unit(3, 2))
    assert "shares" in str(design)
    assert design.to_xarray().shares.dims == ("type",)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: c_optimal([1.0, 2.0], [1.0]), "`rows` must have a row for each type"),
        (lambda: c_optimal([[1.0, 2.0]], [1.0]), "`contrast` must have 2 numbers"),
        (lambda: bound([[1.0]], [-1.0], [1.0]), r"`shares` must lie in \[0, inf\), but is -1"),
        (lambda: bound([[1.0]], [1.0, 1.0], [1.0]), "`shares` must have 1 numbers"),
        (lambda: basic_optimal([[1.0]], [1.0], [0.5]), r"`counts` must lie in \[1, inf\), but is 0\.5"),
        (lambda: basic_optimal(np.ones((60, 10)), np.ones(10)), "`rows` must make at most 200000 sets"),
        (lambda: a_optimal([[1.0]], max_steps=0), "`max_steps` must be an integer of at least 1"),
        (lambda: HybridTranscript(Moments(1.0), 2, [[1, 0]]), "`members` must say of each record"),
        (lambda: HybridTranscript(Moments(1.0), 2, [[False, False]]), "`members` must have a record in every mean"),
        (lambda: hybrid().rows([0.1, 0.2]), "`records` must be 3"),
        (lambda: hybrid().rows([0.1, 0.2, 1.5]), r"`records` must lie in \[-1, 1\], but is 1\.5"),
        (lambda: label_risk(hybrid(), Z, np.ones(5), target=3, kappa=1.0), "`target` must be below 3"),
        (lambda: label_risk(hybrid(), Z, np.ones(4), target=0, kappa=1.0), "`shares` must be 5"),
        (lambda: label_risk(hybrid(), Z, np.ones(5), target=0, kappa=0.0), r"`kappa` must lie in \(0, inf\)"),
        (
            lambda: profiled_separation(hybrid(), Z, np.ones(5), kappa=1.0, low=0.5, high=0.1),
            "`low` must be at most `high`",
        ),
        (lambda: closest_records(hybrid(), [1.0], np.ones(5), low=-1.0, high=1.0), "`released` must be 5"),
    ],
)
def test_bad_input_is_one_clear_line(make, words):
    with pytest.raises(ValueError, match=words):
        make()
