"""Every reference value about reconstruction from independent code, at its own tolerance."""

import re
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from oracle import cases_of_item

import perfjax.reconstruction as rc
from perfjax import accounting as ac

NAMED = {"rdp64": ("rdp", 64.0), "basic_analytic": ("basic-analytic", None)}
STEPS = {"logistic": rc.Logistic, "smoothstep": rc.Smoothstep, "bump": rc.Bump}
NOTHING_ELSE = np.zeros((1, 0))


def number(inputs, *names):
    return [float(inputs[name]) for name in names]


def kappa(inputs, releases=None):
    accountant, order = NAMED.get(inputs["accountant"], (inputs["accountant"], None))
    releases = float(inputs["L"]) if releases is None else releases
    return ac.kappa(
        releases=releases, epsilon=float(inputs["eps"]), delta=inputs["delta"], accountant=accountant, order=order
    )


def scan(family, inputs, low, high):
    accountant, order = NAMED.get(inputs["accountant"], (inputs["accountant"], None))
    return rc.scan_releases(
        family,
        inputs["z"],
        releases=(low, high),
        epsilon=float(inputs["eps"]),
        delta=inputs["delta"],
        accountant=accountant,
        order=order,
    )


def moments(inputs):
    """The paper's calibration, unless a case asks for the exact one."""
    exact = inputs.get("even_sensitivity") == "R^l/m"
    return rc.Moments(float(inputs.get("R", 1)), "exact" if exact else "paper")


# Fisher geometry


def jacobians(inputs):
    precision = np.asarray(inputs.get("precisions", 1.0), float)
    covariance = 1 / np.broadcast_to(precision, (len(inputs["J_theta"]),))
    return [rc.whitened(np.asarray(inputs[name], float), covariance) for name in ("J_theta", "J_eta")]


def new_rows(inputs):
    root = np.sqrt(inputs.get("new_precision", 1.0))
    return {name: root * np.asarray(inputs[name], float) for name in ("new_theta", "new_eta")}


def gain(inputs):
    new = new_rows(inputs)
    return rc.information_gain(*jacobians(inputs), new_target=new["new_theta"], new_nuisance=new["new_eta"])


def worst_gain_of_random_problems(inputs):
    """Difference between the gain and the change of the profiled information, over problems of every rank."""
    rng, worst = np.random.default_rng(inputs["seed"]), 0.0
    for _ in range(20):
        rows, new, q, rank = 5, 2, 4, rng.integers(1, 5)
        basis = rng.normal(size=(rank, q))
        inside = rng.random() < 0.5
        t, g = rng.normal(size=(rows, 2)), rng.normal(size=(new, 2))
        h = rng.normal(size=(rows, rank)) @ basis
        e = rng.normal(size=(new, rank)) @ basis if inside else rng.normal(size=(new, q))
        both = rc.profiled_information(np.concatenate([t, g]), np.concatenate([h, e]))
        found = rc.information_gain(t, h, new_target=g, new_nuisance=e)
        worst = max(worst, float(jnp.max(jnp.abs(both - rc.profiled_information(t, h) - found))))
    return worst


def nonlinear(inputs):
    def release(x):
        return jnp.tanh(jnp.sum(jnp.sin(jnp.arange(1.0, 5.0)[:, None] * x), axis=1))

    jacobian = rc.transcript_jacobian(release, inputs["x"], covariance=1.0)
    return rc.profiled_information(*rc.split_columns(jacobian, 0))


FISHER = {
    "fisher.schur": lambda x: rc.profiled_information(*jacobians(x)),
    "fisher.projector": lambda x: rc.profiled_information(*jacobians(x)),
    "fisher.matrix": lambda x: rc.profiled_information(*jacobians(x)),
    "fisher.update": gain,
    "fisher.update.random_vs_formula": worst_gain_of_random_problems,
    "fisher.nonlinear": nonlinear,
    "fisher.estimable": lambda x: rc.contrast_bound(x["J"], np.zeros((len(x["J"]), 0)), np.asarray(x["c"], float)),
}

# One labelled record


def all_coordinates(inputs):
    """Risk of IN/OUT releases with every record of the background as a nuisance of its own."""
    n = inputs["n"]
    rows = [[1 / (n + 1)] * (n + 1)] * inputs["L_in"] + [[0.0] + [1 / n] * n] * inputs["L_out"]
    variances = [inputs["s_in"] ** 2] * inputs["L_in"] + [inputs["s_out"] ** 2] * inputs["L_out"]
    bound = rc.target_bound(*rc.split_columns(rc.whitened(rows, variances), 0))
    closed = rc.in_out_risk(
        n,
        in_releases=inputs["L_in"],
        out_releases=inputs["L_out"],
        in_variance=inputs["s_in"] ** 2,
        out_variance=inputs["s_out"] ** 2,
    )
    np.testing.assert_allclose(bound, closed, rtol=1e-12)
    return bound


def uniform(inputs, accountant):
    half = inputs["L"] / 2
    noise = kappa({**inputs, "accountant": accountant})
    split = rc.calibrated_risk(noise, inputs.get("L_in", half), inputs.get("L_out", half), width=float(inputs["Delta"]))
    if inputs.get("L_in", half) == half:
        np.testing.assert_allclose(rc.balanced_risk(noise, inputs["L"], width=float(inputs["Delta"])), split)
    return split


def split(inputs):
    return rc.in_out_split(
        float(inputs["L"]), float(inputs["n"]), in_variance=inputs["s_in2"], out_variance=inputs["s_out2"]
    )


def cube_root(inputs, free=False):
    l_in, l_out, epsilon, width = number(inputs, "L_in", "L_out", "eps", "Delta")
    if free:
        in_delta, out_delta = rc.basic_free_delta(l_in, l_out, delta=inputs["delta"])
    elif "delta" in inputs:
        in_delta = out_delta = inputs["delta"] / (l_in + l_out)
    else:
        in_delta, out_delta = inputs["delta_in"], inputs["delta_out"]
    deltas = {"in_delta": in_delta, "out_delta": out_delta}
    risk = rc.basic_allocation_risk(l_in, l_out, epsilon=epsilon, width=width, **deltas)
    in_epsilon, out_epsilon = rc.basic_allocation(l_in, l_out, epsilon=epsilon, **deltas)
    np.testing.assert_allclose(l_in * in_epsilon + l_out * out_epsilon, epsilon, rtol=1e-12)
    direct = [
        ac.kappa(releases=1.0, epsilon=e, delta=d, accountant="basic") * width**2 / count
        for e, d, count in ((in_epsilon, in_delta, l_in), (out_epsilon, out_delta, l_out))
    ]
    np.testing.assert_allclose(risk, sum(direct), rtol=1e-9)
    return risk


def blue(inputs):
    """Mean squared error of the estimate over simulated transcripts."""
    n, total = inputs["n"], inputs["L"]
    noise = float(kappa({**inputs, "accountant": "basic"}))
    rng, half = np.random.default_rng(1), total // 2
    background, target = rng.uniform(-0.5, 0.5, n), 0.3
    means = [
        mean + rng.normal(size=inputs["trials"]) * np.sqrt(noise / half) / size
        for mean, size in (((background.sum() + target) / (n + 1), n + 1), (background.mean(), n))
    ]
    return np.mean((np.asarray(rc.in_out_estimate(*means, n)) - target) ** 2)


LABELLED = {
    "inout.lemma1": lambda x: rc.one_contrast_information(*number(x, "a", "c", "d", "e", "m")),
    "inout.all_subsets": lambda x: rc.subset_means_information(x["m"], x["subset"]),
    "inout.mse": all_coordinates,
    "inout.uniform.basic": lambda x: uniform(x, "basic"),
    "inout.uniform.zcdp": lambda x: uniform(x, "zcdp"),
    "inout.uniform.rdp64": lambda x: uniform(x, "rdp64"),
    "inout.uniform.gdp": lambda x: uniform(x, "gdp"),
    "inout.split.continuous": lambda x: split(x)[0],
    "inout.split.integer": lambda x: split(x)[1],
    "inout.cuberoot": cube_root,
    "inout.cuberoot.delta_optimised": lambda x: cube_root(x, free=True),
    "inout.zcdp.nonuniform": lambda x: rc.additive_risk(
        ac.kappa(releases=1.0, epsilon=float(x["eps"]), delta=x["delta"], accountant="zcdp"), width=float(x["Delta"])
    ),
    "inout.blue": blue,
}

# The multiset: moments


def bound(inputs):
    """By QR, and in closed form where there are two records."""
    releases, noise = inputs.get("L", 2), kappa({"L": 2, **inputs})
    found = rc.multiset_bound(moments(inputs), inputs["z"], releases, kappa=noise)
    if len(inputs["z"]) == 2:
        radius = float(inputs["R"])
        closed = rc.pair_bound(inputs["z"], releases, kappa=noise, radius=radius)
        np.testing.assert_allclose(closed, found, rtol=1e-11)
        if releases == 2:
            np.testing.assert_allclose(rc.two_moment_bound(inputs["z"], kappa=noise, radius=radius), found, rtol=1e-11)
    return found


@cache
def _least(z, radius, exact, accountant, epsilon, delta, low, high):
    inputs = {"z": list(z), "R": radius, "accountant": accountant, "eps": epsilon, "delta": delta}
    family = rc.Moments(float(radius), "exact" if exact else "paper")
    # Three times over: the shape that other tests scan as well, compiled once.
    found = scan(family, inputs | {"z": np.broadcast_to(z, (3, len(z)))}, low, high)
    return found.best_releases[0], found.best_bound[0], found.bound[0, -1], found.certified_at[0]


def least(inputs):
    exact = "even_sensitivity" in inputs
    names = ("R", "accountant", "eps", "delta", "Lmin", "Lmax")
    r, accountant, epsilon, delta, low, high = (
        ({"R": 1, "Lmin": 2, "Lmax": 40} | inputs)[names[0]],
        *(({"Lmin": 2, "Lmax": 40} | inputs)[name] for name in names[1:]),
    )
    return _least(tuple(inputs["z"]), r, exact, accountant, epsilon, delta, low, high)


def least_and_last(inputs):
    return least(inputs)[:3]


def trace_step(inputs):
    """By two factorisations, and by the rank-one formula."""
    family, z, last = moments(inputs), inputs["z"], inputs["L"]
    now, after = (rc.multiset_bound(family, z, count, kappa=1.0) for count in (last, last + 1))
    row = rc.transcript_rows(family, z, last + 1)[-1]
    solved = np.linalg.solve(np.asarray(rc.multiset_information(family, z, last)), np.asarray(row))
    np.testing.assert_allclose(now - after, solved @ solved / (1 + row @ solved), rtol=1e-9)
    return now - after


def power_sum(inputs):
    family, noise = moments(inputs), kappa(inputs)
    rows = rc.transcript_rows(family, inputs["z"], inputs["L"])
    contrast = np.asarray(inputs["c"], float)
    return noise * rc.contrast_bound(rows, np.zeros((inputs["L"], 0)), contrast)


def canonical(inputs):
    """Mean squared error of the closed-form estimate over the bound, at one sigma for both moments."""
    z, sigma = np.asarray(inputs["z"]), inputs["sigma"]
    means = np.array([z.mean(), np.mean(z**2)])
    noise = np.random.default_rng(2).normal(size=(inputs["trials"], 2)) * sigma
    error = np.asarray(rc.two_moment_estimate(means + noise)) - z
    return np.mean(np.sum(error**2, -1)) / float(rc.two_moment_bound(z, kappa=sigma**2))


MOMENTS = {
    "poly.F": lambda x: rc.moment_energy(x.get("x", -1.0), x["L"]),
    "poly.D": lambda x: rc.pair_determinant(x["z"], x["L"], radius=float(x["R"])),
    "poly.crb2": bound,
    "poly.crb": bound,
    "poly.Lstar": least_and_last,
    "poly.Lstar_exact_sens": least_and_last,
    "poly.boundary_pair": lambda x: rc.boundary_pair_bound(x["L"], kappa=kappa(x), radius=float(x["R"])),
    "poly.trinv_inf": lambda x: moments(x).lower_limit(jnp.asarray(x["z"]), 1.0, 1, jnp.ones(())),
    "poly.Lcert": lambda x: least(x)[3],
    "poly.trinv_step": trace_step,
    "poly.effective_eps": lambda x: ac.effective_epsilon(
        kappa=kappa({**x, "accountant": "basic"}),
        delta=x["delta"],
        joint_sensitivity=moments({}).joint_sensitivity(x["L"], x["L"]),
    ),
    "poly.m": bound,
    "poly.m3.L2": power_sum,
    "poly.rank_deficient": lambda x: rc.multiset_bound(moments(x), x["z"], x["L"], kappa=1.0),
    "poly.det_bound": lambda x: rc.determinant_bound(x["z"], x["L"], kappa=kappa(x), radius=float(x["R"])),
    "poly.near_collision": lambda x: rc.multiset_bound(moments(x), x["z"], x["L"], kappa=1.0),
    "poly.canonical": canonical,
    "poly.sens": lambda x: rc.Moments(1.0).widths(x["lmax"], x["lmax"]),
}

# The multiset: thresholds


def thresholds(inputs):
    step = STEPS[inputs["h"]](float(inputs["b"]))
    sensitivity = "paper" if inputs.get("c_h") == 2 else "exact"
    grid = inputs.get("grid", "midpoint")
    return rc.Thresholds(step, radius=float(inputs.get("R", 1)), grid=grid, sensitivity=sensitivity)


def least_threshold_count(inputs):
    found = scan(thresholds(inputs), inputs, inputs.get("Lmin", 3), inputs.get("Lmax", 60))
    return [found.best_releases, found.best_bound]


def spectral(inputs):
    family, count = thresholds(inputs), inputs["L"]
    finite = rc.multiset_information(family, inputs["z"], count) / count
    limit = family.limit_information(np.asarray(inputs["z"]))
    np.testing.assert_allclose(finite, limit, rtol=2e-3, atol=2e-4)
    return finite


def swap_sensitivity(inputs):
    family = rc.Thresholds(STEPS[inputs["h"]](float(inputs["b"])), radius=float(inputs["R"]), grid=[float(inputs["t"])])
    return family.widths(1, 1)[0]


def singular_kernel(inputs):
    family = rc.Thresholds(rc.Smoothstep(float(inputs["b"])), grid="midpoint")
    assert rc.multiset_bound(family, inputs["z"], inputs["L"], kappa=1.0) == np.inf
    assert rc.multiset_reason(family, inputs["z"], inputs["L"], kappa=1.0) == rc.Reason.RANK_DEFICIENT
    values = np.linalg.svd(np.asarray(rc.transcript_rows(family, inputs["z"], inputs["L"])), compute_uv=False)
    return values[-1] / values[0]


THRESHOLDS = {
    "thr.Lstar": least_threshold_count,
    "thr.grid_matters": least_threshold_count,
    "thr.energy": lambda x: STEPS[x["h"]](float(x["b"])).energy,
    "thr.spectral_law": spectral,
    "thr.plateau": lambda x: np.trace(np.linalg.inv(thresholds(x).limit_information(np.asarray(x["z"])))),
    "thr.lower_bound": lambda x: rc.trace_bound(thresholds(x), x["z"], x["L"], kappa=kappa(x)),
    "thr.sens": swap_sensitivity,
    "thr.singular": singular_kernel,
}

# Estimators


@cache
def _normals(power):
    """Draws of two standard normals that fill the plane evenly."""
    return scipy.stats.norm.ppf(scipy.stats.qmc.Sobol(2, seed=3).random_base2(power))


def mean_squared_error(z, sigma, power=14):
    z = np.asarray(z)
    moments = np.array([z.mean(), np.mean(z**2)]) + sigma * _normals(power)
    found = np.asarray(rc.pair_estimate(moments, variances=np.full(2, sigma**2)))
    return np.mean(np.sum((found - np.sort(z)) ** 2, -1))


def crossing(inputs, bracket):
    """Where the mean squared error is the bound. The noise variance is kappa_2 for either moment (m = 2, R = 1)."""

    def excess(epsilon):
        noise = float(ac.kappa(releases=2.0, epsilon=epsilon, delta=inputs["delta"], accountant="basic"))
        return (
            mean_squared_error(inputs["z"], np.sqrt(noise), 15) / float(rc.two_moment_bound(inputs["z"], kappa=noise))
            - 1
        )

    return scipy.optimize.brentq(excess, *bracket, xtol=1e-3)


def low_noise_ratio(inputs):
    sigma = 1e-4
    return mean_squared_error(inputs["z"], sigma) / float(rc.two_moment_bound(inputs["z"], kappa=sigma**2))


def misfit(y, z):
    return np.sum((np.stack([z.mean(-1), np.mean(z**2, -1)], -1) - y) ** 2, -1)


def worst_excess(inputs):
    """Least misfit over the whole triangle minus that of the estimate, over random problems."""
    rng = np.random.default_rng(inputs["seed"])
    axis = np.linspace(-1, 1, 401)
    low, high = np.triu_indices(401)
    grid = np.stack([axis[low], axis[high]], -1)
    y = rng.normal(size=(80, 2)) * 2
    found = misfit(y, np.asarray(rc.pair_estimate(y, variances=np.ones(2))))
    best = np.array([misfit(row, grid).min() for row in y])
    return max(0.0, np.max(found - best))


def most_likely(inputs):
    found = rc.pair_estimate(inputs["y"], variances=inputs["variances"], radius=float(inputs["R"]))
    general = rc.multiset_estimate(
        rc.Moments(float(inputs["R"])), inputs["y"], records=2, noise_std=np.sqrt(inputs["variances"])
    )
    np.testing.assert_allclose(general.records, found, atol=2e-4)  # the misfit is flat where records meet
    return found


ESTIMATORS = {
    "mle.global": worst_excess,
    "mle.point": most_likely,
    "mle.mse": lambda x: mean_squared_error(x["z"], x["sigma"]),
    "mle.crossing.interior": lambda x: crossing(x, (15.0, 60.0)),
    "mle.crossing.boundary.first": lambda x: crossing(x, (8.0, 40.0)),
    "mle.limit.high_noise": lambda x: mean_squared_error(x["z"], 1e5),
    "mle.limit.low_noise": low_noise_ratio,
    "mle.m3": lambda x: rc.multiset_estimate(rc.Moments(float(x["R"])), x["y"], records=3, noise_std=x["sigma"]).misfit,
}

# Nothing identified


def static_information(inputs):
    """Fixed members and one feature: every release is a function of one sum."""
    gains = np.asarray(inputs.get("gains", [1.0, 0.7, 1.3, 2.0]))

    def release(x):
        return gains * jnp.tanh(jnp.sum(jnp.sin(x)))

    return rc.split_columns(rc.transcript_jacobian(release, inputs["x"], covariance=1.0), 0)


def lone(inputs):
    """Every other gradient vanishes: all of the record's own information remains. The case names the sum alone."""
    own = np.sqrt(2.5848) * np.array([[0.6], [0.8], [0.0]])
    return rc.profiled_information(own, np.zeros((3, 2)))


NONE = {
    "none.static_fixed_feature": lambda x: rc.profiled_information(*static_information(x)),
    "none.static_fixed_feature.crb": lambda x: rc.target_bound(*static_information(x)),
    "none.twin": lambda x: rc.profiled_information(*rc.split_columns(np.asarray(x["A"]), 0)),
    "none.label_floor": lambda x: rc.label_floor(x["z"]),
    "none.exception": lone,
}

KINDS = {2: FISHER, 3: LABELLED, 4: MOMENTS, 5: THRESHOLDS, 6: ESTIMATORS, 7: NONE}
# Compiled apart from all others, and of a kind that others stand for.
SLOW = ("mle.crossing", "fisher.update.random", "thr.Lstar", "mle.global", "poly.Lstar_exact_sens.-0.4", "mle.point.A")


def parameters():
    for item, kinds in KINDS.items():
        for case in cases_of_item("reconstruction", item):
            kind = max((k for k in kinds if re.match(re.escape(k) + r"(?![a-z])", case["id"])), key=len, default=None)
            kind = kind or max((k for k in kinds if case["id"].startswith(k)), key=len)
            marks = [pytest.mark.slow] if case["id"].startswith(SLOW) else []
            yield pytest.param(kinds[kind], case, id=case["id"], marks=marks)


@pytest.mark.parametrize(("found", "case"), list(parameters()))
def test_reference_values(found, case):
    value = np.asarray(case["value"], float)
    found = np.asarray(found(case["inputs"]), float)
    np.testing.assert_allclose(found.reshape(value.shape), value, rtol=case["rtol"], atol=case["atol"])
