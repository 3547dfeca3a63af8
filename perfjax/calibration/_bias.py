"""By how much maximum likelihood is off on average: few rounds, through a curved model, shift the estimates."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax._linear import product
from perfjax.calibration._fit import Fit
from perfjax.calibration._likelihood import Problem, evaluate, whitener
from perfjax.calibration._parameters import natural
from perfjax.calibration._search import in_chunks, prepared
from perfjax.calibration._transitions import terms

__all__ = ["bias"]


def bias(fitted: Fit) -> dict[str, Float[Array, "*groups"]]:
    """To first order, how far each estimate lies above the truth on average over series like this one.

    Of expected statistics with whitened slopes J and second derivatives H_t, at the estimates,

        bias = -(J'J)^-1 sum_t J_t tr((J'J)^-1 H_t) / 2.

    Subtract it for an estimate that is right on average; profile likelihoods and their intervals need no correction.

    Args:
        fitted: a fit without a prior, of one series or of groups.

    Returns:
        By free parameter, in its own unit; NaN where that of one exceeds its standard error (J'J)^-1/2: the expansion
        says nothing there.

    Raises:
        ValueError: if the fit had a prior, which moves estimates on purpose.

    Source: Box (1971), Bias in Nonlinear Estimation, of means and variances with weights held fixed and the counts
        before taken as given. What the weights' dependence on the parameters adds is left out, and that each count is
        both an outcome and the start of the next: in the published setting, that is half of the threshold's bias.

    Example:
        >>> import perfjax as pj
        >>> found = pj.fit([400, 410, 421, 429, 440], pj.preset("randomized-response"), free="recruit")
        >>> bool(abs(bias(found)["recruit"]) < found.standard_error["recruit"])
        True
    """
    if not all(one.is_flat for one in fitted.problem.prior):
        raise ValueError("Argument `fitted` must be a fit without a prior, which moves estimates on purpose.")
    groups, size = fitted.places.shape[:-1], fitted.places.shape[-1]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(groups) :]), (fitted.problem, fitted.places))
    found = in_chunks(_biases, flat).reshape(*groups, size)
    return {name: found[..., i] for i, name in enumerate(fitted.free)}


@eqx.filter_jit
def _biases(batched: tuple[Problem, Float[Array, "groups free"]]) -> Float[Array, "groups free"]:
    problem, places = batched
    return jax.lax.map(lambda one: _bias(*one), (prepared(problem)[0], places))


def _bias(problem, places):
    whitening = whitener(problem, evaluate(problem, places).terms)

    def means(values):
        scenario = problem.scenario.with_leaves(**dict(zip(problem.free, values, strict=True)))
        expected = terms(scenario, problem.series, problem.plan, problem.law_at(scenario)).expected
        return product(whitening, expected[..., None]).ravel()

    values = jnp.stack([natural(name, places[i]) for i, name in enumerate(problem.free)])
    slopes = jax.jacfwd(means)(values)
    covariance = jnp.linalg.inv(product(slopes.T, slopes))
    second = jax.jacfwd(jax.jacfwd(means))(values)
    curvature = jnp.einsum("tkl,kl->t", second, covariance, precision="highest")
    found = -product(covariance, product(slopes.T, curvature)) / 2
    return jnp.where(jnp.all(found**2 < jnp.diagonal(covariance)), found, jnp.nan)
