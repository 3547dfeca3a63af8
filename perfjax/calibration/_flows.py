"""Of leavers and joiners: binomials given the leaked count, summed over it and over what users share."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, xlog1py, xlogy
from jaxtyping import Array, Float

from perfjax.calibration._few import log_few_flows
from perfjax.calibration._mixture import without_gaps
from perfjax.calibration._shared import SharedLaw, over_shared
from perfjax.calibration._terms import Terms
from perfjax.law._nodes import SMALL
from perfjax.leakage import shared_dimensions
from perfjax.scenario import Scenario

__all__ = ["flows", "hermite"]

LEAKED_NODES = 15


def flows(
    scenario: Scenario,
    law: SharedLaw,
    n: Float[Array, " terms"],
    out: Float[Array, " terms"],
    new: Float[Array, " terms"],
) -> Terms:
    """What `out` leavers and `new` joiners say."""
    who, log_p = scenario.participation, _log_flows(scenario, law, n, out, new)
    if law.chance is not None:
        exact = log_few_flows(who, law.chance, n, out, new)
        log_p = jnp.where((n <= SMALL) & jnp.isfinite(exact), exact, log_p)
    mean, covariance = _moments(who, law)
    n_ = n[:, None, None]
    covariance = n_ * covariance[0] + n_**2 * covariance[1] + jnp.eye(2, dtype=mean.dtype) / 12
    root = jnp.linalg.cholesky(jax.lax.stop_gradient(covariance))
    unit = jnp.broadcast_to(jnp.eye(2, dtype=n.dtype), root.shape)
    whitening = jax.scipy.linalg.solve_triangular(root, unit, lower=True)
    observed = jnp.stack([out, new], -1)
    none = jnp.full_like(n, jnp.nan)  # of the next count: what it is without these columns stays
    return Terms(log_p, n[:, None] * mean, observed, whitening, jnp.ones_like(observed), none, none, none)


def _moments(who, law):
    """Per user: the mean of leavers and joiners, and their covariance within and between what is shared."""
    q, r, spared, given, weight = who.leave, who.recruit, who.recruiters == "spared", law.given, law.weight
    kept = given.kept if spared else jnp.ones_like(given.kept)
    means = jnp.stack([q * given.leaked, r * kept], axis=-1)
    mean = jnp.einsum("tsi,ts->ti", means, weight, precision="highest")
    centred = means - mean[:, None]
    of_leavers = q * (1 - q) * given.leaked + q * q * given.spread
    of_joiners = r * (1 - r) * kept + (r * r * given.spread if spared else 0)
    together = -q * r * given.spread if spared else jnp.zeros_like(kept)
    each = jnp.stack([of_leavers, together, together, of_joiners], -1)
    within = jnp.einsum("tsi,ts->ti", each, weight, precision="highest").reshape(-1, 2, 2)
    return mean, (within, jnp.einsum("tsi,tsj,ts->tij", centred, centred, weight, precision="highest"))


def _log_flows(scenario, law, n, out, new):
    """log P(leavers, joiners): an integral over the leaked count, a mixture of normals, where the product peaks."""
    who, spared = scenario.participation, scenario.participation.recruiters == "spared"
    mean, variance = n[:, None] * law.given.leaked, n[:, None] * law.given.spread + 1 / 12
    if shared_dimensions(scenario.mechanism):
        mean, variance = without_gaps(mean, variance, law.weight)
    most = n - new if spared else n
    peak, width = jax.lax.stop_gradient(_peak(who, mean, variance, law.weight, n, out, new))
    node, log_weight = hermite(LEAKED_NODES, n.dtype)
    leaked = jnp.clip(peak, out, most)[:, None] + width[:, None] * node
    possible = (leaked >= out[:, None] - 0.5) & (leaked <= most[:, None] + 0.5)
    leaked = jnp.clip(leaked, out[:, None], most[:, None])
    off = (leaked[:, None] - mean[..., None]) ** 2 / variance[..., None]  # [terms, shared, nodes]
    log_each = -(off + jnp.log(2 * jnp.pi * variance[..., None])) / 2
    log_prior = jax.nn.logsumexp(log_each, axis=1, b=law.weight[..., None])
    rest = n[:, None] - leaked if spared else jnp.broadcast_to(n[:, None], leaked.shape)
    each = log_prior + _log_binomial(out[:, None], leaked, who.leave) + _log_binomial(new[:, None], rest, who.recruit)
    each = jnp.where(possible, each, -jnp.inf) + log_weight + node**2 / 2 + jnp.log(width[:, None])
    return jax.nn.logsumexp(each, axis=-1)


def _peak(who, mean, variance, weight, n, out, new):
    """Where the product is greatest over the leaked count, and how wide, were it normal: precisions add, each
    binomial's by the slope of its mean.
    """
    q, r = who.leave, who.recruit
    prior = over_shared(mean, weight)
    total = over_shared(variance + (mean - prior[:, None]) ** 2, weight)
    of_out = q / ((out + 0.5) * (1 - q) + 1e-3)
    of_new = r / ((new + 0.5) * (1 - r) + 1e-3) if who.recruiters == "spared" else 0.0
    precision = 1 / total + q * of_out + r * of_new
    return (prior / total + of_out * out + of_new * (r * n - new)) / precision, 1 / jnp.sqrt(precision)


def _log_binomial(k, n, p):
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return ways + xlogy(k, p) + xlog1py(n - k, -p)


def hermite(count: int, dtype) -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """Nodes, and logs of the weights, of expectations over N(0, 1) times sqrt(2 pi)."""
    node, weight = np.polynomial.hermite_e.hermegauss(count)
    return jnp.asarray(node, dtype), jnp.asarray(np.log(weight), dtype)
