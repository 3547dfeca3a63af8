"""Malformed files and options, for every command: one line, exit code 2, nothing written, nothing read changed."""

import itertools
import os

import jaxtyping
import pytest

import perfjax as pj

MEAN = pj.files.preset_text("mean-estimation")
BITS = pj.files.preset_text("randomized-response")
SWEEP = 'run = "mean_field"\npreset = "mean-estimation"\n'
SAMPLED = 'run = "simulate_counts"\npreset = "mean-estimation"\n'
OVER = "[over]\nleave = [0.5]\n"
HUGE = "1" + "0" * 400


@pytest.fixture
def refused(run, tmp_path, monkeypatch):
    """Assert that a command with some files there is refused in one line, which holds some words."""

    # Types are checked in tests only: who runs the command has nothing but the library's own checks.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

    def check(arguments, words="", **contents):
        monkeypatch.chdir(tmp_path)
        for name, content in contents.items():
            data = content if isinstance(content, bytes) else content.encode()
            tmp_path.joinpath(name.replace("_", ".")).write_bytes(data)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        code, out, error = run(*arguments)
        assert (code, out, error.count("\n")) == (2, "", 1), (code, out, error)
        assert error.startswith("perfjax: ")
        assert len(error) > len("perfjax: \n")
        assert words in error
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before

    return check


# CSV files: what every reader refuses

CSV = {
    "empty": "",
    "comments": "# a\n# b\n",
    "no rows": "when,n\n",
    "longer": "when,n\n1,1,000\n2,900\n3,800\n",
    "trailing comma": "when,n\n1,10,\n2,9,\n3,8,\n",
    "shorter": "when,n\n1,10\n2\n3,8\n",
    "semicolons": "when;n\n1;10\n2;9\n3;8\n",
    "semicolons and decimal commas": "when;n\n1;10,5\n2;9,5\n3;8,5\n",
    "tabs": "when\tn\n1\t10\n2\t9\n3\t8\n",
    "no such column": "when,m\n1,10\n2,9\n3,8\n",
    "twice": "n,n\n1,10\n2,9\n3,8\n",
    "twice but for spaces": "n, n\n1,10\n2,9\n3,8\n",
    "open quotes": 'when,n\n1,"10\n2,9\n3,8\n',
    "text": "when,n\n1,ten\n2,9\n3,8\n",
    "quoted thousands": 'when,n\n1,"1,000"\n2,"1,100"\n3,"1,200"\n',
    "underscores": "when,n\n1,1_000\n2,900\n3,800\n",
    "full width": "when,n\n1,\uff11\uff10\n2,9\n3,8\n",
    "arabic": "when,n\n1,\u0661\u0660\n2,9\n3,8\n",
    "infinite": "when,n\n1,inf\n2,9\n3,8\n",
    "beyond": "when,n\n1,1e999\n2,9\n3,8\n",
    "hexadecimal": "when,n\n1,0x10\n2,9\n3,8\n",
    "space inside": "when,n\n1,1 000\n2,900\n3,800\n",
    "apostrophe": "when,n\n1,1'000\n2,900\n3,800\n",
    "binary": b"when,n\n\xff\xfe\x00",
    "UTF-16": "when,n\n1,10\n2,9\n3,8\n".encode("utf-16"),
    "null": b"when,n\n1,\x00\n2,9\n3,8\n",
}
READERS = {
    "fit": ("fit", "in.csv", "--column", "n", "--out", "out.toml"),
    "counts": ("counts", "--csv", "in.csv", "--column", "n", "--release", "out.csv", "--order", "given"),
    "reconstruct": ("reconstruct", "--data", "in.csv", "--column", "n", "--save", "out.nc"),
    "figure": ("figure", "recon-2", "--data", "in.csv", "--column", "n"),
}


def some(cases, quick):
    """The cases, those that are not among the quick ones for the slow run: they say the same of another command."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize("reader", some(READERS, ("fit", "counts")))
@pytest.mark.parametrize("content", CSV)
def test_a_malformed_csv_file(refused, reader, content):
    refused(READERS[reader], "in.csv", in_csv=CSV[content])


# Counts that would read as others

COUNTS = {
    "12.000": "12, or 12000?",
    "1.000": "1, or 1000?",
    "1.000.000": "1.000.000",
    "-1": "-1",
    "2.5": "2.5",
    "1e300": "1e+300",
}


@pytest.mark.parametrize("reader", ["fit", "counts"])
@pytest.mark.parametrize("count", COUNTS)
def test_a_count_that_is_none(refused, reader, count):
    words = "row 2" if reader == "counts" or "," in COUNTS[count] else COUNTS[count]
    refused(READERS[reader], words, in_csv=f"when,n\n1,20\n2,{count}\n3,21\n")


TIMES = {
    "2021.01 2021.02 2021.03": "a month, or a part of a year?",
    "2021.9 2021.10 2021.11": "a month, or a part of a year?",
    "20210118 2021-02-18 2021-03-18": "numbers or dates, not both",
    "20210131 20210231 20210331": 'row 2: Column `when` must be a number or a date such as 2021-04, but is "20210231"',
    "2021-01 2021-13 2022-01": 'row 2: Column `when` must be a number or a date such as 2021-04, but is "2021-13"',
    "2021/01 2021/02 2021/03": "must be a number or a date",
    "18.01.2021 18.02.2021 18.03.2021": "must be a number or a date",
    "2021-01 2022-01 2021-06": "goes back in time",
    "1 1 2": "repeats the time before",
    "1 2 inf": "must be a number or a date",
    "1 2 1e999": "must be a number or a date",
    "1_0 1_1 1_2": "must be a number or a date",
    "1 2 \uff13": "must be a number or a date",
    "\uff12\uff10\uff12\uff11-01 2021-02 2021-03": "must be a number or a date",
    "1 2 3.4": "equal steps",
}


@pytest.mark.parametrize("times", TIMES)
def test_times_that_are_none(refused, times):
    rows = "".join(f"{time},{20 - k}\n" for k, time in enumerate(times.split(" ")))
    refused((*READERS["fit"], "--time", "when"), TIMES[times], in_csv=f"when,n\n{rows}")


# Scenario files

SCENARIOS = {
    "empty": "",
    "no TOML": "population 3",
    "binary": b"\xff\xfe\x00",
    "UTF-16": MEAN.encode("utf-16"),
    "deep": "a = " + "[" * 5000,
    "twice": MEAN + "\n[participation]\n",
    "unknown key": "people = 3\n" + MEAN,
    "unknown table": MEAN + "\n[people]\nn = 3\n",
    "text": MEAN.replace("population = 1000", 'population = "many"'),
    "date": MEAN.replace("population = 1000", "population = 2021-01-01"),
    "table": MEAN.replace("population = 1000", "population = {a = 1}"),
    "huge": MEAN.replace("population = 1000", f"population = {HUGE}"),
    "infinite": MEAN.replace("population = 1000", "population = inf"),
    "no number": MEAN.replace("population = 1000", "population = nan"),
    "ragged": MEAN.replace("population = 1000", "population = [[1], [1, 2]]"),
    "batch": MEAN.replace("population = 1000", "population = [1000, 999]"),
    "rounds of a text": MEAN.replace("rounds = 50", 'rounds = "50"'),
    "rounds of a number": MEAN.replace("rounds = 50", "rounds = 50.0"),
    "no rounds": MEAN.replace("rounds = 50", "rounds = 0"),
    "huge rounds": MEAN.replace("rounds = 50", "rounds = 1000000000000"),
    "a part that is none": MEAN[: MEAN.index("[mechanism]")] + "mechanism = 3\n",
    "type of a number": MEAN.replace('type = "GaussianMean"', "type = 3"),
    "type of a table": MEAN.replace('type = "GaussianMean"', "type = {a = 1}"),
    "dim of a text": MEAN.replace("dim = 12", 'dim = "12"'),
    "huge dim": MEAN.replace("dim = 12", f"dim = {HUGE}"),
    "about of a number": "about = 3\n" + MEAN,
    "fit of a number": "fit = 3\n" + MEAN,
    "empty fit": MEAN + "\n[fit]\n",
}
TAKERS = {
    "tune": ("tune", "in.toml"),
    "schedule": ("schedule", "in.toml"),
    "simulate": ("simulate", "in.toml"),
    "show": ("scenario", "show", "in.toml"),
}


@pytest.mark.parametrize("taker", some(TAKERS, ("tune",)))
@pytest.mark.parametrize("content", SCENARIOS)
def test_a_malformed_scenario(refused, taker, content):
    if taker == "show" and content in ("batch", "fit of a number", "empty fit"):
        pytest.skip("what show reads is a scenario; a fit, and that there is one of it, are for who computes")
    refused(TAKERS[taker], in_toml=SCENARIOS[content])


# Sweep files

VALUES = ('"a"', "2021-01-01", "{a = 1}", HUGE, "nan", "inf", "[[1, 2], [3]]")
PLACES = {
    "start": SWEEP + "[over]\nleave = {{start = {}, stop = 0.5, num = 2}}\n",
    "num": SWEEP + "[over]\nleave = {{start = 0.1, stop = 0.5, num = {}}}\n",
    "scale": SWEEP + "[over]\nleave = {{start = 0.1, stop = 0.5, num = 2, scale = {}}}\n",
    "list": SWEEP + "[over]\nleave = [{}]\n",
    "over": SWEEP + "over = {}\n",
    "set": SWEEP + OVER + "[set]\nrecruit = {}\n",
    "rounds": SWEEP + OVER + "[set]\nrounds = {}\n",
    "run": 'run = {}\npreset = "mean-estimation"\n' + OVER,
    "scenario": 'run = "mean_field"\nscenario = {}\n' + OVER,
    "preset": 'run = "mean_field"\npreset = {}\n' + OVER,
    "fields": SWEEP + "fields = {}\n" + OVER,
    "pairing": SWEEP + "pairing = {}\n" + OVER,
    "trials": SAMPLED + "trials = {}\n" + OVER,
    "seed": SAMPLED + "trials = 2\nseed = {}\n" + OVER,
    "noise": SWEEP + OVER + "[arguments]\nnoise = {}\n",
    "arguments": SWEEP + "arguments = {}\n" + OVER,
}
SWEEPS = {
    f"{place} {value[:12]}": PLACES[place].format(value) for place, value in itertools.product(PLACES, VALUES)
} | {
    "no fields": SWEEP + "fields = []\n" + OVER,
    "scenario 3": 'run = "mean_field"\nscenario = 3\n' + OVER,
    "set a table": SWEEP + OVER + "[set.recruit]\na = 1\n",
    "set a part": SWEEP + OVER + "[set]\nleakage = 1\n",
    "set a policy": SWEEP + OVER + "[set]\npolicy = 1\n",
    "huge rounds": SWEEP + OVER + "[set]\nrounds = 1000000000000\n",
    "arguments with scenario": SWEEP + OVER + "[arguments]\nscenario = 3\n",
    "arguments with key": SAMPLED + "trials = 2\n" + OVER + "[arguments]\nkey = 3\n",
    "arguments unknown": SWEEP + OVER + "[arguments]\nnoize = 3\n",
    "seed 2^63": SAMPLED + f"trials = 2\nseed = {2**63}\n" + OVER,
    "seed 2^31": SAMPLED + f"trials = 2\nseed = {2**31}\n" + OVER,
    "seed -1": SAMPLED + "trials = 2\nseed = -1\n" + OVER,
    "no axis": SWEEP + "[over]\n",
    "unknown axis": SWEEP + "[over]\nleav = [0.5]\n",
    "empty axis": SWEEP + "[over]\nleave = []\n",
    "log from 0": SWEEP + '[over]\nleave = {start = 0, stop = 1, num = 2, scale = "log"}\n',
    "num 10^12": SWEEP + "[over]\nleave = {start = 0, stop = 1, num = 1000000000000}\n",
    "both": SWEEP + 'scenario = "x.toml"\n' + OVER,
    "missing file": 'run = "mean_field"\nscenario = "x.toml"\n' + OVER,
    "itself": 'run = "mean_field"\nscenario = "in.toml"\n' + OVER,
    "objective": 'run = "tune"\npreset = "mean-estimation"\n' + OVER + "[arguments]\nobjective = 3\n",
}


LATER = tuple(f" {value[:12]}" for value in VALUES[3:])


@pytest.mark.parametrize("content", some(SWEEPS, [name for name in SWEEPS if not name.endswith(LATER)]))
def test_a_malformed_sweep_file(refused, content):
    refused(("sweep", "in.toml", "--out", "out.nc"), in_toml=SWEEPS[content])


# Transcript files

TRANSCRIPTS = [
    "records = 3",
    'records = "a"',
    "records = []",
    "records = [2021-01-01]",
    f"records = [{HUGE}]",
    "records = [nan, 0.1]",
    "records = [0.1, 0.2]\nfamily = 3",
    'records = [0.1, 0.2]\nfamily = {type = "x"}',
    "records = [0.1, 0.2]\nfamily = {type = 3}",
    'records = [0.1, 0.2]\nfamily = {radius = "x"}',
    'records = [0.1, 0.2]\nbudget = {epsilon = "x"}',
    "records = [0.1, 0.2]\nbudget = {epsilon = 2021-01-01}",
    "records = [0.1, 0.2]\nbudget = {accountant = 3}",
    'records = [0.1, 0.2]\nreleases = "x"',
    "records = [0.1, 0.2]\nreleases = {a = 1}",
    f"records = [0.1, 0.2]\nreleases = {HUGE}",
    'records = [0.1, 0.2]\nreleases = "1_0"',
    'records = [0.1, 0.2]\ntrials = "x"',
    'records = [0.1, 0.2]\nseed = "x"',
    f"records = [0.1, 0.2]\nseed = {2**64}",
    "data = 3\ncolumn = 3",
    'data = "x.csv"\ncolumn = 3',
    'data = "x.csv"\ncolumn = "n"\nsize = "x"',
    "records = [0.1, 0.2]\nlabels = {target = 0}",
    'records = [0.1, 0.2]\nlabels = {target = "x", features = [1], without = [[0]]}',
]


@pytest.mark.parametrize("content", TRANSCRIPTS)
def test_a_malformed_transcript(refused, content):
    refused(("reconstruct", "in.toml", "--save", "out.nc"), in_toml=content)


# Options

OPTIONS = [
    "tune --leave x",
    "tune --leave nan",
    "tune --leave 1.2",
    "tune --preset x",
    "tune --objective x",
    "tune --constraint x",
    "tune --at-epsilon -1",
    "tune --at-epsilon 1 --at-rho 1",
    "tune --delta 0.1",
    "tune --at-epsilon 1 --delta 2",
    "tune --dtype float16",
    "tune --plot out",
    "tune --plot missing/out.png",
    "tune --plot .",
    "tune missing.toml",
    "tune .",
    "simulate --trials 0",
    "simulate --trials 1e3",
    "simulate --seed -1",
    "simulate --seed 9223372036854775808",
    "simulate --noise inf",
    "simulate --solver x",
    "simulate --solver law --trials 2",
    "simulate --save .",
    "simulate --save x --plot x.xyz",
    "schedule --structure x",
    "schedule --structure piecewise",
    "schedule --total-rho -1",
    "schedule --policy table --total-rho 1",
    "schedule --save missing/x.toml",
    "sweep missing.toml --out out.nc",
    "sweep in.toml",
    "sweep in.toml --out in.toml --force",
    "sweep in.toml --store z --out z",
    "sweep in.toml --store z --out z/out.nc",
    "sweep in.toml --out out.nc --chunk 0",
    "sweep in.toml --out out.nc --devices 0",
    "sweep in.toml --out out.nc --memory 0",
    "sweep in.toml --out out.nc --coordinator localhost:1",
    "sweep in.toml --out out.nc --coordinator localhost --processes 1 --process 0",
    "sweep in.toml --out out.nc --coordinator host:abc --processes 1 --process 0",
    "sweep in.toml --out out.nc --coordinator host:99999 --processes 1 --process 0",
    "sweep in.toml --out out.nc --coordinator :80 --processes 1 --process 0",
    "sweep in.toml --out out.nc --coordinator localhost:80 --processes 1 --process 1",
    "counts --sizes 1_0",
    "counts --sizes \uff11",
    "counts --sizes x",
    "counts --sizes 99999999999999999999999999999999999",
    "counts --tolerance nan",
    "counts --tolerance 1e999",
    "counts --delta 1",
    "counts --shift inf",
    "counts --mechanism x",
    "figure 99",
    "figure x",
    "figure 1 --out missing",
    "figure recon-2 --data missing.csv --column n",
    "figure 1 --data in.csv",
    "reconstruct",
    "reconstruct --records x",
    "reconstruct --records 0.1,0.2 --releases 5..x",
    "reconstruct --records 0.1,0.2 --epsilon nan",
    "reconstruct --records 0.1,0.2 --trials -1",
    "reconstruct --records 0.1,0.2 --seed 9223372036854775808",
    "fit missing.csv --column n",
    "fit in.csv",
    "fit in.csv --column m",
    "fit in.csv --column n --prior x",
    "fit in.csv --column n --prior leave=beta(0,1)",
    "fit in.csv --column n --free x",
    "fit in.csv --column n --replicates 1",
    "fit in.csv --column n --seed -1",
    "fit in.csv --column n --out in.csv --force",
    "fit in.csv --column n --out out.toml --plot out.toml",
    "scenario new in.toml",
    "scenario new missing/x.toml",
    "scenario new x.toml --preset x",
    "scenario show missing.toml",
    "nonsense",
    "tune --nonsense",
]


@pytest.mark.parametrize("line", OPTIONS)
def test_malformed_options(refused, line):
    refused(line.split(" "), in_toml=SWEEP + OVER, in_csv="n\n10\n9\n8\n9\n")


# No output onto an input

OUTPUTS = {
    "tune": ("tune", "in.toml", "--plot", "{}.png"),
    "simulate --save": ("simulate", "in.toml", "--save", "{}"),
    "simulate --plot": ("simulate", "in.toml", "--plot", "{}.png"),
    "schedule --save": ("schedule", "in.toml", "--save", "{}"),
    "schedule --plot": ("schedule", "in.toml", "--plot", "{}.png"),
    "sweep": ("sweep", "sweep.toml", "--out", "{}"),
    "reconstruct": ("reconstruct", "--data", "in.csv", "--column", "n", "--save", "{}"),
    "transcript": ("reconstruct", "transcript.toml", "--save", "{}"),
    "fit --out": ("fit", "in.csv", "--column", "n", "--out", "{}"),
    "fit --plot": ("fit", "in.csv", "--column", "n", "--plot", "{}.png"),
    "fit --scenario": ("fit", "other.csv", "--column", "n", "--scenario", "in.toml", "--out", "{}"),
    "counts": ("counts", "--csv", "in.csv", "--column", "n", "--release", "{}", "--order", "given"),
}


FILES = {
    "in_toml": MEAN,
    "in_csv": "n\n10\n9\n8\n9\n",
    "other_csv": "n\n10\n9\n8\n9\n",
    "sweep_toml": 'run = "mean_field"\nscenario = "in.toml"\n' + OVER,
    "transcript_toml": 'data = "in.csv"\ncolumn = "n"\n',
}


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("command", OUTPUTS)
def test_no_output_replaces_an_input(refused, tmp_path, command, link):
    arguments = [part.format("alias") for part in OUTPUTS[command]]
    output = next(part for part in arguments if part.startswith("alias"))
    source = "in.toml" if "in.toml" in arguments or command == "sweep" else "in.csv"
    tmp_path.joinpath(source).write_text(FILES[source.replace(".", "_")])
    link(tmp_path / source, tmp_path / output)
    refused([*arguments, "--force"], "must not replace what is read", **FILES)
    assert tmp_path.joinpath(output).is_symlink() == (link is os.symlink)


@pytest.mark.parametrize("command", OUTPUTS)
def test_no_output_replaces_a_pipe(refused, tmp_path, command):
    arguments = [part.format("pipe") for part in OUTPUTS[command]]
    pipe = tmp_path / next(part for part in arguments if part.startswith("pipe"))
    os.mkfifo(pipe)
    refused([*arguments, "--force"], "is no regular file", **FILES)
    assert pipe.is_fifo()
