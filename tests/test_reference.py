"""Every reference value from independent code, at its own relative tolerance."""

import jax
import numpy as np
import pytest
from oracle import cases, kinds

import perfjax as pj
from perfjax.leakage import leak_probability_given_distance

GAUSSIAN_RUN = ("mean_field_population", "cumulative_error", "cumulative_bound", "optimum_bound", "optimum_cumulative")


def participation(inputs):
    recruiters = "everyone" if inputs.get("agnostic") else "spared"
    bounds = {name: inputs[name] for name in ("floor", "cap") if name in inputs}
    return pj.Participation(inputs["leave"], inputs["recruit"], recruiters=recruiters, **bounds)


def gaussian_run(inputs):
    mechanism = pj.GaussianMean(inputs.get("noise_scale", 1.0), dim=inputs["dim"])
    rule = pj.LikelihoodRatioAbove(inputs["threshold"])
    return pj.Scenario(mechanism, rule, participation(inputs), population=inputs["population"], rounds=inputs["rounds"])


def bits_run(inputs):
    mechanism = pj.RandomizedResponse(inputs.get("epsilon", 1.0))
    return pj.Scenario(
        mechanism, pj.TrueBitKept(), participation(inputs), population=inputs["population"], rounds=inputs["rounds"]
    )


def mean_of(inputs):
    """The Gaussian mean of a leak probability case."""
    if "eigenvalues_each_twice" in inputs:
        values = np.repeat(np.asarray(inputs["eigenvalues_each_twice"], float), 2)
        return pj.GaussianMean(inputs["noise_scale"], dim=values.size, covariance=values)
    options = {"covariance": inputs.get("variance", 1.0), "mean": inputs.get("mean_each", 0.0)}
    return pj.GaussianMean(inputs["noise_scale"], dim=inputs["dim"], clip_radius=inputs.get("clip_radius"), **options)


def leak(inputs):
    rule = pj.LikelihoodRatioAbove(inputs["threshold"])
    return pj.leak_probability(mean_of(inputs), rule, float(inputs["population"]))


def found(kind, inputs):
    """What perfjax says to a case."""
    if kind == "leak_probability_iso_grad":
        return jax.grad(lambda gamma: leak({**inputs, "noise_scale": gamma}))(inputs["noise_scale"])
    if kind.startswith("leak_probability"):
        return leak(inputs)
    if kind == "leak_given_distance":
        return leak_probability_given_distance(**inputs)
    if kind == "rr_growth":
        p = pj.leak_probability(pj.RandomizedResponse(inputs["epsilon"]), pj.TrueBitKept(), 100.0)
        return participation(inputs).growth(pj.leakage.Split(p, 1 - p))
    if kind == "rr_error":
        mean = (0.0, 1.0) if inputs["mean"] is None else inputs["mean"]
        return pj.RandomizedResponse(inputs["epsilon"], mean).error(inputs["population"])
    scenario = gaussian_run(inputs) if kind in GAUSSIAN_RUN else bits_run(inputs)
    return {
        "mean_field_population": lambda: pj.mean_field(scenario).population,
        "cumulative_error": lambda: pj.CumulativeError()(scenario),
        "cumulative_bound": lambda: pj.CumulativeBound()(scenario),
        "optimum_bound": lambda: pj.tune(scenario, pj.CumulativeBound()).value,
        "optimum_cumulative": lambda: pj.tune(scenario).value,
        "optimum_epsilon_final": lambda: pj.tune(scenario, pj.FinalError()).value,
    }[kind]()


KINDS = (
    "rr_growth",
    "rr_error",
    "leak_probability_iso",
    "leak_probability_iso_grad",
    "leak_probability_pairs",
    "leak_probability_clipped",
    "leak_given_distance",
    "optimum_epsilon_final",
    *GAUSSIAN_RUN,
)


@pytest.mark.parametrize("kind", KINDS)
def test_reference_values(kind):
    for case in cases("performative", kind):
        value = case["value"]["value"] if isinstance(case["value"], dict) else case["value"]
        np.testing.assert_allclose(found(kind, case["inputs"]), value, rtol=case["tol"], err_msg=case["name"])


def test_no_kind_is_left_out():
    """The kinds that `theorems` and the solvers answer are in their own files."""
    elsewhere = {
        "beta",
        "critical_beta",
        "critical_epsilon",
        "gdp_mu",
        "optimized_renyi_tail",
        "critical_noise_scale",
        "kantorovich",
        "pac_rounds",
        "rr_exact_law",
        "mia_monte_carlo",
    }
    assert kinds("performative") == elsewhere | set(KINDS)


@pytest.mark.parametrize("case", cases("performative", "rr_exact_law"), ids=lambda case: case["name"])
def test_the_law_is_the_exact_chain_where_every_whole_number_is_a_node(case):
    law = pj.population_law(bits_run(case["inputs"]))
    last = law.probability[-1]
    assert np.isclose(law.mean[-1], case["value"]["mean"], rtol=1e-6)
    assert np.isclose(np.sum(last / np.maximum(law.nodes, 1)), case["value"]["mean_inverse"], rtol=1e-6)
    assert np.isclose(np.sum(np.where(law.nodes == 1, last, 0)), case["value"]["p_floor"], atol=1e-6)
    assert np.isclose(last[-1], case["value"]["p_cap"], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases("performative", "mia_monte_carlo"), ids=lambda case: case["name"])
def test_counts_and_law_match_runs_that_follow_every_record(case):
    scenario, value = gaussian_run(case["inputs"]), case["value"]
    runs = pj.simulate_counts(scenario, key=jax.random.key(0), trials=20_000)
    law = pj.population_law(scenario)
    last, trials = np.asarray(runs.population[:, -1]), runs.population.shape[0]
    error = np.asarray(runs.error[:, 1:]).sum(axis=1)
    for ours, reference in ((last, "final"), (1 / last, "inverse"), (error, "cumulative_error")):
        deviation = np.hypot(value[reference]["se"], ours.std() / np.sqrt(trials))
        assert abs(ours.mean() - value[reference]["mean"]) < 5 * deviation
    assert abs(law.mean[-1] - value["final"]["mean"]) < 5 * value["final"]["se"]
    assert abs(law.expected_error[1:].sum() - value["cumulative_error"]["mean"]) < 5 * value["cumulative_error"]["se"]
    assert abs(law.std[-1] / value["final_sd"] - 1) < 0.06  # 4,000 runs know a standard deviation to 1.1 %
