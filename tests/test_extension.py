"""A mechanism, a rule and their pair of one's own, in one file outside of perfjax: what works, and what is refused."""

import importlib
import re
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import close

import perfjax as pj

TOYS = '''
"""A Laplace mean of records with a known spread, and an attacker whose guess is the better the less noise there is."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import perfjax as pj
from perfjax.binomial import normal_quantile, uniform_from_bits
from perfjax.privacy import Privacy, PureBudget


class LaplaceMean(pj.mechanisms.AbstractMechanism):
    """The mean of n records in [-1, 1] plus Laplace noise of scale b / n."""

    noise_name = "scale"
    noise_symbol = "b"
    noise_unit = "units of the records"
    noise_label = "scale"
    noise_bounds = (0.01, 100.0)
    no_privacy = 0.0
    more_is_private = True
    error_unit = "squared error"
    meaning: ClassVar = {"spread": ("s", "units of the records")}

    scale: Float[Array, "..."] = eqx.field(converter=jnp.asarray)
    spread: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.5)

    @property
    def noise(self):
        return self.scale

    def check_noise(self, noise):
        return jnp.asarray(noise, float)

    def error(self, population, noise=None):
        n, b = self.typed(population, noise)
        present = jnp.where(n > 0, n, 1)
        return jnp.where(n > 0, 2 * (b / present) ** 2 + self.spread**2 / present, jnp.inf)

    def privacy(self, population, noise=None):
        n, b = self.typed(population, noise)
        budget = PureBudget(2 / b + jnp.zeros_like(n))
        return Privacy(local=PureBudget(jnp.full_like(budget.pure_epsilon, jnp.inf)), central=budget)


class Guessed(pj.leakage.AbstractLeakage):
    """Leaked with probability exp(-caution |noise|), the noise in units of a record's weight in the mean."""

    meaning: ClassVar = {"caution": ("k", "1 / units of the records")}

    caution: Float[Array, ""] = eqx.field(converter=jnp.asarray)


class LaplaceMeanGuessed(pj.leakage.AbstractPair, mechanism=LaplaceMean, leakage=Guessed):
    """Users share the size of the noise over its scale, which is exponential."""

    independent = True

    def split(self, mechanism, leakage, population, noise):
        leaked = 1 / (1 + leakage.caution * noise)
        return pj.leakage.Split(leaked, leakage.caution * noise * leaked)

    def shared_quantile(self, mechanism, leakage, score):
        return -jax.scipy.special.log_ndtr(-score)

    def leaks(self, mechanism, leakage, population, noise, shared):
        power = -leakage.caution * noise * shared
        p, spared = jnp.exp(power), -jnp.expm1(power)
        return pj.leakage.LeakDistribution(p, spared, p * spared, p * p)

    def count_release(self, mechanism, leakage, population, noise, words):
        n, uniform = population, uniform_from_bits(words, noise.dtype)
        shared = -jnp.log(uniform[0])
        leaks = pj.leakage.leak_distribution(mechanism, leakage, n, noise, shared)
        leaked = pj.leakage.leaked_count(n, leaks, words[1], independent=True)
        present = jnp.where(n > 0, n, 1)
        sampled = mechanism.spread / jnp.sqrt(present) * normal_quantile(uniform[2], 1 - uniform[2])
        miss = sampled + jnp.where(uniform[3] < 0.5, -1, 1) * noise * shared / present
        return leaked, jnp.where(n > 0, miss**2, jnp.inf)


class Always(pj.leakage.AbstractLeakage):
    """A rule of which no more is known than its probability."""

    share: Float[Array, ""] = eqx.field(converter=jnp.asarray)


class LaplaceMeanAlways(pj.leakage.AbstractPair, mechanism=LaplaceMean, leakage=Always):
    def split(self, mechanism, leakage, population, noise):
        return pj.leakage.Split(leakage.share, 1 - leakage.share)


class Finer(Guessed):
    """A rule that has the pair of its base."""
'''


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extension")
    (folder / "laplace_toys.py").write_text(TOYS)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("laplace_toys")
    sys.path.remove(str(folder))


@pytest.fixture
def scenario(toys):
    return loop(toys.LaplaceMean(2.0), toys.Guessed(0.5))


def loop(mechanism, leakage):
    who = pj.Participation(0.5, 0.2, floor=1.0, cap=10.0)
    return pj.Scenario(mechanism, leakage, who, population=6.0, rounds=2)


def counted(scenario, trials):
    return pj.simulate_counts(scenario, key=jax.random.key(0), trials=trials)


def test_solvers_agree(scenario):
    """With p = 1/2 at every release; counts sample the law, and the mean field starts as both do."""
    path, law, runs = pj.mean_field(scenario), pj.population_law(scenario), counted(scenario, 4000)
    close(path.leak_probability, [0.5] * 3, 1e-12)
    close(path.population, 6 * np.array([1, 0.85, 0.85**2]), 1e-12)
    close(path.error[0], 2 * (2 / 6) ** 2 + 0.25 / 6, 1e-12)
    close(law.mean[1], path.population[1], 1e-3)  # but for floor and cap
    for sampled, exact in ((runs.population, law.mean), (runs.expected_error, law.expected_error)):
        mean, std = np.mean(sampled, axis=0), np.std(sampled, axis=0)
        assert np.all(np.abs(mean - exact) <= 5 * std / np.sqrt(4000) + 1e-12)
    assert abs(np.mean(runs.error[:, 0]) / path.error[0] - 1) < 5 * np.std(runs.error[:, 0]) / path.error[0] / 63
    assert abs(np.mean(runs.leak_probability[:, 0]) - 0.5) < 0.02
    assert np.std(runs.leak_probability[:, 0]) > 0.3  # independently it would be 0.2
    assert np.std(runs.population[:, 1]) > 1


def test_limits_are_taken_for_a_pair(scenario):
    bare = scenario.without_privacy()
    assert np.all(pj.mean_field(bare).leak_probability == 1)
    assert np.all(counted(bare, 4000).leak_probability == 1)
    assert jax.grad(lambda b: pj.leak_probability(scenario.mechanism, scenario.leakage, 6.0, b))(0.0) == 0


def test_the_best_noise_and_schedule(scenario):
    best = pj.tune(scenario)
    assert best.certified
    assert 0.01 < best.noise < 100
    assert best.value < pj.mean_field(scenario).error[1:].sum()
    assert "best scale (b)" in str(best)
    schedule = pj.tune_schedule(scenario)
    assert schedule.noise.shape == (3,)
    assert schedule.value < schedule.value_constant


def test_axes_of_a_sweep_have_symbols_and_units(scenario):
    data = pj.sweep(pj.mean_field, scenario, {"scale": [1.0, 2.0], "caution": [0.5], "spread": [0.1]}, fields=["error"])
    assert data.scale.attrs == {"symbol": "b", "units": "units of the records"}
    assert data.caution.attrs == {"symbol": "k", "units": "1 / units of the records"}
    assert data.spread.attrs == {"symbol": "s", "units": "units of the records"}
    close(data.error.values[1, 0, 0], pj.mean_field(scenario.replace(spread=0.1)).error, 1e-12)


def test_a_file_names_where_kinds_are_imported_from(scenario, tmp_path, run):
    path = tmp_path / "mine.toml"
    pj.save_scenario(scenario, path)
    assert 'type = "laplace_toys:LaplaceMean"' in path.read_text()
    again = pj.load_scenario(path)
    assert pj.files.to_toml(again) == pj.files.to_toml(scenario)
    np.testing.assert_array_equal(pj.mean_field(again).error, pj.mean_field(scenario).error)
    code, out, error = run("simulate", path, "--trials", 3)
    assert code == 0, error
    assert "squared error" in out


def test_a_module_may_lie_beside_its_file(toys, scenario, tmp_path):
    (tmp_path / "beside_toys.py").write_text("from laplace_toys import *\n\n\nclass Mine(Guessed):\n    pass\n")
    (tmp_path / "mine.toml").write_text(pj.files.to_toml(scenario).replace("laplace_toys:Guessed", "beside_toys:Mine"))
    loaded = pj.load_scenario(tmp_path / "mine.toml")
    assert type(loaded.leakage).__name__ == "Mine"
    assert isinstance(loaded.leakage, toys.Guessed)
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_toys:Guessed", r"type in \[leakage\] can't be imported: `no_such_toys:Guessed` \(ModuleNotFound"),
        ("laplace_toys:Gessed", r"type in \[leakage\] can't be imported: `laplace_toys:Gessed` \(AttributeError"),
        ("laplace_toys:LaplaceMean", r"type in \[leakage\] must be a class of AbstractLeakage, but `laplace_toys:Lap"),
    ],
)
def test_what_can_not_be_imported_is_one_clear_line(scenario, tmp_path, name, message):
    path = tmp_path / "mine.toml"
    path.write_text(pj.files.to_toml(scenario).replace("laplace_toys:Guessed", name))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: The {message}") as error:
        pj.load_scenario(path)
    assert "\n" not in str(error.value)


def test_a_file_can_not_name_what_a_function_or_the_script_defines(toys, monkeypatch, tmp_path):
    class Local(toys.Guessed):
        pass

    with pytest.raises(ValueError, match=r"^A file can't name `.*Local`, which a function defines: put it in a module"):
        pj.save_scenario(loop(toys.LaplaceMean(2.0), Local(0.5)), tmp_path / "mine.toml")
    monkeypatch.setattr(toys.Finer, "__module__", "__main__")
    with pytest.raises(ValueError, match=r"^A file can't name `Finer`, which the running script defines: put it in a"):
        pj.save_scenario(loop(toys.LaplaceMean(2.0), toys.Finer(0.5)), tmp_path / "mine.toml")
    assert not (tmp_path / "mine.toml").exists()


def test_what_a_pair_leaves_out_is_one_clear_line(toys, scenario):
    known = r"^Arguments `mechanism`, `leakage` must be one of the pairs .*"
    with pytest.raises(ValueError, match=known + r" for `simulate_users`, but are \(LaplaceMean, Guessed\)\.$"):
        pj.simulate_users(scenario, key=jax.random.key(0), trials=1)
    only_split = loop(toys.LaplaceMean(2.0), toys.Always(0.25))
    close(pj.mean_field(only_split).leak_probability, [0.25] * 3, 1e-12)
    calls = {
        "a distribution of the leaked count": lambda: pj.population_law(only_split),
        "`simulate_counts`": lambda: counted(only_split, 1),
    }
    for purpose, call in calls.items():
        with pytest.raises(ValueError, match=known + rf" for {purpose}, but are \(LaplaceMean, Always\)\.$"):
            call()
    with pytest.raises(ValueError, match=known + r" for a leak probability, but are \(LaplaceMean, TrueBitKept\)\.$"):
        loop(toys.LaplaceMean(2.0), pj.TrueBitKept())


def test_the_nearest_pair_counts(toys):
    class Mechanism(toys.LaplaceMean):
        pass

    n, b = jnp.asarray(6.0), jnp.asarray(2.0)
    assert type(pj.leakage.pair_of(Mechanism(2.0), toys.Finer(0.5))) is toys.LaplaceMeanGuessed

    class Own(toys.LaplaceMeanGuessed, mechanism=Mechanism, leakage=toys.Guessed):
        def split(self, mechanism, leakage, population, noise):
            return pj.leakage.Split(jnp.asarray(0.75), jnp.asarray(0.25))

    assert type(pj.leakage.pair_of(Mechanism(2.0), toys.Finer(0.5))) is Own
    assert pj.leakage.split(Mechanism(2.0), toys.Finer(0.5), n, b).leaked == 0.75
    assert pj.leakage.split(toys.LaplaceMean(2.0), toys.Finer(0.5), n, b).leaked == 0.5


def test_a_pair_is_checked_when_defined(toys):
    with pytest.raises(TypeError, match="`Empty` must define `split`"):

        class Empty(pj.leakage.AbstractPair, mechanism=toys.LaplaceMean, leakage=pj.TrueBitKept):
            pass

    with pytest.raises(TypeError, match="`Half` must have a class of AbstractLeakage for `leakage`, but has None"):

        class Half(toys.LaplaceMeanGuessed, mechanism=toys.LaplaceMean):
            pass

    with pytest.raises(TypeError, match=r"`Twice` is of the pair \(LaplaceMean, Guessed\), which laplace_toys defines"):

        class Twice(toys.LaplaceMeanGuessed, mechanism=toys.LaplaceMean, leakage=toys.Guessed):
            pass


def test_a_plain_number_in_a_part_is_refused(toys):
    class Plain(toys.Guessed):
        weight: float = 0.5

    with pytest.raises(ValueError, match=r"^Field `weight` of `Plain` must be an array \(by `eqx.field"):
        loop(toys.LaplaceMean(2.0), Plain(0.5))


def test_whole_numbers_are_numbers(toys):
    whole, floats = loop(toys.LaplaceMean(2), toys.Guessed(1)), loop(toys.LaplaceMean(2.0), toys.Guessed(1.0))
    assert whole.mechanism.scale.dtype == whole.leakage.caution.dtype == whole.population.dtype
    np.testing.assert_array_equal(pj.mean_field(whole).error, pj.mean_field(floats).error)


def test_a_pair_that_is_defined_again_takes_the_place_of_the_first(toys):
    class Rule(toys.Guessed):
        pass

    def defined(share):
        class Pair(pj.leakage.AbstractIndependentPair, mechanism=toys.LaplaceMean, leakage=Rule):
            def split(self, mechanism, leakage, population, noise):
                return pj.leakage.Split(jnp.asarray(share), jnp.asarray(1 - share))

        return pj.mean_field(loop(toys.LaplaceMean(2.0), Rule(0.5))).leak_probability

    close(pj.mean_field(loop(toys.LaplaceMean(2.0), Rule(0.5))).leak_probability, [0.5] * 3, 1e-12)  # of its base
    for share in (0.25, 0.75):
        close(defined(share), [share] * 3, 1e-12)


def test_a_pair_says_what_is_leaked_without_noise(toys):
    class Rule(toys.Guessed):
        pass

    class Pair(toys.LaplaceMeanGuessed, mechanism=toys.LaplaceMean, leakage=Rule):
        def exposed(self, mechanism, leakage, population, noise):
            return jnp.asarray(False)

        def split(self, mechanism, leakage, population, noise):
            return pj.leakage.Split(0.3 * jnp.exp(-noise), 1 - 0.3 * jnp.exp(-noise))

    close(pj.leak_probability(toys.LaplaceMean(1.0), Rule(0.5), 6.0, [0.0, 1.0]), [0.3, 0.3 / np.e], 1e-12)


def test_a_name_means_one_number(toys):
    class Rule(toys.Guessed):
        spread: jax.Array = eqx.field(converter=jnp.asarray, default=0.1)

    class Named(toys.Guessed):
        error: jax.Array = eqx.field(converter=jnp.asarray, default=0.1)

    with pytest.raises(ValueError, match=r"^Field `spread` of `Rule` is a name of `LaplaceMean` already\.$"):
        loop(toys.LaplaceMean(2.0), Rule(0.5))
    with pytest.raises(ValueError, match=r"^Field `error` of `Named` is a name of `Scenario` already\.$"):
        loop(toys.LaplaceMean(2.0), Named(0.5))


@pytest.mark.parametrize(
    ("code", "table", "message"),
    [
        ("import sys; sys.exit(0)", "caution = 1.0", r"can't be imported: `bad_toys:Mine` \(SystemExit: 0\)"),
        (
            "from laplace_toys import Guessed as Mine",
            'caution = "x"',
            r"can't be made of the numbers in \[leakage\] \(",
        ),
    ],
)
def test_a_fault_of_somebodys_code_is_one_clear_line(scenario, tmp_path, code, table, message):
    (tmp_path / "bad_toys.py").write_text(code)
    text = pj.files.to_toml(scenario).replace("caution = 0.5", table)
    (tmp_path / "mine.toml").write_text(text.replace("laplace_toys:Guessed", "bad_toys:Mine"))
    with pytest.raises(ValueError, match=message) as error:
        pj.load_scenario(tmp_path / "mine.toml")
    assert "\n" not in str(error.value)
    sys.modules.pop("bad_toys", None)


def test_two_folders_with_modules_of_one_name_are_told_apart(scenario, tmp_path, monkeypatch):
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "twin_toys.py").write_text("from laplace_toys import *\n\n\nclass Mine(Guessed):\n    pass\n")
        (folder / "mine.toml").write_text(pj.files.to_toml(scenario).replace("laplace_toys:Guessed", "twin_toys:Mine"))
    monkeypatch.syspath_prepend(tmp_path / "one")
    before = list(sys.path)
    pj.load_scenario(tmp_path / "one" / "mine.toml")
    assert sys.path == before  # where it was already, in its place
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"can't be imported: `twin_toys:Mine` \(ImportError: a module of this name"):
        pj.load_scenario(tmp_path / "other" / "mine.toml")
