"""Privacy budgets of releases: who is protected against whom, and how a budget adds up over releases."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax import accounting

__all__ = ["AbstractBudget", "GaussianBudget", "Privacy", "PureBudget"]


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
        return accounting.gaussian_epsilon(jnp.asarray(delta, self.mu.dtype), self.mu)

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
