"""Of leavers and joiners: binomials given the leaked count, summed over it and over what users share."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, xlog1py, xlogy
from jaxtyping import Array, Float

from perfjax.calibration._few import log_few_flows
from perfjax.calibration._mixture import without_gaps
from perfjax.calibration._shared import SharedLaw, is_continuous
from perfjax.calibration._terms import Terms
from perfjax.law._nodes import SMALL
from perfjax.scenario import Scenario

__all__ = ["flows", "hermite", "log_two_binomials"]

LEAKED_NODES = 7


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
    given, weight = law.given, law.weight
    flow = who.flow_moments(given.leaked, given.spared, given.spread)
    means = jnp.stack([flow.leavers, flow.joiners], axis=-1)
    mean = jnp.einsum("tsi,ts->ti", means, weight, precision="highest")
    centred = means - mean[:, None]
    each = jnp.stack([flow.variance_leavers, flow.covariance, flow.covariance, flow.variance_joiners], -1)
    within = jnp.einsum("tsi,ts->ti", each, weight, precision="highest").reshape(-1, 2, 2)
    return mean, (within, jnp.einsum("tsi,tsj,ts->tij", centred, centred, weight, precision="highest"))


def _log_flows(scenario, law, n, out, new):
    """log P(leavers, joiners): an integral over the leaked count, a mixture of normals, where the product peaks."""
    who = scenario.participation
    mean, variance = n[:, None] * law.given.leaked, n[:, None] * law.given.spread + 1 / 12
    if is_continuous(scenario):
        mean, variance = without_gaps(mean, variance, law.weight)
    # Of the leaked count: where spared users never leave, at least the leavers; likewise for joiners. What the normal
    # puts below 0 or above n is held there, as in the law.
    least = jnp.where((who.leave_spared > 0) | (out <= 0), -jnp.inf, out)
    most = jnp.where((who.leaked.recruit > 0) | (new <= 0), jnp.inf, n - new)
    peak, width = jax.lax.stop_gradient(_peak(who, mean, variance, n, out, new))
    # Each normal has nodes of its own: where hardly anybody is leaked, some are a thousand times as narrow as others.
    node, log_weight = hermite(LEAKED_NODES, n.dtype)
    column = (slice(None), None, None)
    peak = jnp.clip(peak, jnp.maximum(least, 0)[:, None], jnp.minimum(most, n)[:, None])
    at = peak[..., None] + width[..., None] * node  # [terms, shared, nodes]
    possible = (at >= least[column] - 0.5) & (at <= most[column] + 0.5)
    at = jnp.clip(at, least[column], most[column])
    off = (at - mean[..., None]) ** 2 / variance[..., None]
    log_prior = -(off + jnp.log(2 * jnp.pi * variance[..., None])) / 2
    n, out, new = n[column], out[column], new[column]
    leaked = jnp.clip(at, 0, n)
    left = log_two_binomials(out, leaked, n - leaked, who.leaked.leave, who.spared.leave)
    joined = log_two_binomials(new, leaked, n - leaked, who.leaked.recruit, who.spared.recruit)
    each = jnp.where(possible, log_prior + left + joined, -jnp.inf)
    each = each + log_weight + node**2 / 2 + jnp.log(width[..., None])
    return jax.nn.logsumexp(each, axis=(-2, -1), b=law.weight[..., None])


def _peak(who, mean, variance, n, out, new):
    """For each normal of the leaked count, where its product with the flows is greatest, and how wide, were it normal.

    Precisions add, each flow's by the slope of its mean.
    """
    precision, sum_ = 1 / variance, mean / variance
    n, out, new = n[:, None], out[:, None], new[:, None]
    for count, leaked, spared in zip((out, new), who.leaked, who.spared, strict=True):
        slope = leaked - spared  # of the mean, which is `spared` n with nobody leaked
        excess = count - spared * n
        alone = jnp.clip(excess / jnp.where(slope == 0, 1, slope), 0, n)  # leaked, by this flow
        own = leaked * (1 - leaked) * (alone + 1) + spared * (1 - spared) * (n - alone) + 1 / 12
        precision, sum_ = precision + slope**2 / own, sum_ + slope * excess / own
    return sum_ / precision, 1 / jnp.sqrt(precision)


def log_two_binomials(
    total: Float[Array, "..."],
    k: Float[Array, "..."],
    m: Float[Array, "..."],
    p: Float[Array, "..."],
    q: Float[Array, "..."],
) -> Float[Array, "..."]:
    """log P(Bin(k, p) + Bin(m, q) = total), for real k and m too.

    Both are tilted so that the mean is `total`, which is exact; the tilted sum is taken for a binomial of its mean and
    variance. With p = q, p = 0 or q = 0 it is one; else, with 50 users and p and q in [0.03, 0.97], the error is at
    most 0.02, and falls with the users.
    """
    # Odds are multiplied by y, so that k p y / (1 - p + p y) + m q y / (1 - q + q y) = total: a quadratic.
    a = (k + m - total) * p * q
    b = k * p * (1 - q) + m * q * (1 - p) - total * (p * (1 - q) + q * (1 - p))
    c = total * (1 - p) * (1 - q)
    least = jnp.where(p < 1, 0, k) + jnp.where(q < 1, 0, m)
    most = jnp.where(p > 0, k, 0) + jnp.where(q > 0, m, 0)
    nearly = 4 * jnp.finfo(most.dtype).eps * most
    at_least, at_most = jnp.abs(total - least) <= nearly, jnp.abs(most - total) <= nearly
    between = (total > least) & (total < most) & ~at_least & ~at_most
    positive = b > 0
    root = jnp.sqrt(jnp.where(between, b * b + 4 * a * c, 1))
    small_root = 2 * c / jnp.where(between & positive, b + root, 1)
    y = jnp.where(between, jnp.where(positive, small_root, (root - b) / jnp.where(a > 0, 2 * a, 1)), 1)
    size_p, size_q = 1 - p + p * y, 1 - q + q * y
    short = k * (p * y / size_p) ** 2 + m * (q * y / size_q) ** 2  # of the tilted sum, the mean less the variance
    trials = jnp.where(between, total**2 / jnp.where(between, short, 1), 2 * total + 1)
    share = jnp.where(between, short / jnp.where(between, total, 1), 0.5)
    found = k * jnp.log(size_p) + m * jnp.log(size_q) - total * jnp.log(y)
    found = found + _log_binomial(total, jnp.maximum(trials, total), share)
    fewest = xlog1py(k, -jnp.where(p < 1, p, 0)) + xlog1py(m, -jnp.where(q < 1, q, 0))
    all_ = xlogy(k, jnp.where(p > 0, p, 1)) + xlogy(m, jnp.where(q > 0, q, 1))
    return jnp.select([at_least, at_most, between], [fewest, all_, found], -jnp.inf)


def _log_binomial(k, n, p):
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return ways + xlogy(k, p) + xlog1py(n - k, -p)


def hermite(count: int, dtype) -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """Nodes, and logs of the weights, of expectations over N(0, 1) times sqrt(2 pi)."""
    node, weight = np.polynomial.hermite_e.hermegauss(count)
    return jnp.asarray(node, dtype), jnp.asarray(np.log(weight), dtype)
