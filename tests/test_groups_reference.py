"""Every reference value of count privacy from independent code, at its own relative tolerance."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import cases, kinds

import perfjax as pj
from perfjax import accounting
from perfjax import count_privacy as cp


def sigma_of(inputs):
    return cp.log_gaussian_sigma(inputs["r0"], inputs["c"])


def budget(r0, c, n):
    return cp.edge_budget(n, cp.log_gaussian_sigma(r0, c), c)


def gradient_of_budget(inputs):
    return jax.grad(budget, argnums=(0, 1))(inputs["r0"], inputs["c"], float(inputs["n"]))


def scenario(inputs, **leaves):
    """A group of the loop."""
    i = inputs | leaves
    mechanism = pj.ShiftedLogCount.from_tolerance(i["r0"], i["c"])
    rule, who = pj.LikelihoodRatioAbove(i["tau"]), pj.Participation(i["q"], i["rj"], floor=0, cap=1e9)
    return pj.Scenario(mechanism, rule, who, population=i["N0"], rounds=i["T"])


def path(inputs):
    return pj.mean_field(scenario(inputs)).population[jnp.asarray([1, 5, 10, 20])]


def slopes_of_path(inputs):
    def last(r0, tau, start):
        return pj.mean_field(scenario(inputs, r0=r0, tau=tau, N0=start)).population[-1]

    return jax.grad(last, argnums=(0, 1, 2))(inputs["r0"], inputs["tau"], float(inputs["N0"]))


def threshold_count(inputs):
    arguments = inputs["q"], inputs["rj"], inputs["tau"]
    options = {"sigma": sigma_of(inputs), "shift": inputs["c"]}
    return cp.unstable_count(*arguments, **options), cp.unstable_multiplier(*arguments, **options)


def saving(inputs):
    return cp.error_that_saves(inputs["N0"], inputs["q"], inputs["rj"], inputs["tau"], shift=inputs["c"])


WEIGHTS = {
    "w=1/N, N=20": (20, 0),
    "w~1/n, N=100": (100, -1),
    "w~n, N=100": (100, 1),
    "w~n^2, N=100": (100, 2),
    "w~n, N=1000": (1000, 1),
}


def best_trade(inputs):
    size, power = WEIGHTS[inputs["weights"]]
    weights = jnp.arange(1.0, size + 1) ** power
    shift = cp.best_shift(weights, inputs["r"])
    return shift, cp.weighted_budget(shift, weights, inputs["r"])


def fisher_chain(inputs):
    """The three members of the chain of inequalities behind `fisher_bound`, for noise N(0, sigma^2) on whole counts."""
    sigma, length = inputs["sigma"], 20
    theta = np.arange(0, length, 1 / 200) + 1 / 400
    w = np.linspace(-12, 12, 4801)
    prior = 2 / length * np.sin(np.pi * theta / length) ** 2 / 200
    below, share = np.floor(theta), theta - np.floor(theta)

    def normal(x):
        return np.exp(-(x**2) / 2 / sigma**2) / sigma / np.sqrt(2 * np.pi)

    density = sum(
        p * ((1 - u) * normal(w + t - j) + u * normal(w + t - j - 1))
        for p, t, j, u in zip(prior, theta, below, share, strict=True)
    )
    step = w[1] - w[0]
    mean = np.sum(density * np.abs(w)) * step
    information = np.sum(np.gradient(density, step) ** 2 / density) * step
    of_prior = 4 * (np.pi / length) ** 2
    return cp.WHOLE_LINE / mean**2, information, of_prior + np.expm1(2 / (2 * sigma**2))


def rational(text):
    return float(Fraction(text)) if isinstance(text, str) else text


def airy_renyi(inputs):
    return cp.shift_renyi(cp.airy_log_density, inputs["s"], inputs["alpha"]) / inputs["alpha"]


def named_constant(case):
    """A constant, found by what its case says that it is."""
    known = {
        "1/128": cp.TWO_COUNTS,
        "3/(2e^3)": cp.UNIFORM_PRIOR,
        "pi/(4e^2)": cp.GAUSSIAN_PRIOR,
        "1/pi": cp.LOG_GAUSSIAN,
        "4e^2/pi^2": cp.LOG_GAUSSIAN / cp.GAUSSIAN_PRIOR,
        "192/e^3": cp.UNIFORM_PRIOR / cp.TWO_COUNTS,
        "|a1'|": cp.AIRY_SLOPE_ZERO,
        "|a1|": cp.AIRY_ZERO,
        "C_star": cp.BEST_COEFFICIENT,
        "I ": cp.FISHER_INFORMATION,
        "E|X|": cp.MEAN_ABSOLUTE,
    }
    return next(value for words, value in known.items() if case["about"].startswith(words))


FOUND = {
    "sigma": sigma_of,
    "v": lambda i: budget(i["r0"], i["c"], float(i["n"])),
    "dv": gradient_of_budget,
    "lemma41": lambda i: cp.drift_error(i["sigma"], i["sigma"] ** 2),
    "drift": lambda i: cp.drift_error(i["sigma"], i["a"]),
    "clip_err": lambda i: cp.clipped_error(i["n"], sigma_of(i), i["c"]),
    "clip_mean": lambda i: cp.clipped_mean(i["n"], sigma_of(i), i["c"]),
    "p_zero": lambda i: cp.probability_of_zero(i["n"], sigma_of(i), i["c"]),
    "renyi": lambda i: cp.edge_renyi(i["alpha"], i["n"], i["m"], sigma_of(i), i["c"]),
    "renyi_clip": lambda i: cp.edge_renyi(i["alpha"], i["n"], i["m"], sigma_of(i), i["c"], clipped=True),
    "zcdp_to_dp": lambda i: accounting.zcdp_epsilon(rho=i["rho"], delta=i["delta"], conversion="classic"),
    "gdp_delta": lambda i: accounting.gaussian_delta(epsilon=i["eps"], mu=i["mu"]),
    "clip_aware": lambda i: cp.clip_aware_sigma(i["r"], i["c"]),
    "two_count": lambda i: cp.two_count_bound(i["n"], i["r"]),
    "two_count_lim": lambda i: cp.two_count_limit(i["r"]),
    "uniform_K": lambda i: cp.uniform_prior_bound(i["n"], i["r"], i["K"]),
    "uniform_lim": lambda i: cp.uniform_limit(i["a"], i["r"]),
    "trunc_gauss_const": lambda i: cp.gaussian_prior_coefficient(i["L"]),
    "trunc_gauss_fin": lambda i: cp.gaussian_prior_limit(i["L"], i["x"], i["r"]),
    "uniform_best": lambda i: cp.uniform_bound(i["n"], i["r"]),
    "prior_best": lambda i: cp.best_prior_bound(i["n"], i["r"]),
    "prior_vacuous": lambda i: cp.best_prior_bound(i["n"], i["r"]),
    "prior_logit": lambda i: cp.best_prior_by_logits(i["n"], i["r"], i["jstar"], size=i["M"] + 1),
    "airy_lb": lambda i: cp.fisher_bound(i["n"], i["r"]),
    "v1_lb": lambda i: cp.kl_test_bound(0, 1, 0.5, i["r"]),
    "fisher_chain": fisher_chain,
    "uneq_threshold": lambda i: cp.unequal_gaussian_order(i["n"]),
    "uneq_renyi": lambda i: cp.unequal_gaussian_renyi(i["alpha"], i["n"], i["r"], reverse=i["reverse"]),
    "airy_tail": lambda i: cp.airy_tail(i["x"]),
    "airy_kl": lambda i: cp.airy_budget(i["s"]),
    "airy_renyi": airy_renyi,
    "airy_score_mgf": lambda i: cp.airy_score_cumulant(i["t"]) / (cp.FISHER_INFORMATION * i["t"] ** 2 / 2),
    "gengauss": lambda i: cp.generalised_gaussian_coefficient(i["p"]),
    "liminf_lb": lambda i: cp.fisher_liminf(i["r"]),
    "limsup_lb": lambda i: cp.fisher_limsup(i["r"]),
    "airy_log": lambda i: cp.log_airy_sigma(i["r"], 1e-12)[0],
    "tradeoff": best_trade,
    "v1_inf": lambda i: budget(i["r"], 1e14, 1.0),
    "spacing_err": lambda i: cp.spacing_error(i["D"], i["n"]),
    "spacing_equal": lambda i: cp.design("spacing", i["r"]).budget(jnp.asarray([1.0, 2, 5, 10, 100])),
    "p_tau": lambda i: cp.edge_leak_probability(i["mu"], i["tau"]),
    "traj": path,
    "nstar": threshold_count,
    "dtraj": slopes_of_path,
    "r0_crit": saving,
}


SLOW = ("airy_log", "tradeoff", "prior_logit", "spacing_equal", "clip_aware", "uniform_best", "airy_renyi", "limsup_lb")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in SLOW else k for k in FOUND])
def test_reference_values(kind):
    for case in cases("groups", kind):
        found = np.concatenate([np.ravel(x) for x in jax.tree.leaves(FOUND[kind](case["inputs"]))])
        np.testing.assert_allclose(found, np.ravel(case["value"]), rtol=case["tol"], err_msg=case["name"])


@pytest.mark.parametrize("kind", ["const", "airy"])
def test_reference_constants(kind):
    for case in cases("groups", kind):
        np.testing.assert_allclose(named_constant(case), case["value"], rtol=case["tol"], err_msg=case["name"])


def test_rounding_up_by_chance_keeps_the_error_at_a_whole_count():
    for case in cases("groups", "rounding"):
        y, n = case["inputs"]["y"], case["inputs"]["n"]
        u = (np.arange(100_000) + 0.5) / 100_000
        np.testing.assert_allclose(np.mean(np.abs(np.floor(y + u) - n)), case["value"], rtol=1e-9)


def test_no_kind_is_left_out():
    assert kinds("groups") == {*FOUND, "const", "airy", "rounding"}
