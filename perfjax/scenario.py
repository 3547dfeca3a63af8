"""A scenario: who releases what to whom, how often, and what follows from a leak."""

import dataclasses
import functools
import inspect
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int

from perfjax import _check
from perfjax._check import Numbers
from perfjax.leakage import AbstractLeakage, CriticalNoise, check_pair, pair_of
from perfjax.mechanisms import AbstractMechanism
from perfjax.participation import Participation
from perfjax.policies import AbstractPolicy

__all__ = ["BASES", "PARTS", "Noise", "Scenario", "arguments", "as_single"]

Noise = Numbers | AbstractPolicy
"""What solvers take as noise: one value, one per release, or a policy."""

BASES = {"mechanism": AbstractMechanism, "leakage": AbstractLeakage, "participation": Participation}
PARTS = tuple(BASES)


class Scenario(eqx.Module):
    """Everything a simulation needs: releases 0..T, made by a mechanism, leaking by a rule, changing participation.

    Release t uses the n_t users of that moment and noise x_t, has error e(x_t, n_t), leaks each user with probability
    p(x_t, n_t), and so turns n_t into n_{t+1}. All float leaves share one dtype, the widest among them.

    Attributes:
        mechanism: what is released, with which noise: one value, or one for each of the T + 1 releases.
        leakage: what counts as leaked.
        participation: who leaves, who recruits, floor and cap.
        population: n_0, users at release 0, above 0 and at most the cap.
        rounds: T, at least 1.
        policy: the noise as a function of release and population, in place of the mechanism's own; or None.

    Raises:
        ValueError: if an argument is out of range, mechanism and leakage are no supported pair, the noise is neither
            one value nor T + 1 of them, the policy does not fit, or the population exceeds the cap.

    Example:
        >>> import perfjax as pj
        >>> scenario = pj.preset("mean-estimation")
        >>> print(scenario.replace(leave=0.3, noise_scale=2.0).participation.leave)
        0.3
    """

    mechanism: AbstractMechanism
    leakage: AbstractLeakage
    participation: Participation
    population: Float[Array, "..."]
    policy: AbstractPolicy | None
    rounds: int = eqx.field(static=True)

    def __init__(
        self,
        mechanism: AbstractMechanism,
        leakage: AbstractLeakage,
        participation: Participation,
        *,
        population: Numbers,
        rounds: int,
        policy: AbstractPolicy | None = None,
    ):
        for name, part in zip(PARTS, (mechanism, leakage, participation), strict=True):
            _check_numbers(_check.as_kind(part, name, BASES[name]))
        _check_names(type(mechanism), type(leakage), type(participation))
        mechanism, leakage = _with_floats((mechanism, leakage))
        check_pair(mechanism, leakage)
        population = _check.in_range(_check.as_float(population, "population"), "population", 0, open_low=True)
        if policy is not None:
            _check.as_kind(policy, "policy", AbstractPolicy)
        self.mechanism, self.leakage, self.participation, self.population, self.policy = _check.one_dtype(
            (mechanism, leakage, participation, population, policy)
        )
        self.rounds = _check.as_count(rounds, "rounds", low=1)
        if self.rounds >= 2**31:
            raise _check.fail("rounds", "be below 2^31", self.rounds)
        self._check_against_each_other()

    def _check_against_each_other(self):
        noise = self.mechanism.noise
        if noise.ndim and noise.shape != (self.rounds + 1,):
            requirement = f"be one value or {self.rounds + 1} of them, one per release (`rounds` + 1)"
            raise _check.fail(self.mechanism.noise_name, requirement, f"of shape {noise.shape}")
        if self.policy is not None:
            self.policy.check(self.mechanism, self.rounds)
        cap = self.participation.cap
        if _check.is_known(self.population, cap) and np.any(np.asarray(self.population) > np.asarray(cap)):
            raise _check.fail("population", f"be at most `cap` ({np.min(cap):g})", self.population)

    def replace(self, **leaves: Any) -> "Scenario":
        """A scenario with some leaves (of any part, by name) or whole parts replaced, and everything checked again.

        Args:
            **leaves: values by name; Python numbers take the dtype of the scenario.

        Returns:
            The new scenario; this one is left as it is.

        Raises:
            ValueError: for a name that no part has, with the nearest that one has; or a value out of range.
        """
        own = {name: getattr(self, name) for name in (*PARTS, "population", "rounds", "policy")}
        present = self.leaves()
        _check.check_known(leaves, (*own, *present), "leaf")
        leaves = {
            name: _check.in_dtype(value, self.population.dtype)
            if not isinstance(present.get(name), int | str)
            else value
            for name, value in leaves.items()
        }
        own |= {name: value for name, value in leaves.items() if name in own}
        for part in PARTS:
            made_of = arguments(_check.as_kind(own[part], part, BASES[part]))
            changed = {name: value for name, value in leaves.items() if name in made_of and name not in own}
            if changed:
                own[part] = type(own[part])(**(made_of | changed))
        return Scenario(**own)

    def leaves(self) -> dict[str, Any]:
        """Every leaf by its name: numbers as arrays, choices and counts as they are."""
        parts = [arguments(getattr(self, part)) for part in PARTS]
        return {name: value for part in parts for name, value in part.items()} | {
            "population": self.population,
            "rounds": self.rounds,
        }

    def meaning(self) -> dict[str, tuple[str, str]]:
        """Symbol and unit of its numbers, by name, where they have one."""
        noise = {self.mechanism.noise_name: (self.mechanism.noise_symbol, self.mechanism.noise_unit)}
        parts = (self.mechanism, self.leakage, self.participation)
        return functools.reduce(operator.or_, (part.meaning for part in parts), noise | {"population": ("n₀", "users")})

    def astype(self, dtype: DTypeLike) -> "Scenario":
        """The scenario with all float leaves in another dtype, "float32" or "float64"."""
        return _check.in_precision(self, dtype)

    def without_privacy(self) -> "Scenario":
        """The scenario with no noise: everybody is leaked at every release."""
        return self.replace_noise(self.mechanism.no_privacy)

    def replace_noise(self, noise: Noise | None) -> "Scenario":
        """The scenario with another noise or policy, checked, under whatever name; itself if `noise` is None."""
        if noise is None:
            return self
        if isinstance(noise, AbstractPolicy):
            return self.replace(policy=noise)
        return self.replace(policy=None, **{self.mechanism.noise_name: noise})

    def error(self, population: Numbers, noise: Numbers | None = None) -> Float[Array, ""]:
        """The expected error of a release to `population` users, with its own share of the round's budget."""
        population, noise = self.mechanism.typed(population, noise)
        released = pair_of(self.mechanism, self.leakage).released_noise(self.mechanism, self.leakage, noise)
        return self.mechanism.error(population, released)

    def critical_noise(self) -> CriticalNoise | None:
        """The noise at which the population neither grows nor shrinks, where a theorem has one for such a pair."""
        leave, recruit = self.participation.net
        pair = pair_of(self.mechanism, self.leakage)
        return pair.critical_noise(
            self.mechanism, self.leakage, leave=leave, recruit=recruit, population=self.population
        )

    def with_noise(self, noise: Float[Array, "..."]) -> "Scenario":
        """The scenario with its noise leaf set and no policy, unchecked: for code that traces."""
        name = self.mechanism.noise_name
        scenario = eqx.tree_at(lambda s: getattr(s.mechanism, name), self, noise)
        return scenario if self.policy is None else eqx.tree_at(lambda s: s.policy, scenario, None)

    def with_one_noise(self) -> "Scenario":
        """The scenario with one noise for all releases, for a search in which its own plays no role."""
        return self.with_noise(self.noises()[0]) if self.varies else self

    @property
    def varies(self) -> bool:
        """Whether releases differ in their noise, from one to the next or by their users."""
        return self.policy is not None or self.mechanism.noise.ndim > 0

    def noises(self) -> Float[Array, " releases"]:
        """The mechanism's noise, one value per release 0..T; for code that traces."""
        return jnp.broadcast_to(self.mechanism.noise, (self.rounds + 1,))

    def noise_of(
        self, population: Float[Array, "..."], release: Int[Array, ""] | int, noise: Float[Array, ""]
    ) -> Float[Array, "..."]:
        """The noise of a release to `population` users: that of the policy, or else `noise`, the release's own."""
        return noise if self.policy is None else self.policy(population, release)

    def with_leaves(self, **leaves: Float[Array, "..."]) -> "Scenario":
        """The scenario with some numbers set by their names, unchecked: for code that traces."""

        def chosen(scenario):
            places = [scenario, *(getattr(scenario, part) for part in PARTS)]
            return [next(getattr(place, name) for place in places if hasattr(place, name)) for name in leaves]

        return eqx.tree_at(chosen, self, list(leaves.values()))


def _check_numbers(part):
    """Raise a `ValueError` for a Python number where a part has a number to compute with, and to differentiate by."""
    for path, value in jax.tree.leaves_with_path(part):
        if isinstance(value, int | float):
            field = f"`{path[0].name}` of `{type(part).__name__}`"
            raise ValueError(f"Field {field} must be an array (by `eqx.field(converter=jnp.asarray)`) or static.")


@functools.cache
def _check_names(*kinds):
    """Raise a `ValueError` for a name that two parts have, or one and the scenario: by it both would be meant."""
    taken = dict.fromkeys(dir(Scenario), "Scenario")
    for kind in kinds:
        for name in _argument_names(kind):
            if name in taken:
                raise ValueError(f"Field `{name}` of `{kind.__name__}` is a name of `{taken[name]}` already.")
            taken[name] = kind.__name__


def _with_floats(parts):
    """Parts with whole numbers as floats: what is computed with them is none."""
    return jax.tree.map(
        lambda x: jnp.asarray(x, float) if eqx.is_array(x) and jnp.issubdtype(x.dtype, jnp.integer) else x, parts
    )


def as_single(scenario: Scenario, name: str = "scenario") -> Scenario:
    """`scenario`, if it is one scenario and not a batch, which takes `jax.vmap` or `sweep`."""
    _check.as_kind(scenario, name, Scenario)
    scalars = arguments(scenario.participation) | arguments(scenario.leakage) | {"population": scenario.population}
    for leaf, value in scalars.items():
        if eqx.is_array(value) and value.ndim:
            raise _check.fail(leaf, "be one number (a batch of scenarios takes `jax.vmap` or `sweep`)", value)
    return scenario


def arguments(part: eqx.Module) -> dict[str, Any]:
    """What a part was made of: its fields, less those it derives from the others."""
    return {name: getattr(part, name) for name in _argument_names(type(part))}


@functools.cache
def _argument_names(kind: type[eqx.Module]) -> tuple[str, ...]:
    asked = inspect.signature(kind).parameters
    return tuple(field.name for field in dataclasses.fields(kind) if field.name in asked)
