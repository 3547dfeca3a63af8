"""How much noise each accountant asks for: `perfjax.accounting.kappa` and what that noise really buys."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import close, gradient_is_central_difference
from oracle import cases_of_item

from perfjax import accounting as ac

INF = math.inf
NAMED = {"rdp64": ("rdp", 64.0), "basic_analytic": ("basic-analytic", None)}
EACH = {"basic": None, "zcdp": None, "rdp": 64.0, "gdp": None, "basic-analytic": None}
each_accountant = pytest.mark.parametrize("accountant", EACH)


def kappa_of(name, inputs, releases=1):
    accountant, order = NAMED.get(name, (name, None))
    releases = float(inputs.get("L", releases))
    return ac.kappa(
        releases=releases, epsilon=float(inputs["eps"]), delta=inputs["delta"], accountant=accountant, order=order
    )


def whole_transcript(inputs):
    """The Gaussian-DP parameter of L classic releases under basic composition."""
    return jnp.sqrt(inputs["L"] / kappa_of("basic", inputs))


FOUND = {
    "classic.sigma2": lambda x: kappa_of("basic", x) * x["Delta"] ** 2,
    "basic.kappa": lambda x: kappa_of("basic", x),
    "zcdp.rho": lambda x: ac.zcdp_rho(epsilon=float(x["eps"]), delta=x["delta"], conversion="classic"),
    "zcdp.kappa": lambda x: kappa_of("zcdp", x),
    "rdp.best": lambda x: ac.kappa(
        releases=1.0,
        epsilon=float(x["eps"]),
        delta=x["delta"],
        accountant="rdp",
        order=ac.best_renyi_order(epsilon=float(x["eps"]), delta=x["delta"]),
    ),
    "rdp64.eps": lambda x: ac.renyi_divergence(
        orders=float(x["alpha"]), epsilon=float(x["eps"]), delta=x["delta"], conversion="classic"
    ),
    "rdp64": lambda x: ac.kappa(
        releases=float(x["L"]), epsilon=float(x["eps"]), delta=x["delta"], accountant="rdp", order=float(x["alpha"])
    ),
    "analytic.mu": lambda x: ac.gaussian_mu(epsilon=float(x["eps"]), delta=x["delta"]),
    "analytic.sigma": lambda x: jnp.sqrt(kappa_of("gdp", x)),
    "gdp.kappa": lambda x: kappa_of("gdp", x),
    "basic_analytic.kappa": lambda x: kappa_of("basic_analytic", x),
    "classic.true_delta": lambda x: ac.classic_delta(epsilon=x["eps"], delta=x["delta"]) / x["delta"],
    "classic.break_eps": lambda x: ac.classic_epsilon_limit(x["delta"]),
    "basic.effective_eps": lambda x: ac.effective_epsilon(
        kappa=kappa_of("basic", x), delta=x["delta"], joint_sensitivity=float(x["L"])
    ),
    "transcript.delta": lambda x: ac.gaussian_delta(epsilon=float(x["eps"]), mu=whole_transcript(x)),
    "table": lambda x: [
        kappa_of(name, {"eps": 5, "delta": 1e-5, "L": 2} | x)
        for name in ("basic", "zcdp", "rdp64", "gdp", "basic_analytic")
    ],
}


@pytest.mark.parametrize("case", cases_of_item("reconstruction", 1), ids=lambda case: case["id"])
def test_reference_values(case):
    kind = max((k for k in FOUND if case["id"].removeprefix("calib.").startswith(k)), key=len)
    found = np.asarray(FOUND[kind](case["inputs"]), float)
    np.testing.assert_allclose(found, np.asarray(case["value"], float), rtol=case["rtol"], atol=case["atol"])


RELEASES = np.arange(1.0, 41.0)  # one shape, hence one compilation, for most of the file


def up_to_forty(accountant):
    return np.asarray(
        ac.kappa(releases=RELEASES, epsilon=1.0, delta=1e-5, accountant=accountant, order=EACH[accountant])
    )


def spent_by(kappa):
    return np.asarray(ac.effective_epsilon(kappa=kappa, delta=1e-5, joint_sensitivity=RELEASES))


# One row per number of releases: basic, zcdp, rdp at order 64, gdp, basic-analytic; epsilon that basic spends.
TABLE = {
    1: (23.4721, 24.0154, 39.1555, 13.9176, 13.9176, 0.75098),
    2: (99.4337, 48.0309, 78.3109, 27.8352, 54.0394, 0.49852),
    3: (231.024, 72.0463, 117.466, 41.7528, 120.356, 0.39276),
    5: (667.275, 120.077, 195.777, 69.5881, 331.575, 0.29112),
    10: (2807.73, 240.154, 391.555, 139.176, 1318.03, 0.19412),
    20: (11785.4, 480.309, 783.109, 278.352, 5255.56, 0.12952),
    40: (49359.8, 960.618, 1566.22, 556.704, 20989.1, 0.08642),
}


@pytest.mark.slow
def test_table_of_every_accountant_at_epsilon_1():
    rows, expected = np.array(list(TABLE)) - 1, np.array(list(TABLE.values()))
    for column, accountant in enumerate(EACH):
        np.testing.assert_allclose(up_to_forty(accountant)[rows], expected[:, column], rtol=5e-6)
    np.testing.assert_allclose(spent_by(up_to_forty("basic"))[rows], expected[:, -1], atol=5e-6)


def test_copies_do_harm_under_basic_composition_because_less_is_spent():
    """At the same nominal budget the true epsilon falls with L; a linear accountant spends the same at any L."""
    spent = {name: spent_by(up_to_forty(name)) for name in EACH}
    assert np.all(np.diff(spent["basic"]) < 0)
    assert spent["basic"][-1] < 0.09
    for linear in ("zcdp", "rdp", "gdp"):
        np.testing.assert_allclose(spent[linear], spent[linear][0], rtol=1e-9)
    np.testing.assert_allclose(spent["gdp"], 1.0, rtol=1e-9)
    for name in EACH:
        assert np.all(spent[name] <= 1 + 1e-9)


def test_exact_composition_needs_least_noise():
    epsilon, releases = (x.ravel() for x in np.meshgrid(np.geomspace(0.05, 15, 10), [1.0, 2.0, 7.0, 40.0]))
    found = {
        name: ac.kappa(releases=releases, epsilon=epsilon, delta=1e-5, accountant=name, order=EACH[name])
        for name in EACH
    }
    assert np.all(found["gdp"] <= found["zcdp"])
    assert np.all(found["zcdp"] <= found["rdp"] * (1 + 1e-12))
    assert np.all(found["gdp"] <= found["basic-analytic"] * (1 + 1e-12))
    valid = np.asarray(
        ac.classic_validity(epsilon=epsilon / releases, delta=1e-5 / releases) < ac.ClassicValidity.VIOLATED
    )
    assert 30 < valid.sum() < 40
    assert np.all(found["basic-analytic"][valid] <= found["basic"][valid])


def test_whether_basic_needs_more_noise_depends_on_epsilon_and_the_number_of_releases():
    at_one = [
        float(ac.kappa(releases=1, epsilon=1.0, delta=1e-5, accountant=name, order=EACH[name]))
        for name in ("basic", "zcdp", "rdp")
    ]
    assert at_one == sorted(at_one)
    at_two = [
        float(ac.kappa(releases=2, epsilon=5.0, delta=1e-5, accountant=name, order=EACH[name]))
        for name in ("zcdp", "basic", "rdp")
    ]
    assert at_two == sorted(at_two)


def test_a_fixed_renyi_order_cannot_certify_a_small_epsilon():
    limit = math.log(1e5) / 63
    epsilon = np.array([limit * 0.999, limit * 1.001])
    found = ac.kappa(releases=2, epsilon=epsilon, delta=1e-5, accountant="rdp", order=64.0)
    assert found[0] == INF
    assert 0 < found[1] < INF
    assert jax.grad(lambda e: ac.kappa(releases=2, epsilon=e, delta=1e-5, accountant="rdp", order=64.0))(0.1) == 0
    np.testing.assert_allclose(limit, 0.182745, atol=5e-7)


def test_the_best_renyi_order_is_zcdp_and_no_order_is_better():
    order = ac.best_renyi_order(epsilon=1.0, delta=1e-5)
    np.testing.assert_allclose(order, 1 + math.sqrt(math.log(1e5) / 0.020819938339535462), rtol=1e-12)
    zcdp = ac.kappa(releases=3, epsilon=1.0, delta=1e-5, accountant="zcdp")
    np.testing.assert_allclose(
        ac.kappa(releases=3, epsilon=1.0, delta=1e-5, accountant="rdp", order=order), zcdp, rtol=1e-12
    )
    others = ac.kappa(releases=3, epsilon=1.0, delta=1e-5, accountant="rdp", order=1 + np.geomspace(0.1, 1e3, 200))
    assert np.all(others >= zcdp * (1 - 1e-12))


def test_validity_of_the_classic_calibration():
    epsilon = np.array([0.3, 0.999, 1.0, 2.5, 5.0, 8.4, 8.45, 10.0])
    expected = ["PROVEN"] * 2 + ["NUMERICALLY_VALID"] * 4 + ["VIOLATED"] * 2
    found = [ac.ClassicValidity(int(code)) for code in ac.classic_validity(epsilon=epsilon, delta=1e-5)]
    assert [code.name for code in found] == expected
    assert all(code.meaning.endswith(("below 1", "valid", "claimed one")) for code in found)
    np.testing.assert_allclose(ac.classic_delta(epsilon=10.0, delta=5e-6) / 5e-6, 2.1456, atol=5e-5)
    np.testing.assert_allclose(ac.classic_epsilon_limit(5e-6), 8.5348, atol=5e-5)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1, 0.9])
def test_the_classic_limit_is_where_the_true_delta_is_the_claimed_one(delta):
    limit = ac.classic_epsilon_limit(delta)
    np.testing.assert_allclose(ac.classic_delta(epsilon=limit, delta=delta), delta, rtol=1e-9)
    assert ac.classic_delta(epsilon=limit * 1.01, delta=delta) > delta


def test_where_the_classic_calibration_fails_the_exact_one_adds_more_noise():
    assert ac.kappa(releases=1, epsilon=10.0, delta=5e-6, accountant="gdp") > ac.kappa(
        releases=1, epsilon=10.0, delta=5e-6, accountant="basic"
    )


@pytest.mark.parametrize(
    "accountant",
    ["basic", "zcdp", "rdp", *(pytest.param(x, marks=pytest.mark.slow) for x in ("gdp", "basic-analytic"))],
)
def test_kappa_is_differentiable_in_releases_epsilon_and_delta(accountant):
    def log_kappa(releases, epsilon, delta):
        return jnp.log(
            ac.kappa(releases=releases, epsilon=epsilon, delta=delta, accountant=accountant, order=EACH[accountant])
        )

    gradient_is_central_difference(log_kappa, 3.0, 1.4, 1e-5, rtol=1e-7)
    slope = jax.grad(lambda e: ac.kappa(releases=3.0, epsilon=e, delta=1e-5, accountant="basic"))(1.4)
    np.testing.assert_allclose(
        slope, -2 * ac.kappa(releases=3.0, epsilon=1.4, delta=1e-5, accountant="basic") / 1.4, rtol=1e-12
    )


@pytest.mark.slow
def test_what_is_spent_is_differentiable():
    def spent(kappa, delta, joint):
        return ac.effective_epsilon(kappa=kappa, delta=delta, joint_sensitivity=joint)

    gradient_is_central_difference(spent, 30.0, 1e-5, 2.0, rtol=1e-7)
    gradient_is_central_difference(ac.classic_epsilon_limit, 1e-5, rtol=1e-7)

    def classic(epsilon, delta):
        return ac.classic_delta(epsilon=epsilon, delta=delta)

    gradient_is_central_difference(classic, 2.0, 1e-5, rtol=1e-7)


def test_edges_of_what_is_spent():
    found = ac.effective_epsilon(kappa=np.array([INF, 1.0]), delta=1e-5, joint_sensitivity=np.array([3.0, 0.0]))
    np.testing.assert_array_equal(found, 0.0)


@pytest.mark.slow
@each_accountant
def test_float32_follows_float64(accountant):
    releases = np.array([1, 2, 40], np.float32)
    epsilon, delta = np.float32(1.3), np.float32(1e-5)
    order = None if EACH[accountant] is None else np.float32(64)
    found = ac.kappa(releases=releases, epsilon=epsilon, delta=delta, accountant=accountant, order=order)
    assert found.dtype == jnp.float32
    wide = ac.kappa(
        releases=releases.astype(float),
        epsilon=float(epsilon),
        delta=float(delta),
        accountant=accountant,
        order=EACH[accountant],
    )
    close(found, wide, 2e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, "Argument `epsilon` must lie in (0, inf), but is 0."),
        ({"epsilon": -1.0}, "Argument `epsilon` must lie in (0, inf), but is -1."),
        ({"delta": 0.0}, "Argument `delta` must lie in (0, 1), but is 0."),
        ({"delta": 1.0}, "Argument `delta` must lie in (0, 1), but is 1."),
        ({"releases": 0}, "Argument `releases` must lie in [1, inf), but is 0."),
        ({"accountant": "rdp"}, 'Argument `order` must be given for accountant "rdp" and no other, but is None.'),
        ({"order": 3.0}, 'Argument `order` must be given for accountant "rdp" and no other, but is 3.0.'),
        ({"accountant": "rdp", "order": 1.0}, "Argument `order` must lie in (1, inf), but is 1."),
        (
            {"accountant": "moments"},
            'Argument `accountant` must be "basic" or "zcdp" or "rdp" or "gdp" or "basic-analytic", but is "moments".',
        ),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    given = {"releases": 2, "epsilon": 1.0, "delta": 1e-5, "accountant": "basic"} | arguments
    with pytest.raises(ValueError, match="Argument") as found:
        ac.kappa(releases=given.pop("releases"), epsilon=given.pop("epsilon"), delta=given.pop("delta"), **given)
    assert str(found.value) == message
