"""Calibration's input: what is wrong with a file, a series or an argument is one line that names it."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import perfjax as pj
from perfjax import calibration
from perfjax.calibration import Series, _meaning
from perfjax.calibration._series import check_fits
from perfjax.cli import _fit

MEAN = pj.preset("mean-estimation").replace(cap=1e6)
BITS = pj.preset("randomized-response")


@pytest.fixture
def loaded(tmp_path):
    def load(text, **columns):
        path = tmp_path / "counts.csv"
        path.write_text(text)
        return calibration.load_series(path, column="users", **columns)

    return load


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("users\n1000\n\n990\n1000\n", [1000, np.nan, 990, 1000]),
        ("# ours\n\nusers\n1000\n990\nNA\n\n\n", [1000, 990, np.nan]),
        ("users,where\n1000,x\n\n990,y\n980,y\n", [1000, 990, 980]),
    ],
)
def test_an_empty_line_is_a_missing_round_of_a_single_column(loaded, text, counts):
    np.testing.assert_array_equal(loaded(text).population, counts)


def test_months_without_a_dash_are_months(loaded):
    months = "when,users\n202111,100\n202112,101\n202201,99\n202203,98\n"
    assert loaded(months, time="when").labels == ("202111", "202112", "202201", "after 202201", "202203")
    numbers = "when,users\n202111,100\n202113,101\n202115,99\n"
    assert loaded(numbers, time="when").rounds == 2


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ("users,users\n1,2\n3,4\n5,6\n", {}, "counts.csv: Ambiguous column `users`"),
        ("when,users\n1,9\n1,9\n2,9\n", {"time": "when"}, "counts.csv: Column `when` must increase"),
        ("when,users\n1,9\n2,9\n3.4,9\n", {"time": "when"}, "counts.csv: Column `when` must go on in equal steps"),
        ("users\n9\n-1\n8\n", {}, "counts.csv: Column `users` must not be negative, but is -1 in row 2."),
        ("users\n9\n1e300\n8\n", {}, "counts.csv: Column `users` must be at most 2^53, but is 1e+300 in row 2."),
        ("users\n9\n8\n", {}, "counts.csv: Column `users` must have at least 3 rounds"),
        (
            "users,left\n9,10\n8,\n8,\n",
            {"leavers": "left"},
            "counts.csv: Column `left` must be at most the users counted, but is 10 in row 1.",
        ),
    ],
)
def test_bad_columns_are_named_with_their_file(loaded, text, columns, words):
    with pytest.raises(ValueError, match="counts") as raised:
        loaded(text, **columns)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"leavers": [60, 0, None], "joiners": [60, 0, None]}, "`joiners` must be at most the users who can recruit"),
        ({"inflow": [0, 101, 0]}, "`inflow` must be at most the next count, but is 101 in row 2."),
        ({"leavers": [5, 0, None], "joiners": [4, 0, None]}, "`population` must be the count before, less leavers"),
        ({"noise": [1, -1, None]}, "`noise` must lie in [0, inf), but is -1 in row 2."),
        ({"noise": [1, None, 1]}, "`noise` must be known, but is nan in row 2."),
    ],
)
def test_what_cannot_be_is_named_by_row(columns, words):
    with pytest.raises(ValueError, match="must") as raised:
        check_fits(Series([100, 100, 100], **columns), MEAN)
    assert words in str(raised.value)


def test_floor_and_cap_stand_in_for_leavers_and_joiners():
    check_fits(Series([3, 1, 2], leavers=[3, 0, None], joiners=[0, 1, None]), MEAN.replace(floor=1))
    with pytest.raises(ValueError, match="but is 1 in row 2"):
        check_fits(Series([3, 1, 2], leavers=[3, 0, None], joiners=[0, 1, None]), MEAN.replace(floor=0))
    check_fits(Series([90, 100, 100], inflow=[120, 0, 0]), MEAN.replace(cap=100, population=100))
    with pytest.raises(ValueError, match=r"at least 1 .* but is 0 in row 2"):
        Series([3, None, 2], leavers=[3, 0, None], joiners=[0, 2, None])


def test_great_counts_balance_in_single_precision():
    n = np.array([30_000_003, 30_000_000, 29_999_999], np.float32)
    check_fits(Series(n, leavers=[7, 8, None], joiners=[5, 7, None]), MEAN.replace(cap=1e9).astype("float32"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: Series(np.zeros((0, 5))),
            "Argument `population` must have at least one group, but is of shape (0, 5).",
        ),
        (
            lambda: calibration.fit([9, 8, 7], MEAN, prior={"threshold": calibration.Beta(1, 2)}),
            "Argument `prior[threshold]` must be for a positive number, as LogNormal is, but is a Beta.",
        ),
    ],
)
def test_bad_arguments_are_one_line(call, words):
    with pytest.raises(ValueError, match="must") as raised:
        call()
    assert str(raised.value) == words


@pytest.mark.parametrize(
    ("information", "words"),
    [
        ([1.0], "be of shape (1, 1), but is of shape (1,)."),
        ([[np.nan]], "be finite, but is [[nan]]."),
        ([[-1.0]], "be positive semidefinite, but is of eigenvalue -1."),
        ([[1.0, 0.5], [0.0, 1.0]], "be symmetric, but is"),
    ],
)
def test_information_is_a_matrix_of_information(information, words):
    free = ("leave", "recruit")[: len(information)]
    made = {"rounds": 2, "key": jax.random.key(0), "free": free, "bounds": (0.1, 5.0)}
    with pytest.raises(ValueError, match="be") as raised:
        calibration.design_experiment(BITS, information=information, **made)
    assert words in str(raised.value)


def test_a_fit_is_not_traced():
    def total(leave):
        return calibration.fit([9, 8, 7], BITS.with_leaves(leave=leave), free="recruit").places[0]

    with pytest.raises(ValueError, match="`fit` can't be traced"):
        jax.jit(total)(0.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seed", 99999999999999999999), "Argument `seed` must lie in [0, 2^31), but is 99999999999999999999."),
        (("--noise-column", "epsilon"), "counts.csv: Column `epsilon` must lie in (0, inf], but is -1 in row 2."),
        (("--inflow", "others"), "counts.csv: Column `others` must be at most the next count, but is 99 in row 1."),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, run, arguments, words):
    path = tmp_path / "counts.csv"
    path.write_text("users,epsilon,others\n50,1,99\n51,-1,0\n52,1,0\n")
    code, out, error = run("fit", path, "--column", "users", "--preset", "randomized-response", *arguments)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert words in error


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((1.0000889, 1.0000098, 1.0002), ["1.00009", "1.00001", "1.0002"]),
        ((0.123456, 0.1, 0.2), ["0.1235", "0.1", "0.2"]),
        ((None, 0.0, math.inf), ["-", "0", "unbounded"]),
        ((0.5, 0.5, 0.5), ["0.5", "0.5", "0.5"]),
    ],
)
def test_as_many_digits_are_shown_as_tell_the_ends_apart(numbers, shown):
    assert _fit._numbers(dict(zip(("estimate", "low", "high"), numbers, strict=True))) == shown


def test_the_command_says_what_is_wrong_with_a_fit():
    best = {
        "label": "local epsilon",
        "counted": "releases 0 to 12",
        "budgets": ["Local budget: epsilon 1."],
        "status": "no privacy is best",
        "regret": 0.07,
        "high_regret": 750.0,
        "probability_privacy_pays": 0.5,
    }
    leaks = {"leaks": {"verdict": "shown"}}
    report = {"converged": False, "identified": {"leave": False, "recruit": True}} | leaks
    text = " ".join(_fit._closing(report, best))
    for words in (
        "did not converge",
        "Best local epsilon: no privacy is best.",
        "up to 1.07 times the error of tuning with the truth in half of the draws, up to 751 times in 95 %",
        "privacy pays with probability 0.50, at:   Local budget: epsilon 1.",
        "To learn more",
    ):
        assert words in text
    report = {"converged": True, "identified": {"leave": True}} | leaks
    best = best | {"status": "interior minimum", "high_regret": math.inf}
    text = " ".join(_fit._closing(report, best))
    assert text.startswith(
        "The best local epsilon has the least error of releases 0 to 12, from the last count on. Tuning with the"
        " estimate costs up to 1.07 times the error"
    )
    assert "up to more than 1000 times" in text
    assert "To learn more" not in text


@pytest.mark.slow
def test_replicates_that_collapse_at_once_are_drawn_from_the_posterior():
    fitted = calibration.fit([5, 4, 3, 2], BITS.replace(floor=0), free="leave")
    assert np.all(np.isfinite(_meaning._bootstrap(fitted, jax.random.key(0), 10)))
    best = calibration.best_noise(fitted, key=jax.random.key(0), replicates=10)
    assert best.by == "posterior"  # three means do not tell leave
    assert np.all(np.isfinite(best.draws))
    estimate = float(best.optimum.noise)
    for factor in (0.5, 2.0):
        low, high = eqx.tree_at(lambda b: b.draws, best, factor * estimate + 0 * best.draws).interval
        assert low <= estimate <= high
    status = jnp.asarray(pj.Status.UPPER_BOUND)
    assert "at the upper search bound" in str(eqx.tree_at(lambda b: b.optimum.status, best, status))
    indefinite = eqx.tree_at(lambda f: f.information, fitted, -fitted.information)
    ends = _meaning._first_order(indefinite, best.optimum, jnp.ones(1), None, 0.95)
    assert ends[0] <= estimate <= ends[1]
