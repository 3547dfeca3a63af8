"""What is printed about privacy: budgets with their scope, beside every gain, and whether they protect anybody."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from assertions import epsilon_of
from scenarios import gaussian, response

import perfjax as pj
from perfjax.privacy import GaussianBudget, Privacy, PureBudget, budget_lines, protects_nobody


def test_both_scopes_are_printed_by_release_and_over_all():
    """Four releases of noise 5 to records of norm 10: mu 4 locally, and centrally divided by the root of the users."""
    path = pj.mean_field(gaussian(5.0, clip_radius=10.0, rounds=3))
    n = np.asarray(path.population)
    assert np.all(np.diff(n) > 0)
    central, mu = 4 / np.sqrt(n), 4.0
    for delta in (1e-6, 1e-9):
        local_line, central_line = budget_lines(path.privacy(), delta=delta)
        assert local_line == (
            f"Local budget (of each user's own noisy record): epsilon {epsilon_of(mu, delta):.3g} per release,"
            f" {epsilon_of(2 * mu, delta):.3g} over all 4 releases (delta = {delta:g}; rho 32 over all)."
        )
        least, greatest = (epsilon_of(central[t], delta) for t in (-1, 0))
        together = float(np.sqrt(np.sum(central**2)))
        assert central_line == (
            f"Central budget (of what is published): epsilon {least:.3g} to {greatest:.3g} per release,"
            f" {epsilon_of(together, delta):.3g} over all 4 releases (delta = {delta:g}; rho {together**2 / 2:.3g} over"
            " all)."
        )


def test_of_randomized_response_only_a_local_budget_is_known():
    path = pj.mean_field(response(0.4, rounds=9))
    assert budget_lines(path.privacy()) == [
        "Local budget (of each user's own noisy record): epsilon 0.4 per release, 4 over all 10 releases (delta = 0).",
        "No central budget (of what is published) is known.",
    ]
    *_, last = budget_lines(pj.mean_field(response(1.01, rounds=9)).privacy())
    assert last == (
        "This budget protects nobody from those who receive the noisy records: the local epsilon over all 10 releases"
        " is 10.1, above 10."
    )


def test_a_budget_protects_nobody_above_a_central_epsilon_of_ten():
    mu = scipy.optimize.brentq(lambda mu: epsilon_of(mu, 1e-6) - 10, 0.1, 10)
    strong = GaussianBudget(jnp.full(4, 100.0))  # the local budget does not matter where a central one is known
    for factor, protects in ((0.999, True), (1.001, False)):
        found = protects_nobody(Privacy(strong, GaussianBudget(jnp.full(4, factor * mu / 2))))
        assert (found is None) == protects
    assert (
        found
        == "This budget protects nobody: the central epsilon over all 4 releases is 10 at delta = 1e-06, above 10."
    )
    assert protects_nobody(Privacy(PureBudget(jnp.full(4, 2.5)), None)) is None
    for unbounded in (gaussian(rounds=3), response(math.inf, rounds=3)):
        assert "over all 4 releases is unbounded." in protects_nobody(pj.mean_field(unbounded).privacy())


def results():
    mean = gaussian(clip_radius=10.0, rounds=2, dim=2, cap=150.0)
    yield pj.tune(mean)
    yield pj.tune(response(rounds=2), pj.CumulativeBound())
    yield pj.tune_schedule(mean, total_rho=40.0)
    yield pj.tune_clipping(mean.replace(mean=0.5), release_rho=1.0)


@pytest.mark.slow
def test_every_result_that_promises_a_gain_prints_its_budgets():
    for result in results():
        text = str(result)
        expected = budget_lines(pj.mean_field(result.scenario).privacy())
        assert text.endswith("\n  ".join(["", *expected]))


def test_what_is_published_costs_no_more_than_the_record_itself():
    """The expected population may fall below a user, or to nobody."""
    budget = pj.GaussianMean(5.0, dim=2, clip_radius=10.0).privacy(jnp.array([0.0, 1e-9, 1.0, 4.0]))
    np.testing.assert_allclose(budget.central.mu, [4, 4, 4, 2])


def test_no_label_is_a_bare_epsilon():
    for mechanism in (pj.GaussianMean(1.0, dim=2), pj.RandomizedResponse(1.0), pj.ShiftedLogCount(0.1, 1.0)):
        assert "epsilon" not in mechanism.noise_label.replace("local epsilon", "")


def test_budgets_of_several_runs_at_once_are_refused():
    of_runs = Privacy(local=GaussianBudget(jnp.ones((3, 51))), central=None)
    for say in (budget_lines, protects_nobody):
        with pytest.raises(ValueError, match=r"`releases` must have one axis.*has shape \(3, 51\)"):
            say(of_runs)
