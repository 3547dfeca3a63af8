"""One labelled record among others: what subset means with (IN) and without it (OUT) reveal.

All copies of IN and OUT reduce to one contrast, (n + 1) mean_in - n mean_out = x_j, n the size of the background.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_floats, check_shapes, in_range
from perfjax.accounting._roots import increasing_root

__all__ = [
    "additive_risk",
    "balanced_risk",
    "basic_allocation",
    "basic_allocation_risk",
    "basic_free_delta",
    "calibrated_risk",
    "in_out_estimate",
    "in_out_risk",
    "in_out_split",
]


def in_out_risk(
    background: ArrayLike,
    *,
    in_releases: ArrayLike,
    out_releases: ArrayLike,
    in_variance: ArrayLike,
    out_variance: ArrayLike,
) -> Float[Array, "..."]:
    """The least mean squared error for x_j, (n + 1)² s_in²/L_in + n² s_out²/L_out; `in_out_estimate` attains it.

    Args:
        background: n >= 1, records besides the target.
        in_releases: L_in >= 0, means over target and background.
        out_releases: L_out >= 0, means over the background.
        in_variance: s_in² > 0, noise variance of each IN release.
        out_variance: s_out² > 0.

    Returns:
        The risk; infinite, with a zero gradient, without an IN or without an OUT release.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section III-C.

    Example:
        >>> print(in_out_risk(1, in_releases=1, out_releases=1, in_variance=1.0, out_variance=1.0))
        5.0
    """
    n, l_in, l_out, v_in, v_out = as_floats(
        background=background,
        in_releases=in_releases,
        out_releases=out_releases,
        in_variance=in_variance,
        out_variance=out_variance,
    )
    n, l_in, l_out = (
        in_range(n, "background", 1.0),
        in_range(l_in, "in_releases", 0.0),
        in_range(l_out, "out_releases", 0.0),
    )
    v_in, v_out = _positive(v_in, "in_variance"), _positive(v_out, "out_variance")
    both = (l_in > 0) & (l_out > 0)
    risk = (n + 1) ** 2 * v_in / jnp.where(both, l_in, 1) + n**2 * v_out / jnp.where(both, l_out, 1)
    return jnp.where(both, risk, jnp.inf)


def in_out_estimate(in_mean: ArrayLike, out_mean: ArrayLike, background: ArrayLike) -> Float[Array, "..."]:
    """The best linear unbiased estimate of x_j: (n + 1) mean_in - n mean_out.

    Args:
        in_mean: the average of the IN releases.
        out_mean: the average of the OUT releases.
        background: n >= 1, records besides the target.

    Returns:
        The estimate.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section III-C.
    """
    above, below, n = as_floats(in_mean=in_mean, out_mean=out_mean, background=background)
    n = in_range(n, "background", 1.0)
    return (n + 1) * above - n * below


def in_out_split(
    releases: ArrayLike, background: ArrayLike, *, in_variance: ArrayLike, out_variance: ArrayLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """How many of L releases should be IN: L a/(a + b), a = (n + 1) s_in, b = n s_out.

    Args:
        releases: L >= 2.
        background: n >= 1.
        in_variance: s_in² > 0, noise variance of each IN release.
        out_variance: s_out² > 0.

    Returns:
        The best real number, whose risk is (a + b)²/L, and the best whole one, from 1 to L - 1.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (34) and (35).

    Example:
        >>> real, whole = in_out_split(11, 3, in_variance=0.5, out_variance=4.0)
        >>> print(f"{real:.4f} {whole:.0f}")
        3.5241 4
    """
    total, n, v_in, v_out = as_floats(
        releases=releases, background=background, in_variance=in_variance, out_variance=out_variance
    )
    total, n = in_range(total, "releases", 2.0), in_range(n, "background", 1.0)
    a = (n + 1) * jnp.sqrt(_positive(v_in, "in_variance"))
    b = n * jnp.sqrt(_positive(v_out, "out_variance"))
    real = total * a / (a + b)
    below, above = (jnp.clip(x, 1, total - 1) for x in (jnp.floor(real), jnp.floor(real) + 1))

    def risk(x):
        return a**2 / x + b**2 / (total - x)

    return real, jnp.where(risk(below) <= risk(above), below, above)


def calibrated_risk(
    kappa: ArrayLike, in_releases: ArrayLike, out_releases: ArrayLike, *, width: ArrayLike = 1.0
) -> Float[Array, "..."]:
    """`in_out_risk` with noise calibrated to Δ/(n + 1) and Δ/n: κ_L Δ² (1/L_in + 1/L_out). The background cancels.

    Args:
        kappa: κ_L in (0, ∞], L = L_in + L_out.
        in_releases: L_in >= 1.
        out_releases: L_out >= 1.
        width: Δ > 0; records lie in [-Δ/2, Δ/2].

    Returns:
        The risk of locally unbiased estimators. The constant 0 has at most Δ²/4.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (38) to (40).
    """
    kappa, l_in, l_out, width = as_floats(kappa=kappa, in_releases=in_releases, out_releases=out_releases, width=width)
    kappa, width = in_range(kappa, "kappa", 0.0, open_low=True), _positive(width, "width")
    l_in, l_out = in_range(l_in, "in_releases", 1.0), in_range(l_out, "out_releases", 1.0)
    return kappa * width**2 * (1 / l_in + 1 / l_out)


def balanced_risk(kappa: ArrayLike, releases: ArrayLike, *, width: ArrayLike = 1.0) -> Float[Array, "..."]:
    """`calibrated_risk` of L releases split evenly: 4 Δ² κ_L/L for even L, 4 Δ² κ_L L/(L² - 1) for odd L.

    Args:
        kappa: κ_L in (0, ∞].
        releases: L, whole and at least 2.
        width: Δ > 0.

    Returns:
        The risk: flat in even L under "zcdp", "rdp" and "gdp", rising like L log L under "basic".

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (40), which holds for even L.

    Example:
        >>> from perfjax.accounting import kappa
        >>> print(f"{balanced_risk(kappa(releases=20, epsilon=1.0, delta=1e-5, accountant='zcdp'), 20):.4f}")
        96.0618
    """
    kappa, total, width = as_floats(kappa=kappa, releases=releases, width=width)
    half = jnp.floor(in_range(total, "releases", 2.0) / 2)
    return calibrated_risk(kappa, half, total - half, width=width)


def additive_risk(kappa_one: ArrayLike, *, in_share: ArrayLike = 0.5, width: ArrayLike = 1.0) -> Float[Array, "..."]:
    """The risk when IN and OUT get shares of an additive budget (zCDP, Gaussian DP, one Rényi order).

    κ_1 Δ² (1/share + 1/(1 - share)), whatever L_in and L_out; least at equal shares: 4 κ_1 Δ², that is, 2 Δ²/ρ or
    4 Δ²/μ².

    Args:
        kappa_one: κ_1 in (0, ∞], the noise of one release at the whole budget.
        in_share: in (0, 1), the share of the IN releases together.
        width: Δ > 0.

    Returns:
        The risk.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.
    """
    kappa, share, width = as_floats(kappa_one=kappa_one, in_share=in_share, width=width)
    kappa, width = in_range(kappa, "kappa_one", 0.0, open_low=True), _positive(width, "width")
    share = in_range(share, "in_share", 0.0, 1.0, open_low=True, open_high=True)
    return kappa * width**2 / (share * (1 - share))


def basic_allocation(
    in_releases: ArrayLike, out_releases: ArrayLike, *, epsilon: ArrayLike, in_delta: ArrayLike, out_delta: ArrayLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The best ε of each IN and of each OUT release under basic composition of classic Gaussians: the cube-root law.

    u = L_in ε_in = ε (c_in L_in)^(1/3)/((c_in L_in)^(1/3) + (c_out L_out)^(1/3)), c = log(1.25/δ).

    Args:
        in_releases: L_in >= 1.
        out_releases: L_out >= 1.
        epsilon: ε > 0, of all releases together.
        in_delta: δ in (0, 1), of each IN release.
        out_delta: δ in (0, 1), of each OUT release.

    Returns:
        ε_in and ε_out, with L_in ε_in + L_out ε_out = ε.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section III-E.
    """
    l_in, l_out, epsilon, root_in, root_out = _roots(in_releases, out_releases, epsilon, in_delta, out_delta)
    share = root_in / (root_in + root_out)
    return epsilon * share / l_in, epsilon * (1 - share) / l_out


def basic_allocation_risk(
    in_releases: ArrayLike,
    out_releases: ArrayLike,
    *,
    epsilon: ArrayLike,
    in_delta: ArrayLike,
    out_delta: ArrayLike,
    width: ArrayLike = 1.0,
) -> Float[Array, "..."]:
    """The risk at `basic_allocation`: (2Δ²/ε²) ((c_in L_in)^(1/3) + (c_out L_out)^(1/3))³.

    For given L and equal c the balanced split is the worst, (1, L - 1) the best.

    Args:
        in_releases, out_releases, epsilon, in_delta, out_delta: as in `basic_allocation`.
        width: Δ > 0; records lie in [-Δ/2, Δ/2].

    Returns:
        The risk of locally unbiased estimators.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (42), whose optimiser is lost.

    Example:
        >>> risk = basic_allocation_risk(1, 9, epsilon=1.0, in_delta=1e-6, out_delta=1e-6)
        >>> print(f"{risk:.3f}")
        820.433
    """
    _, _, epsilon, root_in, root_out = _roots(in_releases, out_releases, epsilon, in_delta, out_delta)
    epsilon, width = as_floats(epsilon=epsilon, width=width)
    return 2 * (_positive(width, "width") / epsilon) ** 2 * (root_in + root_out) ** 3


def basic_free_delta(
    in_releases: ArrayLike, out_releases: ArrayLike, *, delta: ArrayLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The best δ of each IN and of each OUT release for `basic_allocation_risk`, given that of all together.

    With A = L_in δ_in: L_in^(1/3) c_in^(-2/3)/A = L_out^(1/3) c_out^(-2/3)/(δ - A).

    Args:
        in_releases: L_in >= 1.
        out_releases: L_out >= 1.
        delta: δ in (0, 1), of all releases together.

    Returns:
        δ_in and δ_out, with L_in δ_in + L_out δ_out = δ.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> in_delta, out_delta = basic_free_delta(1, 9, delta=1e-5)
        >>> risk = basic_allocation_risk(1, 9, epsilon=1.0, in_delta=in_delta, out_delta=out_delta)
        >>> print(f"{risk:.3f}")
        808.712
    """
    l_in, l_out, delta = as_floats(in_releases=in_releases, out_releases=out_releases, delta=delta)
    shape = check_shapes(in_releases=l_in, out_releases=l_out, delta=delta)
    l_in, l_out = in_range(l_in, "in_releases", 1.0), in_range(l_out, "out_releases", 1.0)
    delta = in_range(delta, "delta", 0.0, 1.0, open_low=True, open_high=True)
    params = tuple(jnp.broadcast_to(x, shape) for x in (l_in, l_out, delta))
    start = jnp.zeros(shape, delta.dtype)
    odds = increasing_root(_excess_odds, start, jnp.full_like(start, jnp.inf), params)
    return delta * jax.nn.sigmoid(odds) / l_in, delta * jax.nn.sigmoid(-odds) / l_out


def _positive(value, name):
    return in_range(value, name, 0.0, open_low=True, open_high=True)


def _roots(in_releases, out_releases, epsilon, in_delta, out_delta):
    l_in, l_out, epsilon, d_in, d_out = as_floats(
        in_releases=in_releases, out_releases=out_releases, epsilon=epsilon, in_delta=in_delta, out_delta=out_delta
    )
    l_in, l_out = in_range(l_in, "in_releases", 1.0), in_range(l_out, "out_releases", 1.0)
    d_in = in_range(d_in, "in_delta", 0.0, 1.0, open_low=True, open_high=True)
    d_out = in_range(d_out, "out_delta", 0.0, 1.0, open_low=True, open_high=True)
    roots = (jnp.cbrt(count * jnp.log(1.25 / delta)) for count, delta in ((l_in, d_in), (l_out, d_out)))
    return l_in, l_out, _positive(epsilon, "epsilon"), *roots


def _excess_odds(odds, l_in, l_out, delta):
    """log of the two sides of the condition, the larger A the larger; `odds` is log A/(δ - A)."""

    def side(count, log_share):
        # log of count^(1/3) c^(-2/3)/(share of δ), c = log(1.25 count/(δ share))
        return jnp.log(count) / 3 - jnp.log(jnp.log(1.25 * count / delta) - log_share) * (2 / 3) - log_share

    return side(l_out, jax.nn.log_sigmoid(-odds)) - side(l_in, jax.nn.log_sigmoid(odds))
