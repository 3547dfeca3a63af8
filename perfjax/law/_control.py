"""The law as a chain that noise controls: what each release's noise is worth to the sum of errors."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax._linear import product
from perfjax.law._kernel import Kernel, kernel_of
from perfjax.law._law import DEFAULT_SIZE
from perfjax.law._nodes import Grid, grid, on_every_other
from perfjax.scenario import Scenario

__all__ = ["Chain", "chain_of"]

LEVELS = 192  # of log noise in a table: over six decades of noise rows are some 1e-7 off


class Chain(NamedTuple):
    """A scenario on the nodes of its law, and what counts.

    Attributes:
        kernel: its rows, given the noise.
        penalty: error of a release after collapse; None for the error of the users at the floor.
        table: of rows to interpolate in, for searches; None to compute them.
    """

    kernel: Kernel
    penalty: Float[Array, ""] | None
    table: "_Table | None" = None

    @property
    def scenario(self) -> Scenario:
        """Whose own noise plays no role."""
        return self.kernel.scenario

    @property
    def grid(self) -> Grid:
        """The nodes."""
        return self.kernel.grid

    @property
    def sources(self) -> Float[Array, " sources"]:
        """Populations for which a noise is asked: whole numbers, nodes, and last the users at release 0."""
        return self.kernel.sources

    def rows(self, noise: Float[Array, "*sources"]) -> Float[Array, "sources nodes"]:
        """The next population's distribution, given the noise of every source."""
        return self.kernel.rows(noise)

    def tabulated(self, low: Float[Array, ""], high: Float[Array, ""]) -> "Chain":
        """The chain with rows interpolated in log noise from `low` to `high`: to search in, not to report from.

        Some 1e-6 off, in a hundredth of the time.
        """
        step = jnp.maximum(high - low, 1e-3) / (LEVELS - 1)
        levels = low + step * jnp.arange(LEVELS, dtype=low.dtype)
        rows = jax.lax.map(lambda x: self._moved(self.rows(jnp.exp(x))), levels)
        return self._replace(table=_Table(low, step, rows))

    def errors(self, noise: Float[Array, "*sources"]) -> Float[Array, " sources"]:
        """The error of a release, given the noise of every source."""
        x = self._populations
        return jax.vmap(self.scenario.error)(x, jnp.broadcast_to(noise, x.shape))

    def worth(
        self, noise: Float[Array, "*sources"], following: Float[Array, " nodes"], left: Float[Array, ""] | int
    ) -> Float[Array, " sources"]:
        """The sum of errors from a release on, `following` being that from the next one on, by node.

        `left` is how many releases there are from this one on: a collapsed run pays the penalty for each.
        """
        return self._worth(self.errors(noise), product(self.rows(noise), following), left, slice(None))

    def worths(
        self,
        errors: Float[Array, "actions sources"],
        rows: Float[Array, "actions sources nodes"],
        following: Float[Array, " nodes"],
        left: Float[Array, ""],
    ) -> Float[Array, "actions sources"]:
        """`worth` of several noises, from their errors and rows."""
        return jax.vmap(lambda e, r: self._worth(e, product(r, following), left, slice(None)))(errors, rows)

    def value(self, noise: Float[Array, "releases *sources"]) -> Float[Array, ""]:
        """The expected sum of errors on the nodes as they are, without extrapolation."""

        def back(following, at):
            worth = self.worth(at[0], following, at[1])
            return worth[:-1], worth[-1]

        at = noise, self.left(noise.shape[0])
        return jax.lax.scan(back, jnp.zeros_like(self.grid.nodes), at, reverse=True)[1][0]

    def left(self, releases: int) -> Float[Array, " releases"]:
        """How many releases there are from each one on."""
        return jnp.arange(releases, 0, -1, dtype=self.grid.nodes.dtype)

    @property
    def _populations(self):
        """Users at the sources, held to floor and cap."""
        return jnp.append(self.grid.nodes, self.kernel.start)

    def _worth(self, errors, expected, left, chosen):
        """What sources are worth, `expected` being what the next release is worth from there."""
        worth = errors[chosen] + expected
        if self.penalty is None:
            return worth
        down = self._populations[chosen] <= self.scenario.participation.collapse_population
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
            errors, parts = self.errors(x), self._parts(x)
            expected = [part.expected(following) for part, following in zip(parts, followings, strict=True)]
            return [self._worth(errors, e, remaining, g.chosen) for e, g in zip(expected, grids, strict=True)]

        def back(followings, at):
            x, remaining = at
            worth, slope = jax.jvp(lambda x: worths(x, followings, remaining), (x,), (jnp.ones_like(x),))
            return [w[:-1] for w in worth], ([w[-1] for w in worth], slope)

        def forth(likely, x):
            following = [part.moved(p) for p, part in zip(likely, self._parts(x), strict=True)]
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

    def _parts(self, noise) -> list["_Part"]:
        """The rows on each of the grids."""
        if self.table is None:
            return [_Part(jnp.ones((1, 1), noise.dtype), rows[None]) for rows in self._moved(self.rows(noise))]
        chosen = [level.chosen for level in self._grids()]
        return [self.table.at(noise, rows, which) for rows, which in zip(self.table.rows, chosen, strict=True)]

    def _moved(self, rows) -> list[Float[Array, "sources nodes"]]:
        """The rows on each of the grids."""
        if self.grid.every_other is None:
            return [rows]
        return [rows, on_every_other(self.grid.nodes, rows[np.append(self.grid.every_other, -1)])]


class _Part(NamedTuple):
    """Rows as a weighted sum of several: a weight for each of them, and for each source or for all alike."""

    weights: Float[Array, "several *sources"]
    rows: Float[Array, "several sources nodes"]

    def expected(self, following: Float[Array, " nodes"]) -> Float[Array, " sources"]:
        """Of what the next release is worth."""
        return jnp.sum(self.weights * product(self.rows, following), axis=0)

    def moved(self, likely: Float[Array, " sources"]) -> Float[Array, " nodes"]:
        """The distribution a release later."""
        return jnp.einsum("js,jsn->n", self.weights * likely, self.rows, precision="highest")


class _Table(NamedTuple):
    """Rows at evenly spaced log noises: `low`, `low` + `step`, ..., on each of the grids."""

    low: Float[Array, ""]
    step: Float[Array, ""]
    rows: list[Float[Array, "levels sources nodes"]]

    def at(self, noise: Float[Array, "*sources"], rows: Float[Array, "levels sources nodes"], chosen) -> _Part:
        """The four rows around a noise, or around the noise of every source, weighted by the cubic through them."""
        noise = jnp.ravel(noise) if noise.size == 1 else noise[chosen]
        place = (jnp.log(noise) - self.low) / self.step
        first = jnp.clip(jnp.floor(place).astype(jnp.int32) - 1, 0, LEVELS - 4)
        x = place - first.astype(place.dtype)
        weights = jnp.stack(
            [
                -(x - 1) * (x - 2) * (x - 3) / 6,
                x * (x - 2) * (x - 3) / 2,
                -x * (x - 1) * (x - 3) / 2,
                x * (x - 1) * (x - 2) / 6,
            ]
        )
        if noise.size == 1:
            return _Part(weights, jax.lax.dynamic_slice_in_dim(rows, first[0], 4))
        around = first + jnp.arange(4, dtype=first.dtype)[:, None]
        return _Part(weights, rows[around, jnp.arange(chosen.size)])


class _Level(NamedTuple):
    """Nodes, the sources among which their rows are, and what it counts in the extrapolation."""

    nodes: Float[Array, " nodes"]
    chosen: np.ndarray
    weight: float


def chain_of(
    scenario: Scenario, penalty: Float[Array, ""] | None = None, *, size: int = DEFAULT_SIZE, cap: int | None = None
) -> Chain:
    """The chain of a checked scenario; `size` and `cap` are those of `law_of`."""
    return Chain(kernel_of(scenario, grid(scenario.participation, size, cap)), penalty)
