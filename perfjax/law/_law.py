"""`population_law`: propagate the distribution of the population through all releases."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax._fields import Field, as_dataset
from perfjax._linear import product
from perfjax._square_root import square_root
from perfjax.law._bins import FEW, Spread, quantile_of, spread_of, with_errors
from perfjax.law._kernel import Kernel, kernel_of
from perfjax.law._nodes import WHOLE, grid, on_every_other, on_nodes
from perfjax.leakage import check_count_level
from perfjax.scenario import Noise, Scenario, as_single

if TYPE_CHECKING:
    import xarray

__all__ = ["PopulationLaw", "check_law", "law_of", "population_law", "whole_cap"]

SIZES = (160, 320, 640, 1280, 2560)  # log-spaced nodes
DEFAULT_SIZE = 320
LARGEST_CAP = 1e18  # beyond, squares of populations overflow in float32, and no number of nodes is enough


class PopulationLaw(eqx.Module):
    """The distribution of the population at every release.

    Attributes:
        nodes: populations x_1 < ... < x_M, in users.
        probability: P(n_t = x_i), as weights that keep the mean, by release. With many users the population is far
            narrower than nodes are apart; these weights are not: `std` and `quantile` do not come from them.
        mean: E[n_t], in users.
        std: standard deviation of n_t, in users.
        std_error: estimated error of `std`, in users.
        quantile_error: estimated error of the quantiles from 5 to 95 %, in users, half a user included.
        expected_error: E[e(x_t, n_t)]; infinite with a floor of 0, once everybody may have left.
        surviving_error: E[e(x_t, n_t); not collapsed by t].
        collapse_probability: P(n_s <= max(floor, 1) for some s <= t).
        collapse_time: E[min(first such release, T)], in releases.
        relative_error: estimated relative error of the summed `expected_error`, from two node spacings; it says nothing
            of `std` and quantiles.
        spread: what quantiles are read from, at releases 1..T.
        scenario: what ran.
    """

    nodes: Float[Array, " nodes"]
    probability: Float[Array, "releases nodes"]
    mean: Float[Array, " releases"]
    std: Float[Array, " releases"]
    std_error: Float[Array, " releases"]
    quantile_error: Float[Array, " releases"]
    expected_error: Float[Array, " releases"]
    surviving_error: Float[Array, " releases"]
    collapse_probability: Float[Array, " releases"]
    collapse_time: Float[Array, ""]
    relative_error: Float[Array, ""]
    spread: Spread
    scenario: Scenario

    def quantile(self, p: Numbers) -> Float[Array, "*p releases"]:
        """The p-quantile of the population at every release.

        Up to some 20 users (with a small cap, up to any) half of a whole number's probability counts as below it, but
        all of it at floor and cap. At release 0 there is one population.

        Args:
            p: in [0, 1].

        Raises:
            ValueError: if `p` is out of range.
        """
        p = _check.in_range(_check.as_float(p, "p").astype(self.nodes.dtype), "p", 0, 1)
        few, who = self.nodes[: self.spread.few.shape[-1]], self.scenario.participation

        def one(level):
            return jnp.append(self.mean[0], jax.vmap(lambda at: quantile_of(at, few, who, level))(self.spread))

        return jnp.vectorize(one, signature="()->(t)")(p)

    def fields(self) -> dict[str, Field]:
        """The fields of one law, over `release` and `node`; its distribution at every release is by far the largest."""
        of_error = self.scenario.mechanism.error_unit
        units = dict.fromkeys(("mean", "std", "std_error", "quantile_error"), "users")
        units |= {"expected_error": of_error, "surviving_error": of_error, "collapse_probability": "1"}
        found = {name: Field(getattr(self, name), ("release",), {"units": unit}) for name, unit in units.items()}
        return found | {
            "probability": Field(self.probability, ("release", "node"), {"units": "1"}),
            "nodes": Field(self.nodes, ("node",), {"units": "users"}),
            "collapse_time": Field(self.collapse_time, (), {"units": "releases"}),
            "relative_error": Field(self.relative_error, (), {"units": "1"}),
        }

    def to_xarray(self) -> "xarray.Dataset":
        """The law as a dataset over `release` and `population`."""
        fields = self.fields()
        nodes, relative_error = fields.pop("nodes"), fields.pop("relative_error")
        fields["probability"] = fields["probability"]._replace(dims=("release", "population"))
        coords = {
            "release": np.arange(self.mean.size),
            "population": ("population", np.asarray(nodes.values), nodes.attributes),
        }
        return as_dataset(fields, coords=coords, attrs={"relative_error": float(relative_error.values)})

    def __str__(self) -> str:
        last = self.mean.size - 1
        return (
            f"Law of the population at releases 0..{last} on {self.nodes.size} nodes"
            f" (relative error {float(self.relative_error):.1e})\n"
            f"  population          {self.mean[0]:.6g} -> {self.mean[-1]:.6g} +- {self.std[-1]:.4g} users\n"
            f"  expected error      {self.expected_error[0]:.4g} -> {self.expected_error[-1]:.4g},"
            f" sum {jnp.sum(self.expected_error):.4g}\n"
            f"  P(collapsed by {last})  {self.collapse_probability[-1]:.4g}"
        )


def population_law(scenario: Scenario, *, noise: Noise | None = None, rtol: float | int | None = None) -> PopulationLaw:
    """The distribution of the population at every release: a Markov chain on nodes, no sampling.

    The population is a one-dimensional chain, so its law is T vector-matrix products. Rows of the kernel mix over the
    noise that all users of a release share. Hat functions put every row on the nodes; they keep its mean and widen it
    by a variance of the order of the squared spacing, so two spacings are run and extrapolated. Standard deviation and
    quantiles come from bins that move with the population and keep mass, mean and variance of what they hold, for with
    many users it is far narrower than nodes are apart.

    Args:
        scenario: the scenario; a Gaussian mean needs a scalar covariance and clipping that never binds. Cap at most
            1e18.
        noise: x, instead of the scenario's own: one value, one per release, or a policy.
        rtol: wanted relative error of the summed expected error, above 0: nodes are doubled until it is estimated to be
            met. By default 320 log-spaced nodes, about 0.5 %, which is the only choice for a traced scenario.

    Returns:
        `PopulationLaw`, differentiable in every float leaf.

    Raises:
        ValueError: if the scenario is out of reach at the count level, naming `simulate_users`; if `noise` or `rtol` is
            out of range; or if `rtol` is not met with 2560 nodes.

    Source: ours.

    Example:
        >>> import perfjax as pj
        >>> law = pj.population_law(pj.preset("mean-estimation").replace(noise_scale=5.6))
        >>> bool(law.collapse_probability[-1] < 0.1)
        True
    """
    check_law(as_single(scenario))
    scenario = scenario.replace_noise(noise)
    if rtol is None:
        return _population_law(scenario, DEFAULT_SIZE, whole_cap(scenario))
    if not isinstance(rtol, int | float | np.number) or not rtol > 0:
        raise _check.fail("rtol", "be above 0", _check.quoted(rtol))
    if not _check.is_known(*jax.tree.leaves(scenario)):
        raise _check.fail("rtol", "be None for a traced scenario", rtol)
    for size in SIZES:
        law = _population_law(scenario, size, whole_cap(scenario))
        if float(law.relative_error) <= rtol:
            return law
    reached = float(law.relative_error)
    raise ValueError(f"Argument `rtol` can't be met: {rtol:g} is asked for, {reached:.1e} is reached.")


def check_law(scenario: Scenario) -> None:
    """Raise a `ValueError` if the law of `scenario` is out of reach."""
    check_count_level(scenario.mechanism, scenario.leakage, "leaks")
    cap = scenario.participation.cap
    if _check.is_known(cap) and np.any(np.asarray(cap) > LARGEST_CAP):
        raise _check.fail("cap", f"be at most {LARGEST_CAP:g} for the law of the population", cap)


def whole_cap(scenario: Scenario) -> int | None:
    """The cap, if it is known and small enough for a node at every whole number."""
    cap = scenario.participation.cap
    if not _check.is_known(cap) or cap.ndim or float(cap) > WHOLE:
        return None
    return int(np.ceil(float(cap)))


@eqx.filter_jit
def _population_law(scenario, size, cap):
    return law_of(scenario, size, cap)


def law_of(scenario: Scenario, size: int = DEFAULT_SIZE, cap: int | None = None) -> PopulationLaw:
    """`population_law` of a checked scenario, to be traced by other code."""
    # Rows meet nodes throughout: where promotion of ranks raises, that is to find faults in other code than this.
    with jax.numpy_rank_promotion("allow"):
        return _law_of(scenario, size, cap)


def _law_of(scenario, size, cap) -> PopulationLaw:
    kernel = kernel_of(scenario, grid(scenario.participation, size, cap))
    nodes = kernel.grid
    states = _propagated(kernel)
    fine = _moments(scenario, nodes.nodes, states[0])
    if nodes.every_other is None:
        nothing = jnp.zeros_like(fine["mean"])
        exact = {"std_error": nothing, "quantile_error": nothing, "relative_error": nothing[0]}
        return PopulationLaw(**fine, **exact, spread=_whole_spread(fine), scenario=scenario)
    coarse = _moments(scenario, nodes.nodes[nodes.every_other], states[1])
    names = ("mean", "expected_error", "surviving_error", "collapse_probability", "collapse_time")
    better = {name: _extrapolated(fine[name], coarse[name]) for name in names}
    better["collapse_probability"] = jnp.clip(better["collapse_probability"], 0, 1)
    better["mean"] = scenario.participation.bounded(better["mean"])
    total, unimproved = (jnp.sum(x["expected_error"]) for x in (better, fine))
    finite = jnp.isfinite(total)
    better["relative_error"] = jnp.where(finite, jnp.abs(total - unimproved) / jnp.abs(jnp.where(finite, total, 1)), 0)
    spread, *errors = with_errors(spread_of(kernel), nodes.nodes[: FEW + 1], scenario.participation)
    names = ("std", "std_error", "quantile_error")
    spreads = {name: jnp.append(0, x) for name, x in zip(names, (spread.std, *errors), strict=True)}
    return PopulationLaw(**(fine | better | spreads), spread=spread, scenario=scenario)


def _whole_spread(moments) -> Spread:
    """The spread where every whole number is a node: nobody is above the few."""
    nobody = jnp.zeros_like(moments["probability"][1:, :2])
    return Spread(moments["mean"][1:], moments["std"][1:], moments["probability"][1:], nobody, nobody, nobody[:, 0])


def _extrapolated(fine, coarse):
    """To no spacing at all: the widening goes with the squared spacing. What is infinite stays so.

    Nodes too few for that to hold would lead below 0, where no mean of errors lies: half the finer value is the least.
    """
    finite = jnp.isfinite(fine) & jnp.isfinite(coarse)
    fine_or_0, coarse_or_0 = (jnp.where(finite, x, 0) for x in (fine, coarse))
    return jnp.where(finite, jnp.maximum((4 * fine_or_0 - coarse_or_0) / 3, fine_or_0 / 2), fine)


def _propagated(kernel: Kernel) -> tuple[Float[Array, "releases 2 nodes"], ...]:
    """At releases 1..T the distribution on the nodes, of all runs and of those that never collapsed.

    Once on the nodes and, unless they are all whole numbers, once more on every other one, by rows of the same kernel.
    """
    scenario, x, every = kernel.scenario, kernel.grid.nodes, kernel.grid.every_other
    who, noise = scenario.participation, scenario.noises()
    grids = (x,) if every is None else (x, x[every])

    def rows_at(t, x_t):
        rows = kernel.rows(scenario.noise_of(kernel.sources, t, x_t))
        return (rows,) if every is None else (rows, on_every_other(x, rows[np.append(every, -1)]))

    def moved(state, rows, x):
        every_run, survivors = product(state, rows)
        return jnp.stack([every_run, jnp.where(x <= who.collapse_population, 0, survivors)])

    def step(states, at):
        now = rows_at(*at) if scenario.varies else constant
        following = (moved(state, rows[:-1], x) for state, rows, x in zip(states, now, grids, strict=True))
        return tuple(following), states

    constant = rows_at(0, noise[0])
    alive = jnp.where(kernel.start <= who.collapse_population, 0, 1)
    at_start = jnp.stack([jnp.ones_like(kernel.start), alive])[:, None]
    first = tuple(moved(at_start, rows[-1:], x) for rows, x in zip(constant, grids, strict=True))
    return jax.lax.scan(step, first, (jnp.arange(1, noise.size), noise[1:]))[1]


def _errors(scenario, x) -> Float[Array, "releases nodes"]:
    """The error of releases 1..T at the nodes; of one release if all are alike."""

    def at(t, x_t):
        return jax.vmap(lambda n: scenario.error(n, scenario.noise_of(n, t, x_t)))(x)

    last = scenario.rounds + 1 if scenario.varies else 2
    return jax.vmap(at)(jnp.arange(1, last), scenario.noises()[1:last])


def _moments(scenario, x, states) -> dict[str, Array]:
    """What `PopulationLaw` reports, release 0 included: there the population is the one that is given."""
    who = scenario.participation
    start = who.bounded(scenario.population)
    at_once = scenario.error(start, scenario.noise_of(start, 0, scenario.noises()[0]))
    alive_start = jnp.where(start <= who.collapse_population, 0, 1).astype(x.dtype)
    alive = jnp.append(alive_start, jnp.sum(states[:, 1], axis=-1))
    error = _errors(scenario, x)
    # Nobody's error is infinite: not multiplied, or what never gets there would have a derivative of 0 times infinity.
    finite = jnp.isfinite(error)[:, None]
    expected = jnp.sum(states * jnp.where(finite, error[:, None], 0), axis=-1)
    expected = jnp.where(jnp.any(~finite & (states > 0), axis=-1), jnp.inf, expected)
    mean = jnp.append(start, product(states[:, 0], x))
    variance = jnp.sum(states[:, 0] * (x - mean[1:, None]) ** 2, axis=-1)
    return {
        "nodes": x,
        "probability": jnp.concatenate([on_nodes(x, start)[None], states[:, 0]]),
        "mean": mean,
        "std": jnp.append(0, square_root(variance)),
        "expected_error": jnp.append(at_once, expected[:, 0]),
        "surviving_error": jnp.append(jnp.where(alive_start > 0, at_once, 0), expected[:, 1]),
        "collapse_probability": jnp.maximum(1 - alive, 0),
        "collapse_time": jnp.sum(alive[:-1]),
    }
