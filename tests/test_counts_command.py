"""`perfjax counts`: the library's numbers, private files that are never overwritten, bad input in one line."""

import csv
import json
import re

import pytest
from assertions import close

from perfjax import count_privacy as cp

TABLE = 'group,n,where\na,3,x\nb,100000,"y, z"\nc,0,\n'


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text(TABLE)
    return path


def asked(table, *more, column="n"):
    return "counts", "--csv", table, "--column", column, "--release", table.with_name("out.csv"), *more


def named(table, *more):
    return asked(table, "--keep", "group", *more)


def released(table):
    with table.with_name("out.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_numbers_are_those_of_the_library(run):
    code, out, _ = run("counts", "--tolerance", "0.1", "--sizes", "1,100", "--json")
    report = json.loads(out)
    assert code == 0
    made = cp.design("log-gaussian", 0.1)
    for row, n in zip(report["sizes"], (1, 100), strict=True):
        close(row["budget"], made.budget(n), 1e-12)
        close(row["error"], made.error(n), 1e-12)
        close(row["epsilon"], cp.epsilon(made, n, 1e-6), 1e-12)
        bounds = cp.best_lower_bound(0.1, n - 1)
        close(row["least_budget"], bounds.best, 1e-12)
        assert row["least_budget_by"] == bounds.winner
        close(row["ratio"], row["budget"] / row["least_budget"], 1e-12)


def test_the_table_says_what_is_promised(run):
    code, out, _ = run("counts", "--mechanism", "spacing", "--tolerance", "0.25", "--sizes", "1,1000")
    assert code == 0
    text = " ".join(out.split())
    for words in (
        "spacing",
        "4.05",
        "below 0.25 max(n, 1)",
        "v(n)-zCDP",
        "do not publish budgets",
        "possible",
        "ratio",
    ):
        assert words in text


def test_a_release_holds_the_named_columns_in_the_order_of_groups(run, table):
    table.write_text('group,n,where,share\nb,100000,"y, z",.9\na,3,x,.1\nc,0,,0\na,100000,x,.1\na,1000,x,.1\n')
    before = table.read_text()
    code, out, _ = run(*asked(table, "--keep", "group, where"))
    words = " ".join(out.split())
    assert code == 0
    for line in (
        "Released 5 counts",
        "The list of groups must be public",
        "with a count of 0",
        "operating system's randomness",
        "to be public: group, where.",
        "Left out, for a column that follows from the counts gives them away: share.",
        "Rows are in the order of group, on which the counts have no influence.",
    ):
        assert line in words
    rows = released(table)
    assert list(rows[0]) == ["group", "where", "n"]
    assert [(row["group"], row["where"]) for row in rows] == [("a", "x")] * 3 + [("b", "y, z"), ("c", "")]
    assert int(rows[0]["n"]) < int(rows[1]["n"]) < int(rows[2]["n"])  # groups of one name by what is released
    assert table.read_text() == before
    found = int(rows[3]["n"])
    assert found != 100_000
    assert abs(found / 100_000 - 1) < 0.5


def test_the_given_order_is_kept_with_a_word(run, table):
    table.write_text("group,n\nb,100000\na,3\n")
    code, out, _ = run(*named(table, "--order", "given"))
    assert code == 0
    assert "gives their ranks away" in " ".join(out.split())
    assert [row["group"] for row in released(table)] == ["b", "a"]
    code, out, _ = run(*asked(table, "--order", "given", "--force", "--json"))
    report = json.loads(out)
    assert (report["copied"], report["left_out"], report["order"], report["groups"]) == ([], ["group"], "given", 2)
    assert list(released(table)[0]) == ["n"]


def test_a_name_may_hold_a_comma(run, table):
    table.write_text('"group, old",n\na,3\n')
    assert run(*asked(table, "--keep", '"group, old"'))[0] == 0
    assert list(released(table)[0]) == ["group, old", "n"]


def test_brackets_and_colons_are_shown_as_they_are(run, table):
    """Once they were read as styles: an error after the private file was written, and no guarantee was shown."""
    out_file = table.parent / "out[" / "bold]:smile:[red].csv"
    out_file.parent.mkdir()
    table.write_text("group[/x],n,[b]:tada:\na,3,1\n")
    code, out, error = run(
        "counts", "--csv", table, "--column", "n", "--release", out_file, "--keep", "group[/x]", "--sizes", "1"
    )
    assert (code, error) == (0, "")
    shown = "".join(out.split())
    for text in (str(out_file), "public:group[/x].", "away:[b]:tada:.", "theorderofgroup[/x],", "donotpublishbudgets"):
        assert text in shown
    assert out_file.exists()


def test_no_two_releases_are_alike(run, table):
    found = []
    for _ in range(2):
        assert run(*named(table, "--force"))[0] == 0
        found.append(table.with_name("out.csv").read_text())
    assert found[0] != found[1]


def test_an_existing_file_is_kept_without_force(run, table):
    out = table.with_name("out.csv")
    out.write_text("precious")
    code, _, error = run(*named(table))
    assert (code, out.read_text()) == (2, "precious")
    assert "exists; give --force" in error
    assert run(*named(table, "--force"))[0] == 0
    assert out.read_text() != "precious"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no line names the columns"),
        ("n\n", "there are no rows"),
        ("m\n3\n", "Unknown column `n`: known are `m`"),
        ("n,n\n3,4\n", "Ambiguous column `n`"),
        ("n\n3\n2.5\n", 'row 2: Column `n` must be a whole number of at least 0 and below 2^53, but is "2.5"'),
        ("n\n-1\n", 'row 1: Column `n` must be a whole number of at least 0 and below 2^53, but is "-1"'),
        ("n\n3\nmany\n", 'row 2: Column `n` must be .* but is "many"'),
        ("n\nnan\n", 'row 1: Column `n` must be .* but is "nan"'),
        ("n,m\n3\n", "row 1: 1 values, but 2 columns"),
        ("\xff".encode("latin-1"), "not a CSV file"),
        ('n\n"3', "not a CSV file"),
    ],
)
def test_a_bad_file_is_one_line_and_nothing_is_written(run, table, content, words):
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, error = run(*asked(table, "--order", "given"))
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert len(list(table.parent.iterdir())) == 1
    assert re.search(words.replace("^", r"\^"), error)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tolerance", "1"), "`relative_error` must lie in (0, 1), but is 1"),
        (("--tolerance", "0"), "`relative_error` must lie in (0, 1), but is 0"),
        (("--shift", "0"), "`shift` must lie in (0, inf), but is 0"),
        (("--mechanism", "spacing", "--tolerance", "0.5"), "`relative_error` must lie in [0.02, 0.25], but is 0.5"),
        (("--mechanism", "spacing", "--shift", "1"), '`shift` must be left out for "spacing"'),
        (("--sizes", "1,0"), "`sizes` must be whole numbers of at least 1"),
        (("--delta", "0"), "`delta` must lie in (0, 1), but is 0"),
        (("--csv", "there"), "--csv, --column and --release together"),
        (("--seed", "1"), "No such option: --seed"),
        (("--keep", "group"), "--keep and --order go with a release"),
        (("--order", "given"), "--keep and --order go with a release"),
    ],
)
def test_bad_input_is_one_line(run, arguments, words):
    code, out, error = run("counts", *arguments)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert words in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Name the columns to copy, first the groups' names (--keep), or give --order given"),
        (("--keep", " "), "Name the columns to copy"),
        (("--keep", "group,n"), "`keep` must name other columns than that of the counts, but is group,n"),
        (("--keep", "town"), "Unknown column `town`"),
        (("--keep", "group", "--dtype", "float32"), "made with budgets in float64"),
        (("--keep", "group", "--seed", "1"), "No such option: --seed"),
    ],
)
def test_a_release_that_can_not_be_is_one_line_and_no_file(run, table, arguments, words):
    code, out, error = run(*asked(table, *arguments))
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert words in error
    assert len(list(table.parent.iterdir())) == 1


def test_the_true_counts_are_never_replaced(run, table):
    code, _, error = run("counts", "--csv", table, "--column", "n", "--keep", "group", "--release", table, "--force")
    assert code == 2
    assert "must not replace what is read" in error
    assert table.read_text() == TABLE
    gone = table / "x" / "out.csv"
    assert "no folder" in run("counts", "--csv", table, "--column", "n", "--keep", "group", "--release", gone)[2]
    assert "No such file" in run(*named(table.with_name("gone.csv")))[2]
