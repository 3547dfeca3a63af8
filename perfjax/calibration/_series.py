"""Observed participation: counts per round, what else is known about each round, and what is wrong with a row."""

from collections.abc import Iterable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.scenario import Scenario

__all__ = ["Series", "as_series", "check_fits", "labelled"]

COLUMNS = ("population", "noise", "leavers", "joiners", "inflow")
MOST = 2.0**53  # users: beyond, floating-point numbers skip whole ones


class Series(eqx.Module):
    """Observed participation, one row per round 0..T; several groups have an axis in front.

    None and NaN are missing values. With leavers or joiners given, missing ones follow from

        n_{t+1} = n_t - leavers_t + joiners_t + inflow_t.

    Attributes:
        population: n_t, users counted at round t, whole, at least 1; NaN where not known.
        noise: x_t of the release that these users made, in the mechanism's unit; None: the scenario's own. That of the
            last round, which no count follows, may be missing.
        leavers: users who left because of release t, between rounds t and t + 1, whole, in [0, n_t]; NaN where not
            known; None if neither these nor joiners were given.
        joiners: users who were recruited in the same time, whole, at least 0; as `leavers` where not known.
        inflow: users who joined then for reasons of their own, whole, at least 0; 0 where not given.
        labels: names of the rounds; their numbers, from 0, if not given.

    Raises:
        ValueError: for fewer than three rounds, or fewer than two counts; and for a row that is negative, fractional,
            above 2^53, zero (a collapse), or has more leavers than users, by its number, counted from 1. What
            contradicts its leavers and joiners is refused by `fit`, which knows floor and cap.

    Source: ours.

    Example:
        >>> Series([1000, 1020, None, 1090]).rounds
        3
    """

    population: Float[Array, "*groups rounds"]
    noise: Float[Array, "*groups rounds"] | None
    leavers: Float[Array, "*groups rounds"] | None
    joiners: Float[Array, "*groups rounds"] | None
    inflow: Float[Array, "*groups rounds"]
    labels: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        population: Numbers,
        *,
        noise: Numbers | None = None,
        leavers: Numbers | None = None,
        joiners: Numbers | None = None,
        inflow: Numbers | None = None,
        labels: Sequence[str] | None = None,
    ):
        given = dict(zip(COLUMNS, (population, noise, leavers, joiners, inflow), strict=True))
        if population is None:
            raise _check.fail("population", "have at least 3 rounds", None)
        floats = {name: _floats(name, value) for name, value in given.items() if value is not None}
        dtype, found = floats["population"].dtype, {name: np.asarray(x, float) for name, x in floats.items()}
        n = found["population"]
        if n.ndim == 0 or n.shape[-1] < 3:
            raise _check.fail("population", "have at least 3 rounds", f"of shape {n.shape}")
        if n.size == 0:
            raise _check.fail("population", "have at least one group", f"of shape {n.shape}")
        self.labels = _labels(labels, n.shape[-1])
        for name, column in found.items():
            if column.shape not in (n.shape, n.shape[-1:]):
                raise _check.fail(name, f"have one value per round, {n.shape[-1]}", f"of shape {column.shape}")
        inflow = found.get("inflow", np.zeros_like(n))
        found["inflow"] = np.where(np.isnan(inflow), 0, inflow)
        self._check_rows(found)
        found = _completed({name: np.broadcast_to(x, n.shape) for name, x in found.items()})
        self._check_completed(found)
        typed = {name: jnp.asarray(x, dtype) for name, x in found.items()}
        self.population = typed["population"]
        self.noise = typed.get("noise")
        self.leavers, self.joiners = typed.get("leavers"), typed.get("joiners")
        self.inflow = typed["inflow"]

    @property
    def rounds(self) -> int:
        """T, one less than the rows."""
        return self.population.shape[-1] - 1

    def row(self, index: int) -> str:
        """How a message names a row."""
        label = self.labels[index]
        return f"row {index + 1}" + (f" ({label})" if label != str(index) else "")

    def _check_rows(self, found):
        n = found["population"]
        if np.any(np.sum(~np.isnan(n), axis=-1) < 2):
            raise ValueError("Argument `population` must have counts in at least 2 rounds, but nearly all are missing.")
        for name in ("population", "leavers", "joiners", "inflow"):
            column = found.get(name)
            if column is None:
                continue
            _raise_if(self, column < 0, name, "not be negative", column)
            _raise_if(self, np.isinf(column), name, "be finite", column)
            _raise_if(self, column > MOST, name, "be at most 2^53", column)
            _raise_if(self, np.abs(column - np.round(column)) > 0, name, "be a whole number", column)
        self._check_alive(n)

    def _check_alive(self, n):
        _raise_if(self, n < 1, "population", "be at least 1 (after a collapse there is nothing to fit)", n)

    def _check_completed(self, found):
        if "leavers" not in found:
            return
        n, out, new = (found[name] for name in ("population", "leavers", "joiners"))
        _raise_if(self, out > n, "leavers", "be at most the users counted", out)
        for name, column in (("leavers", out), ("joiners", new)):
            _raise_if(self, column < 0, name, "not be negative where it follows from the counts", column)
        self._check_alive(n)

    def __str__(self) -> str:
        n = np.asarray(self.population)
        what = f"{n.shape[0]} groups of {n.shape[-1]}" if n.ndim > 1 else str(n.shape[-1])
        missing = f", {int(np.isnan(n).sum())} missing" if np.isnan(n).any() else ""
        return f"Series of {what} rounds, {self.labels[0]} to {self.labels[-1]}{missing}"


def _raise_if(series, bad, name, requirement, column):
    if np.any(bad):
        place = np.argwhere(bad)[0]
        group = f" of group {'/'.join(str(i) for i in place[:-1])}" if len(place) > 1 else ""
        value = f"{column[tuple(place)]:.10g}"
        raise _check.fail(name, requirement, f"{value} in {series.row(int(place[-1]))}{group}")


def as_series(series: Series | Numbers) -> Series:
    """`series`, made of counts alone if it is no `Series`."""
    return series if isinstance(series, Series) else Series(series)


def labelled(series: Series, labels: Sequence[str] | None) -> Series:
    """`series` with other labels; None: the numbers of the rows."""
    columns = {name: getattr(series, name) for name in COLUMNS[1:]}
    return Series(series.population, **columns, labels=labels)


def check_fits(series: Series, scenario: Scenario, free: tuple[str, ...] = ()) -> None:
    """Raise a `ValueError` for what the model can't do, and for noise that is missing or out of range.

    It can't pass floor or cap, recruit more than once per user, or change by other than leavers, joiners and inflow.
    """
    who, n = scenario.participation, np.asarray(series.population)
    floor, cap = float(who.floor), float(who.cap)
    _raise_if(series, n > cap, "population", f"be at most `cap` ({cap:g}; a scenario can have a greater one)", n)
    _raise_if(series, n < floor, "population", f"be at least `floor` ({floor:g}; a scenario can have a lower one)", n)
    if series.noise is None:
        _check_own_noise(scenario, series.rounds + 1)
    else:
        _check_noise(series, scenario.mechanism)
    if series.joiners is not None:
        new = np.asarray(series.joiners)
        # Where only the leaked leave, and they never recruit, leavers are none of the recruiters.
        apart = float(who.leave_spared) == float(who.leaked.recruit) == 0
        apart = apart and not {"leave_spared", "recruit_leaked"} & {*free}
        recruiters = n - np.asarray(series.leavers) if apart else n
        _raise_if(series, new > recruiters, "joiners", "be at most the users who can recruit", new)
        _check_balance(series, n, floor, cap)
    inflow = np.asarray(series.inflow)
    beyond = (inflow[..., :-1] > n[..., 1:]) & (n[..., 1:] < cap)
    _raise_if(series, beyond, "inflow", "be at most the next count", inflow)
    _check_growth(series, n)


def _check_noise(series, mechanism):
    x = np.asarray(series.noise)[..., :-1]
    _raise_if(series, np.isnan(x), "noise", "be known", x)
    try:
        mechanism.check_noise(x)
    except ValueError as error:
        requirement = str(error).partition(" must ")[2].partition(", but is ")[0]
        _raise_if(series, _refused(mechanism, x), "noise", requirement, x)
        raise


def _refused(mechanism, noise):
    def one(x):
        try:
            mechanism.check_noise(x)
        except ValueError:
            return True
        return False

    return np.asarray([one(x) for x in noise.flat]).reshape(noise.shape)


def _check_balance(series, n, floor, cap):
    out, new, added = (np.asarray(x)[..., :-1] for x in (series.leavers, series.joiners, series.inflow))
    balance = np.clip(n[..., :-1] - out + new + added, floor, cap)
    off = np.abs(balance - n[..., 1:]) > 0.5 + 4 * np.finfo(n.dtype).eps * n[..., 1:]
    what = "be the count before, less leavers, plus joiners and inflow"
    _raise_if(series, np.concatenate([np.zeros_like(off[..., :1]), off], axis=-1), "population", what, n)


def _check_own_noise(scenario, rounds):
    if scenario.policy is not None:
        raise _check.fail("scenario", "have no policy where the series has no noise", "one with a policy")
    shape = scenario.mechanism.noise.shape
    if shape not in ((), (rounds,)):
        raise _check.fail("scenario", f"have one noise, or one for each of {rounds} rounds", f"one with {shape[0]}")


def _check_growth(series, n):
    """Every user recruits one at most."""
    most, inflow = n[..., 0], np.asarray(series.inflow)
    for t in range(1, n.shape[-1]):
        most = 2 * most + inflow[..., t - 1]
        bad = np.zeros(n.shape, bool)
        bad[..., t] = n[..., t] > most
        _raise_if(series, bad, "population", "be at most twice the count before, plus inflow", n)
        most = np.where(np.isnan(n[..., t]), most, n[..., t])


def _floats(name, value) -> Float[Array, "..."]:
    """As an array, in which None is NaN."""
    value = jax.tree.map(lambda x: np.nan if x is None else x, value, is_leaf=lambda x: x is None)
    if not _check.is_known(value):
        raise _check.fail(name, "be known: counts can't be traced", "traced")
    return _check.as_float(value, name)


def _labels(labels, rows) -> tuple[str, ...]:
    if labels is None:
        return tuple(str(i) for i in range(rows))
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise _check.fail("labels", f"have one for each of {rows} rounds", _check.quoted(labels))
    labels = tuple(str(x) for x in labels)
    if len(labels) != rows:
        raise _check.fail("labels", f"have one for each of {rows} rounds", f"of length {len(labels)}")
    return labels


def _completed(found):
    """Of count, leavers, joiners and next count, three give the fourth."""
    if "leavers" not in found and "joiners" not in found:
        return found
    n, added = found["population"].copy(), found["inflow"]
    out, new = (found.get(name, np.full_like(n, np.nan)).copy() for name in ("leavers", "joiners"))
    for t in range(n.shape[-1] - 1):
        known = n[..., t] - out[..., t] + new[..., t] + added[..., t]
        n[..., t + 1] = np.where(np.isnan(n[..., t + 1]), known, n[..., t + 1])
        net = n[..., t + 1] - n[..., t] - added[..., t]
        out[..., t] = np.where(np.isnan(out[..., t]), new[..., t] - net, out[..., t])
        new[..., t] = np.where(np.isnan(new[..., t]), out[..., t] + net, new[..., t])
    return found | {"population": n, "leavers": out, "joiners": new}
