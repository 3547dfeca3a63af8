"""Privacy budgets of releases: who is protected against whom, and how a budget adds up over releases."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from perfjax import accounting

__all__ = [
    "PRINTED_DELTA",
    "AbstractBudget",
    "GaussianBudget",
    "Privacy",
    "PureBudget",
    "budget_lines",
    "protects_nobody",
]

PRINTED_DELTA = 1e-6  # of the (epsilon, delta) budgets that are printed, unless another one is asked for
NO_PROTECTION = 10.0  # epsilon of all releases above which a budget is said to protect nobody
SCOPES = {"local": "of each user's own noisy record", "central": "of what is published"}


class AbstractBudget(eqx.Module):
    """A privacy budget, of one release or composed."""

    @property
    @abc.abstractmethod
    def rho(self) -> Float[Array, "..."]:
        """rho of zero-concentrated differential privacy."""

    @abc.abstractmethod
    def epsilon(self, delta: ArrayLike) -> Float[Array, "..."]:
        """epsilon of (epsilon, delta)-differential privacy."""

    @abc.abstractmethod
    def composed(self) -> "AbstractBudget":
        """The budget of all releases together; they lie along the last axis."""


class GaussianBudget(AbstractBudget):
    """The budget of a Gaussian mechanism, exact in every currency.

    Attributes:
        mu: of Gaussian differential privacy; infinite without noise or without clipping.
    """

    mu: Float[Array, "..."]

    @property
    def rho(self) -> Float[Array, "..."]:
        """rho = mu^2 / 2."""
        return accounting.rho_from_mu(self.mu)

    def epsilon(self, delta: ArrayLike) -> Float[Array, "..."]:
        """The least epsilon such that (epsilon, delta) holds, exactly."""
        return accounting.gaussian_epsilon(delta=jnp.asarray(delta, self.mu.dtype), mu=self.mu)

    def composed(self) -> "GaussianBudget":
        """mu^2 adds."""
        return GaussianBudget(accounting.compose_mu(self.mu))


class PureBudget(AbstractBudget):
    """The budget of a purely epsilon-differentially private mechanism.

    Attributes:
        pure_epsilon: epsilon at delta = 0.
    """

    pure_epsilon: Float[Array, "..."]

    @property
    def rho(self) -> Float[Array, "..."]:
        """An upper bound, by the tight conversion of `accounting.pure_rho`."""
        return accounting.pure_rho(self.pure_epsilon)

    def epsilon(self, delta: ArrayLike) -> Float[Array, "..."]:
        """epsilon itself, whatever delta."""
        return self.pure_epsilon + jnp.zeros_like(jnp.asarray(delta, self.pure_epsilon.dtype))

    def composed(self) -> "PureBudget":
        """epsilon adds (basic composition)."""
        return PureBudget(jnp.sum(self.pure_epsilon, axis=-1))


class Privacy(eqx.Module):
    """What one release, or each of several, costs in privacy, for one user's record replaced by another (replace-one).

    Of a count: for one user more or less (add-remove).

    Attributes:
        local: against anyone who sees the user's own noisy record.
        central: against anyone who sees the release; None where nothing better than `local` is claimed.
    """

    local: AbstractBudget
    central: AbstractBudget | None

    def composed(self) -> "Privacy":
        """The budget of all releases (last axis) together."""
        return Privacy(self.local.composed(), None if self.central is None else self.central.composed())


def budget_lines(releases: Privacy, *, delta: float = PRINTED_DELTA) -> list[str]:
    """Say what releases cost in privacy: by scope, each and all together, and whether that protects anybody.

    Args:
        releases: the budget of every release, along the only axis.
        delta: of the (epsilon, delta) budgets; in (0, 1).

    Returns:
        A line for each scope that there is, and a last one where epsilon of all releases together is above 10: central,
        or local where no central budget is known.

    Raises:
        ValueError: if there is more than the one axis.
    """
    _check_one_axis(releases)
    known = {scope: getattr(releases, scope) for scope in SCOPES if getattr(releases, scope) is not None}
    count = releases.local.rho.shape[-1]
    lines = []
    for scope, budget in known.items():
        each, all_of = np.asarray(budget.epsilon(delta)), budget.composed()
        ends = " to ".join(dict.fromkeys(_number(float(x)) for x in (each.min(), each.max())))
        at = (
            "delta = 0"
            if isinstance(budget, PureBudget)
            else f"delta = {delta:g}; rho {_number(float(all_of.rho))} over all"
        )
        lines.append(
            f"{scope.capitalize()} budget ({SCOPES[scope]}): epsilon {ends} per release,"
            f" {_number(float(all_of.epsilon(delta)))} over all {count} releases ({at})."
        )
    if "central" not in known:
        lines.append("No central budget (of what is published) is known.")
    warning = protects_nobody(releases, delta=delta)
    return lines if warning is None else [*lines, warning]


def protects_nobody(releases: Privacy, *, delta: float = PRINTED_DELTA) -> str | None:
    """Say so where epsilon of all releases together is above 10: central, or local where no central budget is known.

    Args:
        releases: the budget of every release, along the only axis.
        delta: of the (epsilon, delta) budgets; in (0, 1).

    Returns:
        A sentence; None at an epsilon of 10 or below.

    Raises:
        ValueError: if there is more than the one axis.
    """
    _check_one_axis(releases)
    scope, budget = ("local", releases.local) if releases.central is None else ("central", releases.central)
    total, count = float(budget.composed().epsilon(delta)), budget.rho.shape[-1]
    if total <= NO_PROTECTION:
        return None
    who = "" if scope == "central" else " from those who receive the noisy records"
    at = "" if isinstance(budget, PureBudget) else f" at delta = {delta:g}"
    size = "unbounded" if total == np.inf else f"{_number(total)}{at}, above {NO_PROTECTION:g}"
    return f"This budget protects nobody{who}: the {scope} epsilon over all {count} releases is {size}."


def _check_one_axis(releases):
    shape = releases.local.rho.shape
    if len(shape) != 1:
        raise ValueError(f"Argument `releases` must have one axis, of the releases of one run, but has shape {shape}.")


def _number(value: float) -> str:
    return "unbounded" if value == np.inf else f"{value:.3g}"
