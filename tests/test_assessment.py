"""One answer about a transcript, from the library and on the command line."""

import json

import jax
import numpy as np
import pytest
import xarray

import perfjax as pj
from perfjax.reconstruction import Moments, ScanStatus, assess, multiset_bound
from perfjax.reconstruction.assessment import _elsewhere, assess_labels
from perfjax.reconstruction.design_labels import HybridTranscript

BUDGET = {"epsilon": 20.0, "delta": 1e-5, "accountant": "zcdp"}
PAIR = (0.7, -0.4)


@pytest.fixture(scope="module")
def found():
    return assess(Moments(1.0), PAIR, releases=(2, 6), **BUDGET, trials=400, key=jax.random.key(0))


def test_directions_and_their_errors_make_up_the_bound(found):
    np.testing.assert_allclose(np.sum(found.standard_errors**2), found.scan.best_bound, rtol=1e-9)
    np.testing.assert_allclose(found.directions @ found.directions.T, np.eye(2), atol=1e-12)
    assert found.standard_errors[0] < found.standard_errors[1]
    kappa = pj.accounting.kappa(releases=found.releases, **BUDGET)
    np.testing.assert_allclose(
        multiset_bound(Moments(1.0), sorted(PAIR), found.releases, kappa=kappa), found.scan.best_bound, rtol=1e-12
    )
    assert found.releases == int(found.scan.best_releases)


def test_the_likeliest_records_are_simulated(found):
    assert 0.3 < float(found.simulated_error / found.scan.best_bound) < 1.2
    assert 0 < float(found.simulated_standard_error / found.simulated_error) < 0.1
    without = assess(Moments(1.0), PAIR, releases=(2, 6), **BUDGET)
    assert np.isnan(without.simulated_error)
    np.testing.assert_array_equal(without.directions, found.directions)
    assert "+-" in str(found)
    assert found.to_xarray().directions.dims == ("direction", "record")


@pytest.mark.slow
def test_with_too_few_releases_their_sum_is_known_all_the_same():
    alone = assess(Moments(1.0, "paper"), [-0.5, 0.1, 0.8], releases=(1, 1), **BUDGET)
    assert int(alone.scan.status) == ScanStatus.NOT_IDENTIFIED
    np.testing.assert_allclose(alone.directions[0], np.full(3, 3**-0.5), rtol=1e-9)
    kappa = float(pj.accounting.kappa(releases=1, **BUDGET))
    np.testing.assert_allclose(alone.standard_errors, [np.sqrt(4 * kappa / 3), np.inf, np.inf], rtol=1e-9)
    assert "unknown" in str(alone)


@pytest.mark.slow
def test_labels_show_only_when_the_budget_is_large():
    transcript = HybridTranscript(Moments(1.0, "paper"), 4, np.asarray([[True, True, False]]))
    z = (-0.5, 0.1, 0.8)
    few = assess_labels(transcript, z, target=2, **BUDGET)
    np.testing.assert_allclose(few.design.value, 1.0344904909 * pj.accounting.kappa(releases=1, **BUDGET), rtol=1e-9)
    assert few.separation <= np.delete(few.swaps, 2).min()
    assert few.separation < 1
    many = assess_labels(transcript, z, target=2, **(BUDGET | {"epsilon": 1e6}))
    assert many.separation > 10
    assert "nearest swap" in str(many)


def test_a_target_is_elsewhere_from_half_way_to_the_nearest_other_record():
    """0.1 is nearer to -0.5 below -0.2, and nearer to 0.8 above 0.45; the other records are free."""
    below, above = _elsewhere(np.array([-0.5, 0.8, 0.1, -0.9]), 2, 1.0)
    np.testing.assert_allclose(below, [[-1, -1, -1, -1], [1, 1, -0.2, 1]], rtol=1e-12)
    np.testing.assert_allclose(above, [[-1, -1, 0.45, -1], [1, 1, 1, 1]], rtol=1e-12)
    ((low, high),) = _elsewhere(np.array([0.2, 0.6]), 1, 2.0)  # nobody is above
    np.testing.assert_allclose([low, high], [[-2, -2], [2, 0.4]], rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trials": -1}, "`trials` must be an integer of at least 0"),
        ({"trials": 3}, "`key` must be given where transcripts are simulated"),
        ({"records": [[0.1, 0.2]]}, "`records` must be one list of numbers"),
        ({"records": [0.1, 2.0]}, r"`records` must lie in \[-1, 1\], but is 2"),
        ({"epsilon": 0.0}, r"`epsilon` must lie in \(0, inf\), but is 0"),
        ({"delta": 1.0}, r"`delta` must lie in \(0, 1\), but is 1"),
        ({"releases": (0, 3)}, "`releases`"),
    ],
)
def test_bad_input_is_one_clear_line(change, words):
    arguments = {"records": PAIR, "releases": (2, 3)} | BUDGET | change
    with pytest.raises(ValueError, match=words):
        assess(Moments(1.0), arguments.pop("records"), **arguments)


# The command line.

FILE = """
records = [-0.5, 0.1, 0.8]
releases = "3..5"
trials = 20

[family]
sensitivity = "paper"

[budget]
epsilon = 20.0

[labels]
target = 2
features = 4
without = [[2]]
"""


@pytest.fixture
def asked(tmp_path):
    path = tmp_path / "transcript.toml"
    path.write_text(FILE)
    return path


@pytest.mark.slow
def test_the_command_answers_like_the_library(run, asked, tmp_path):
    code, out, _ = run("reconstruct", asked, "--json", "--save", tmp_path / "out.nc", "--plot", tmp_path / "out.png")
    report = json.loads(out)
    assert code == 0
    found = assess(Moments(1.0, "paper"), [-0.5, 0.1, 0.8], releases=(3, 5), **BUDGET, trials=20, key=jax.random.key(0))
    assert report["bound"] == found.scan.bound.tolist()
    assert report["best_releases"] == found.releases
    assert report["standard_errors"] == found.standard_errors.tolist()
    assert report["simulated_error"] == float(found.simulated_error)
    assert report["label_shares"][:2] == [0, 0]
    with xarray.open_dataset(tmp_path / "out.nc", engine="scipy") as data:
        np.testing.assert_array_equal(data.bound, found.scan.bound)
        assert data.attrs["best"] == found.releases
    assert (tmp_path / "out.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_command_says_it_in_words(run, tmp_path):
    rows = "".join(f"{k},{k % 7}\n" for k in range(50))
    (tmp_path / "load.csv").write_text(f"time,load\n{rows}")
    options = ("--data", tmp_path / "load.csv", "--column", "load", "--releases", "2..4", "--trials", 0)
    code, out, _ = run("reconstruct", *options, "--accountant", "basic")
    assert code == 0
    shown = " ".join(out.split())
    for words in ("2 records", "Number of releases", "best known first", "answering 0", "Labels do not show", "proven"):
        assert words in shown
    assert "likeliest" not in out
    code, out, _ = run("reconstruct", *options[:4], "--releases", 1, "--trials", 0, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["bound"] == [None]
    assert report["reason"] == "There are fewer releases than records."
    again = json.loads(run("reconstruct", *options, "--seed", 0, "--json")[1])
    assert report["records"] == again["records"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give records, or data and column to draw them from"),
        (("--records", "0.1,x"), "`records` must be numbers with commas between them"),
        (("--records", "0.1,3"), "`records` must lie in [-1, 1], but is 3"),
        (("--records", "0.1,0.3", "--releases", "4..x"), "`releases` must be a number or a range such as 2..40"),
        (("--records", "0.1,0.3", "--releases", "5..4"), "`releases`"),
        (("--records", "0.1,0.3", "--epsilon", "-1"), "`epsilon` must lie in (0, inf), but is -1"),
        (("--records", "0.1,0.3", "--accountant", "rdp"), "`order` must be given"),
        (("--records", "0.1,0.3", "--family", "thresholds"), "needs `step`, `bandwidth`, `grid`"),
        (("--records", "0.1,0.3", "--grid", "midpoint"), "`grid` goes with family thresholds"),
        (("--records", "0.1,0.3", "--family", "sums"), '`family` must be "moments" or "thresholds"'),
        (("--records", "0.1,0.3", "--seed", 2**31), "`seed` must be below 2^31"),
        (("--data", "load.csv", "--column", "watt"), "Unknown column `watt`"),
        (("--data", "load.csv", "--column", "note"), 'row 1: Column `note` must be a finite number, but is "x"'),
        (("--data", "load.csv", "--column", "load", "--size", 9), "`size` must be at most 3"),
        (("--data", "load.csv"), "Give --data and --column together"),
        (("missing.toml",), "missing.toml"),
    ],
)
def test_a_bad_question_is_one_clear_line(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "load.csv").write_text("load,note\n1,x\n2,y\n3,z\n")
    code, out, err = run("reconstruct", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("trials = 20", "trails = 20", "did you mean `trials`"),
        ('sensitivity = "paper"', 'sensitivty = "paper"', "did you mean `sensitivity`"),
        ("target = 2", "", "Missing key in [labels]: `target`"),
        ("without = [[2]]", "without = [2]", "`without` must be a list of lists"),
        ("without = [[2]]", "without = [[7]]", "`without` must hold places below 3"),
        ("target = 2", "target = 3", "`target` must be a place among at least two records, here below 3"),
        ("[budget]", 'budget = "x"\n[other]', "Unknown key `other`"),
        ("epsilon = 20.0", 'accountant = "basic"', '`accountant` must be "zcdp" or "gdp", but is "basic"'),
    ],
)
def test_a_bad_file_is_one_clear_line(run, asked, old, new, words):
    assert old in FILE
    asked.write_text(FILE.replace(old, new))
    code, out, err = run("reconstruct", asked)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert ("transcript.toml" in err) == ("key" in err)  # what is wrong with the file itself names it


def mean_over_neighbours(low, high, information, nodes=64):
    """tr (E I + J)^-1 for two records with cos² priors between `low` and `high`, by NumPy alone."""
    x, weight = np.polynomial.legendre.leggauss(nodes)
    half, middle = (np.subtract(high, low)) / 2, np.add(high, low) / 2
    prior = weight * np.cos(np.pi * x / 2) ** 2
    expected = sum(
        p * q * information(middle + half * np.array([a, b]))
        for p, a in zip(prior, x, strict=True)
        for q, b in zip(prior, x, strict=True)
    )
    return np.trace(np.linalg.inv(expected + np.diag((np.pi / half) ** 2)))


def test_what_bounds_a_mean_over_records_is_not_said_of_one():
    """With a record at an end of the box the mean error nearby is above the unbiased bound, and the attained error."""
    budget = BUDGET | {"epsilon": 2000.0}
    sample = {"trials": 1000, "key": jax.random.key(1)}
    found = assess(Moments(1.0, "paper"), [-1.0, 0.5], releases=(3, 3), **budget, **sample)
    kappa = float(pj.accounting.kappa(releases=3, **budget))
    powers = np.arange(1, 4)

    def information(z):
        rows = powers[:, None] * z ** (powers[:, None] - 1) / 2
        return rows.T @ rows / kappa

    here = np.trace(np.linalg.inv(information(np.array([-1.0, 0.5]))))
    nearby = mean_over_neighbours([-1.0, -0.25], [-0.25, 1.0], information)
    np.testing.assert_allclose(found.scan.best_bound, here, rtol=1e-9)
    np.testing.assert_allclose(found.scan.van_trees[0], nearby, rtol=1e-9)
    np.testing.assert_allclose([here, nearby], [0.00169, 0.00228], atol=5e-6)
    assert nearby > 1.2 * here
    assert found.simulated_error + 4 * found.simulated_standard_error < nearby
    for text in (str(found), str(found.scan)):
        assert "any estimator, on average" in text
        assert "over records near these" in text
        assert "bound for any estimator" not in text
