"""What a fit leaves open, beside the fitted scenario in its file: ranges, what they rest on, and draws."""

import math
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check, files
from perfjax.calibration._identifiability import Identifiability, listed
from perfjax.calibration._leak_test import LeakTest
from perfjax.calibration._meaning import BestNoise, parameter_draws
from perfjax.calibration._parameters import natural
from perfjax.scenario import Scenario

__all__ = ["RESTS_ON", "Ranges", "load_ranges", "parameter_ranges", "save_fit"]

RESTS_ON = ("means", "spread", "prior", "nothing")
DIGITS = 6  # of a draw, which is a sample
SAME = 1e-6  # relative, of an estimate and the scenario's value, which may have been single precision
KEYS = ("level", "verdict", "drawn_by", "p_values", "leaks", "parameters")
LEAK_NUMBERS = {"statistic": (-1, 1), "p_value": (0, 1), "weight": (0, 1)} | dict.fromkeys(
    ("growth", "growth_low", "growth_high"), (-np.inf, np.inf)
)
PARAMETER_KEYS = ("estimate", "low", "high", "identified", "rests_on", "draws")


class Ranges(eqx.Module):
    """What a series leaves open of each fitted parameter.

    Attributes:
        estimate: the most probable value, by parameter.
        low: lower end of the interval at `level`.
        high: upper end.
        rests_on: what the interval rests on, "means", "spread", "prior" or "nothing": see `Identifiability`. Only the
            first makes a parameter known.
        draws: values that counts and prior leave possible, those of one draw at the same index of every parameter. They
            do not rest on the spread of the counts unless all parameters are known from their means.
        drawn_by: "bootstrap" or "posterior".
        level: of the intervals, in (0, 1).
        verdict: sentences about what the series says, one or more.
        p_values: of tests of the dispersion, by name.
        leaks: whether the counts show that leaks matter at all. Draws take for granted that they do.

    Raises:
        ValueError: if the tables do not have the same parameters or a value is out of range.
    """

    estimate: dict[str, float] = eqx.field(static=True)
    low: dict[str, float] = eqx.field(static=True)
    high: dict[str, float] = eqx.field(static=True)
    rests_on: dict[str, str] = eqx.field(static=True)
    draws: dict[str, Float[np.ndarray, " draws"]]
    drawn_by: str = eqx.field(static=True)
    level: float = eqx.field(static=True)
    verdict: tuple[str, ...] = eqx.field(static=True)
    p_values: dict[str, float] = eqx.field(static=True)
    leaks: LeakTest

    def __check_init__(self):
        names = tuple(self.estimate)
        if not names or any(tuple(table) != names for table in (self.low, self.high, self.rests_on, self.draws)):
            raise ValueError("A fit must have estimate, low, high, rests_on and draws of the same parameters.")
        for name in names:
            _check.as_choice(self.rests_on[name], f"{name}.rests_on", RESTS_ON)
            if not self.low[name] <= self.high[name]:
                found = f"{self.low[name]:g} to {self.high[name]:g}"
                raise _check.fail(f"{name}.low", f"be at most `{name}.high`", found)
            if not np.all(np.isfinite(self.draws[name])):
                raise _check.fail(f"{name}.draws", "be finite", self.draws[name])
        lengths = {name: len(draws) for name, draws in self.draws.items()}
        if len(set(lengths.values())) != 1 or not all(lengths.values()):
            found = ", ".join(f"{count} of {name}" for name, count in lengths.items())
            raise _check.fail("draws", "be as many of every parameter, at least one", found)
        _check.as_level(self.level)

    @property
    def identified(self) -> dict[str, bool]:
        """By parameter, whether the mean counts alone narrow it: whether it is known."""
        return {name: on == "means" for name, on in self.rests_on.items()}

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parameters that are not."""
        return tuple(name for name, sure in self.identified.items() if not sure)

    def check(self, scenario: Scenario) -> None:
        """Raise a `ValueError` if this is not the fit of `scenario`, or a draw is out of a parameter's range."""
        leaves = scenario.leaves()
        _check.check_known(self.estimate, list(leaves), "fitted parameter")
        for name, estimate in self.estimate.items():
            value = float(leaves[name])
            if not abs(value - estimate) <= SAME * abs(estimate):
                raise ValueError(
                    f"Argument `{name}` is {value:.6g} in the scenario, but was fitted as {estimate:.6g}: the fit's"
                    f" draws do not hold for it. Fit again, for example with a prior on `{name}`, or delete the table"
                    " [fit]."
                )
            try:
                scenario.replace(**{name: self.draws[name]})
            except ValueError as error:
                raise ValueError(f"Draws of a fit: {error}") from error

    def __str__(self) -> str:
        lines = [
            f"  {name:<10} {estimate:.4g}, {self.level:.0%} {self.low[name]:.4g} to {self.high[name]:.4g}, rests on"
            f" {self.rests_on[name]}"
            for name, estimate in self.estimate.items()
        ]
        count = len(next(iter(self.draws.values())))
        return "\n".join([f"Ranges of a fit, {count} draws by {self.drawn_by}", *lines, *self.verdict])

    @property
    def in_words(self) -> str:
        """Which parameters are not known, in one clause."""
        if not self.unknown:
            return f"{listed(tuple(self.estimate)).capitalize()} are known from the counts up to their intervals"
        return (
            f"{listed(self.unknown).capitalize()} {'is' if len(self.unknown) == 1 else 'are'} not known from the counts"
        )


def parameter_ranges(
    found: Identifiability, *, key: Array | None = None, draws: int = 64, best: BestNoise | None = None
) -> Ranges:
    """The ranges of a fit's parameters, with draws of them.

    Args:
        found: what the fit identifies.
        key: a typed key, for new draws.
        draws: how many, at least 2.
        best: a `best_noise` of the same fit: all of its draws are taken, in place of new ones.

    Returns:
        `Ranges`. Draws of known parameters are those of `best_noise`; where one is not known from the means, they are
        from the posterior by the means alone, so that they range over all that these leave open.

    Raises:
        ValueError: unless exactly one of `key` and `best` is given.

    Source: ours.

    Example:
        >>> import jax, perfjax as pj
        >>> counts = [400, 410, 421, 429, 440]
        >>> fitted = pj.calibration.fit(counts, pj.preset("randomized-response"), free="leave")
        >>> made = parameter_ranges(pj.calibration.identifiability(fitted), key=jax.random.key(0), draws=8)
        >>> made.rests_on
        {'leave': 'means'}
    """
    _check.as_kind(found, "found", Identifiability)
    fitted = found.fitted
    if key is not None and best is None:
        places, by = parameter_draws(fitted, key, draws)
        values = {name: natural(name, places[:, i]) for i, name in enumerate(fitted.free)}
    elif best is not None and key is None:
        values, by = best.parameters, best.by
    else:
        raise ValueError("Give either `key` or `best`.")
    profiles = {name: found.profiles[name] for name in fitted.free}
    return Ranges(
        estimate={name: float(value) for name, value in fitted.estimate.items()},
        low={name: one.low for name, one in profiles.items()},
        high={name: one.high for name, one in profiles.items()},
        rests_on=dict(found.rests_on),
        draws={name: _rounded(np.asarray(value, float)) for name, value in values.items()},
        drawn_by=by,
        level=next(iter(profiles.values())).level,
        verdict=tuple(found.sentences),
        p_values={
            "overdispersion": float(fitted.dispersion_p_value),
            "underdispersion": float(fitted.underdispersion_p_value),
        },
        leaks=found.leaks,
    )


def _rounded(values):
    return np.asarray([float(f"{x:.{DIGITS}g}") for x in values])


def save_fit(ranges: Ranges, scenario: Scenario, path: str | os.PathLike, *, about: str | None = None) -> None:
    """Write a scenario with what its fit left open: `load_scenario` reads the one, `load_ranges` the other.

    Args:
        ranges: of the fit.
        scenario: `Fit.scenario`, or the same with another noise, population or number of rounds.
        path: the file; it is replaced whole or not at all.
        about: a text to keep with it.

    Raises:
        ValueError: if the scenario is not that of the fit, or a part of it is of a class that no file can name.
        OSError: if the file can't be written.
    """
    ranges.check(scenario)
    files.check_saveable(scenario)
    with files.replacing(path) as temporary:
        temporary.write_text(fit_to_toml(ranges, scenario, about=about), encoding="utf-8")


def fit_to_toml(ranges: Ranges, scenario: Scenario, *, about: str | None = None) -> str:
    """The text of the file."""
    toml = files.toml_value
    lines = [files.to_toml(scenario, about=about), "[fit]  # what the counts leave open: read by `perfjax tune`"]
    lines += [f"level = {toml(ranges.level)}", f'drawn_by = "{ranges.drawn_by}"', "verdict = ["]
    lines += [*(f"  {toml(sentence)}," for sentence in ranges.verdict), "]", "", "[fit.p_values]"]
    lines += [f"{name} = {toml(float(p))}" for name, p in ranges.p_values.items()]
    leaks = {key: value for key, value in ranges.leaks.summary().items() if key != "words" and value == value}
    lines += ["", "[fit.leaks]", *(f"{key} = {toml(value)}" for key, value in leaks.items())]
    for name, estimate in ranges.estimate.items():
        table = {
            "estimate": float(estimate),
            "low": float(ranges.low[name]),
            "high": float(ranges.high[name]),
            "identified": ranges.identified[name],
            "rests_on": ranges.rests_on[name],
            "draws": np.asarray(ranges.draws[name], float).tolist(),
        }
        lines += ["", f"[fit.parameters.{name}]", *(f"{key} = {toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def load_ranges(path: str | os.PathLike) -> Ranges | None:
    """Read what a fit left open from the file that `save_fit` or `perfjax fit --out` wrote.

    Args:
        path: the file.

    Returns:
        `Ranges`, exactly as saved; None for a scenario without a fit.

    Raises:
        ValueError: if a key is unknown or missing, draws differ in number or lie out of range, or the scenario has
            another value of a fitted parameter than the fit; the file is named.
        OSError: if the file can't be read.

    Example:
        >>> import pathlib, tempfile, perfjax as pj
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "scenario.toml")
        ...     pj.save_scenario(pj.preset("breach-survey"), path)
        ...     print(load_ranges(path))
        None
    """
    scenario = files.load_scenario(path)

    def build(content):
        if "fit" not in content:
            return None
        ranges = _built(_table(content["fit"], "fit"))
        ranges.check(scenario)
        return ranges

    return files.read_toml(Path(path), build)


def _built(table: dict[str, Any]) -> Ranges:
    files.check_keys(table, KEYS, KEYS, "key in [fit]")
    parameters = _tables(table["parameters"], "parameters")
    for name, one in parameters.items():
        files.check_keys(_tables({name: one}, "parameters")[name], PARAMETER_KEYS, PARAMETER_KEYS, f"key in [{name}]")
    columns = {key: {name: one[key] for name, one in parameters.items()} for key in PARAMETER_KEYS}
    numbers = {
        key: {n: _number(x, f"{n}.{key}") for n, x in columns[key].items()} for key in ("estimate", "low", "high")
    }
    verdict = table["verdict"]
    if not isinstance(verdict, list) or not all(isinstance(x, str) for x in verdict):
        raise _check.fail("verdict", "be a list of sentences", _check.quoted(verdict))
    found = Ranges(
        **numbers,
        rests_on=columns["rests_on"],
        draws={name: _draws(values, name) for name, values in columns["draws"].items()},
        drawn_by=_check.as_choice(table["drawn_by"], "drawn_by", ("bootstrap", "posterior")),
        level=_check.as_level(_number(table["level"], "level")),
        verdict=tuple(verdict),
        p_values={name: _number(p, name, 0, 1) for name, p in _table(table["p_values"], "p_values").items()},
        leaks=_leaks(_table(table["leaks"], "leaks")),
    )
    for name, said in columns["identified"].items():
        if said is not found.identified[name]:
            now = f'{str(said).lower()} with rests_on "{found.rests_on[name]}"'
            raise _check.fail(f"{name}.identified", 'be true exactly where rests_on is "means"', now)
    return found


def _leaks(table: dict[str, Any]) -> LeakTest:
    """The test as saved; where there is a reason why it is none, numbers may be missing."""
    nothing = table.get("reason")
    files.check_keys(
        table,
        ("verdict", "reason", *LEAK_NUMBERS),
        ("verdict", *([] if nothing else LEAK_NUMBERS)),
        "key in [fit.leaks]",
    )
    if nothing is not None and not isinstance(nothing, str):
        raise _check.fail("leaks.reason", "be a text", _check.quoted(nothing))
    ends = {name: _number(table[name], f"leaks.{name}", *ends) for name, ends in LEAK_NUMBERS.items() if name in table}
    statistic, p_value, weight, growth, low, high = (ends.get(name, math.nan) for name in LEAK_NUMBERS)
    if low > high:
        raise _check.fail("leaks.growth_low", "be at most `leaks.growth_high`", f"{low:g} to {high:g}")
    found = LeakTest(statistic, p_value, weight, growth, (low, high), nothing)
    if table["verdict"] != found.verdict:
        now = f"{_check.quoted(table['verdict'])} with {nothing or f'p_value {p_value:g}'}"
        raise _check.fail("leaks.verdict", f'be "{found.verdict}"', now)
    return found


def _table(value, name) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _check.fail(name, "be a table", _check.quoted(value))
    return value


def _tables(value, name) -> dict[str, dict[str, Any]]:
    return {key: _table(one, f"{name}.{key}") for key, one in _table(value, name).items()}


def _number(value, name, low=-np.inf, high=np.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _check.fail(name, "be a number", _check.quoted(value))
    if not low <= value <= high:  # nor is NaN
        raise _check.fail(name, f"lie in [{low:g}, {high:g}]", f"{value:g}")
    return float(value)


def _draws(values, name) -> Float[np.ndarray, " draws"]:
    if not isinstance(values, list) or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
        raise _check.fail(f"{name}.draws", "be a list of numbers", _check.quoted(values))
    return np.asarray(values, float)
