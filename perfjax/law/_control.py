"""The law as a chain that noise controls: what each release's noise is worth to the sum of errors."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax._linear import product
from perfjax.law._kernel import kernel, sources
from perfjax.law._law import DEFAULT_SIZE
from perfjax.law._nodes import Grid, grid, on_every_other
from perfjax.scenario import Scenario

__all__ = ["Chain", "chain_of"]


class Chain(NamedTuple):
    """A scenario on the nodes of its law, and what counts.

    Attributes:
        scenario: whose own noise plays no role.
        grid: its nodes.
        penalty: error of a release after collapse; None for the error of the users at the floor.
    """

    scenario: Scenario
    grid: Grid
    penalty: Float[Array, ""] | None

    @property
    def start(self) -> Float[Array, ""]:
        """Users at release 0."""
        return self.scenario.participation.bounded(self.scenario.population)

    @property
    def sources(self) -> Float[Array, " sources"]:
        """Populations for which a noise is asked: whole numbers, nodes, and last the users at release 0."""
        return sources(self.grid, self.start)

    def rows(self, noise: Float[Array, "*sources"]) -> Float[Array, "sources nodes"]:
        """The next population's distribution, given the noise of every source."""
        matrix, first = kernel(self.scenario, noise, self.grid, self.start)
        return jnp.concatenate([matrix, first[None]])

    def errors(self, noise: Float[Array, "*sources"]) -> Float[Array, " sources"]:
        """The error of a release, given the noise of every source."""
        x = jnp.append(self.grid.nodes, self.start)
        return jax.vmap(self.scenario.error)(x, jnp.broadcast_to(noise, x.shape))

    def worth(
        self, noise: Float[Array, "*sources"], following: Float[Array, " nodes"], left: Float[Array, ""] | int
    ) -> Float[Array, " sources"]:
        """The sum of errors from a release on, `following` being that from the next one on, by node.

        `left` is how many releases there are from this one on: a collapsed run pays the penalty for each.
        """
        return self._worth(self.errors(noise), self.rows(noise), following, left, slice(None))

    def worths(
        self,
        errors: Float[Array, "actions sources"],
        rows: Float[Array, "actions sources nodes"],
        following: Float[Array, " nodes"],
        left: Float[Array, ""],
    ) -> Float[Array, "actions sources"]:
        """`worth` of several noises, from their errors and rows."""
        return jax.vmap(lambda e, r: self._worth(e, r, following, left, slice(None)))(errors, rows)

    def value(self, noise: Float[Array, "releases *sources"]) -> Float[Array, ""]:
        """The expected sum of errors on the nodes as they are, without extrapolation."""

        def back(following, at):
            worth = self.worth(at[0], following, at[1])
            return worth[:-1], worth[-1]

        at = noise, self.left(noise.shape[0])
        return jax.lax.scan(back, jnp.zeros_like(self.grid.nodes), at, reverse=True)[1][0]

    def left(self, releases: int) -> Float[Array, " releases"]:
        """How many releases there are from each one on."""
        return jnp.arange(releases, 0, -1, dtype=self.start.dtype)

    def _worth(self, errors, rows, following, left, chosen):
        worth = errors[chosen] + product(rows, following)
        if self.penalty is None:
            return worth
        down = jnp.append(self.grid.nodes, self.start)[chosen] <= self.scenario.participation.collapse_population
        return jnp.where(down, self.penalty * left, worth)

    def value_and_slope(
        self, noise: Float[Array, "releases *sources"]
    ) -> tuple[Float[Array, ""], Float[Array, "releases sources"]]:
        """The expected sum of errors, as `law_of` extrapolates it, and its slope by the noise of release and source.

        Backwards, what a source is worth from a release on; forwards, how likely it is: the derivative is the product
        of the latter with that of the former. Reverse mode through the kernels would store them all.
        """
        grids = self._grids()
        left = self.left(noise.shape[0])

        def worths(x, followings, remaining):
            errors, rows = self.errors(x), self._moved(self.rows(x))
            each = zip(rows, followings, grids, strict=True)
            return [self._worth(errors, r, following, remaining, g.chosen) for r, following, g in each]

        def back(followings, at):
            x = jnp.broadcast_to(at[0], self.sources.shape)
            worth, slope = jax.jvp(lambda x: worths(x, followings, at[1]), (x,), (jnp.ones_like(x),))
            return [w[:-1] for w in worth], ([w[-1] for w in worth], slope)

        def forth(likely, x):
            rows = self._moved(self.rows(x))
            following = [product(p, r) for p, r in zip(likely, rows, strict=True)]
            return [jnp.append(p, 0) for p in following], likely

        _, (values, slopes) = jax.lax.scan(back, [jnp.zeros_like(g.nodes) for g in grids], (noise, left), reverse=True)
        here = [jnp.append(jnp.zeros_like(g.nodes), 1) for g in grids]
        _, likely = jax.lax.scan(forth, here, noise)
        value = sum(g.weight * v[0] for g, v in zip(grids, values, strict=True))
        total = jnp.zeros((noise.shape[0], self.sources.size), noise.dtype)
        for g, p, slope in zip(grids, likely, slopes, strict=True):
            total = total.at[:, g.chosen].add(g.weight * p * slope)
        return value, total

    def _grids(self) -> list["_Level"]:
        """The grid and, unless all of its nodes are whole numbers, the coarser one that extrapolation needs."""
        x, every = self.grid.nodes, self.grid.every_other
        everything = np.arange(self.sources.size)
        if every is None:
            return [_Level(x, everything, 1.0)]
        return [_Level(x, everything, 4 / 3), _Level(x[every], np.append(every, everything[-1]), -1 / 3)]

    def _moved(self, rows) -> list[Float[Array, "sources nodes"]]:
        """The rows on each of the grids."""
        if self.grid.every_other is None:
            return [rows]
        return [rows, on_every_other(self.grid.nodes, rows[np.append(self.grid.every_other, -1)])]


class _Level(NamedTuple):
    """Nodes, the sources among which their rows are, and what it counts in the extrapolation."""

    nodes: Float[Array, " nodes"]
    chosen: np.ndarray
    weight: float


def chain_of(
    scenario: Scenario, penalty: Float[Array, ""] | None = None, *, size: int = DEFAULT_SIZE, cap: int | None = None
) -> Chain:
    """The chain of a checked scenario; `size` and `cap` are those of `law_of`."""
    return Chain(scenario, grid(scenario.participation, size, cap), penalty)
