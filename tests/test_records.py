"""Records from a column of a file."""

import numpy as np
import pytest

from perfjax._csv import read_table
from perfjax.reconstruction.records import read_column, sample_columns, sample_records, scaled


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "load.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_column_is_read_by_its_name(written):
    path = written('# a note\n\ntime,"H0, A",b\n1,0.5,2\n\n2,1e-3,-3\n')
    np.testing.assert_array_equal(read_column(path, "H0, A"), [0.5, 1e-3])
    np.testing.assert_array_equal(read_column(path, "b"), [2, -3])


def test_records_fill_the_interval_and_one_in_a_hundred_is_clipped():
    values = np.random.default_rng(0).exponential(size=10_000)
    records = scaled(values)
    assert (records.min(), records.max()) == (-1, 1)
    assert 95 <= np.sum(records == 1) <= 105
    inside = records < 1
    low, high = values.min(), np.percentile(values, 99)
    np.testing.assert_allclose(records[inside], 2 * (values[inside] - low) / (high - low) - 1, rtol=1e-12, atol=1e-12)


def test_the_sample_has_four_profiles():
    assert sample_columns() == ["H0-A", "H0-B", "G0-A", "G1-A"]
    for column in sample_columns():
        records = sample_records(column)
        assert records.shape == (293,)
        assert (records.min(), records.max()) == (-1, 1)
    assert not np.array_equal(sample_records("H0-B"), sample_records())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "load.csv: Unknown column `c`: known are `a`, `b`."),
        ("c,c\n1,2\n", "load.csv: Ambiguous column `c`: known are `c`, `c`."),
        ("", "load.csv: no line names the columns."),
        ("a,c\n1,2\n3,x\n", 'load.csv: row 2: Column `c` must be a finite number, but is "x".'),
        ("# note\na,c\n\n1,2\n3\n", "load.csv: row 2: 1 values, but 2 columns."),
        ("c\nnan\n", 'load.csv: row 1: Column `c` must be a finite number, but is "nan".'),
        ("a,c\n", "load.csv: there are no rows below the header."),
    ],
)
def test_bad_files_are_one_clear_line(written, text, words):
    path = written(text)
    with pytest.raises(ValueError, match=r"load\.csv") as raised:
        read_column(path, "c")
    assert str(raised.value).endswith(words)
    assert str(raised.value).count("\n") == 0


def test_bad_values_are_one_clear_line(tmp_path):
    with pytest.raises(ValueError, match="`values` must be at least two finite numbers"):
        scaled([1.0])
    with pytest.raises(ValueError, match="`values` must differ from each other"):
        scaled([2.0, 2.0])
    with pytest.raises(ValueError, match="Unknown column `H1`"):
        sample_records("H1")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary\.csv: not a CSV file"):
        read_column(tmp_path / "binary.csv", "c")
    with pytest.raises(OSError, match=r"missing\.csv"):
        read_column(tmp_path / "missing.csv", "c")


def test_the_byte_order_mark_of_a_spreadsheet_is_no_part_of_a_name(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_bytes("users,noise\n100,1\n".encode("utf-8-sig"))
    assert read_table(path).names == ["users", "noise"]
