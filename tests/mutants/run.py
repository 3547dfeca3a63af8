"""Whether the default tests notice mistakes: `python tests/mutants/run.py`.

Every mutant is one small change of the library, such as a real mistake would make, in the TOML file of its package:

    [name]
    file = "law/_law.py"         # in perfjax/
    breaks = "what is wrong with it, in a line"
    old = 'text that stands there once'
    new = 'text in its place'
    tests = ["test_law.py"]      # likeliest to notice first; those at the top of the file if left out

Each is applied to a copy of the tracked files, and the default tests named are run on it up to the first failure.
Results are kept in `results.jsonl`: a run that was stopped goes on where it was. Neither pytest nor CI runs this.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from subprocess import PIPE, STDOUT, Popen
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.jsonl"
CACHE, NOTES = (ROOT / "build" / f"mutants_{name}" for name in ("cache", "notes.json"))
README, BEGIN, END = HERE.parent / "README.md", "<!-- campaign: begin -->\n", "<!-- campaign: end -->\n"
QUICK = 2.0  # seconds of a test
ELSEWHERE = 10  # tests that call the changed function, from files that the mutant does not name
KEY = ("package", "name", "digest")
SURVIVED, TIMEOUT = "SURVIVED", "timeout"
RUNNING: set[Popen] = set()


class Mutant(NamedTuple):
    """One change, and the tests that should notice it."""

    package: str
    name: str
    file: str
    breaks: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """Package, name, and a digest: once changed it is another one."""
        return self.package, self.name, hashlib.sha256(repr(self).encode()).hexdigest()[:12]

    def applied(self, source: str) -> str:
        """The text of its file with the change."""
        if source.count(self.old) != 1:
            raise SystemExit(f"{self.package}/{self.name}: `old` stands {source.count(self.old)} times in {self.file}.")
        return source.replace(self.old, self.new)


def mutants(package: str | None = None, names: list[str] | None = None) -> list[Mutant]:
    """All of them, or those of a package or of some names."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        tests = tables.pop("tests")
        for name, table in tables.items():
            found.append(Mutant(path.stem, name, **table | {"tests": tuple(table.get("tests", tests))}))
    return [m for m in found if package in (None, m.package) and (names is None or m.name in names)]


def check(chosen: list[Mutant]) -> None:
    """Every old text stands once in its file, what comes out is Python and something else, and the tests exist."""
    for m in chosen:
        source = (ROOT / "perfjax" / m.file).read_text(encoding="utf-8")
        if ast.dump(ast.parse(m.applied(source))) == ast.dump(ast.parse(source)):
            raise SystemExit(f"{m.package}/{m.name} changes nothing.")
        for test in m.tests:
            if not (ROOT / "tests" / test).is_file():
                raise SystemExit(f"{m.package}/{m.name}: there is no tests/{test}.")


def copied(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the tracked files, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def outcome(folder: pathlib.Path, tests: tuple[str, ...], timeout: float | None, *options: str, **settings: str):
    """The first test that fails in a copy, or SURVIVED, or TIMEOUT; and all that pytest said."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-pin_order", *options]
    command += ["-o", "addopts="]  # one process; types are not checked, which halves the time to start
    # Compiled programs are kept by what is compiled, so that all mutants and later runs can share them.
    command += ["-m", "not slow", "-o", f"cache_dir={CACHE}", *(f"tests/{test}" for test in tests)]
    # The copy's perfjax, also in processes that tests start; and the plugin.
    path = os.pathsep.join(map(str, (folder, folder / "tests" / "mutants")))
    environment = os.environ | {"PYTHONPATH": path, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"} | settings
    # In a session of its own, to be ended together with its children.
    process = Popen(command, cwd=folder, env=environment, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True)
    RUNNING.add(process)
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return TIMEOUT, ""
    finally:
        end(process)
    if process.returncode in (0, 5):  # 5: none of these tests is run by default
        return SURVIVED, said
    if process.returncode == 4:
        raise RuntimeError(f"pytest was called wrongly:\n{said}")
    failed = re.findall(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", said, re.MULTILINE)
    return failed[0] if failed else f"exit {process.returncode}", said


def end(process: Popen) -> None:
    """End a process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    RUNNING.discard(process)


def ordered(mutant: Mutant, notes: dict[str, list]) -> list[str]:
    """Tests by how soon they may notice: those that call the changed function, then those that are quick.

    File by file: going back and forth between files would make their fixtures again. Of other files than the mutant
    names, the quickest that call the function.
    """
    files = {f"tests/{test}": k for k, test in enumerate(mutant.tests)}
    source = (ROOT / "perfjax" / mutant.file).read_text(encoding="utf-8")
    before = re.findall(r"\bdef (\w+)", source[: source.index(mutant.old)])  # the last of them is the one it is in
    place = f"{mutant.file}:{before[-1]}" if before else None

    def rank(test):
        file, (seconds, called) = files[test.partition("::")[0]], notes[test]
        return (0, file, seconds) if place in called else (1, seconds > QUICK, file)

    named = sorted((test for test in notes if test.partition("::")[0] in files), key=rank)
    others = [test for test, (_, called) in notes.items() if place in called and test.partition("::")[0] not in files]
    return named + sorted(others, key=lambda test: notes[test][0])[:ELSEWHERE]


def run(mutant: Mutant, folder: pathlib.Path, timeout: float, order: list[str]) -> dict:
    """The result of one mutant, in a copy that is left as it was."""
    path, start = folder / "perfjax" / mutant.file, time.monotonic()
    listed, source = folder / "order.json", path.read_text(encoding="utf-8")
    listed.write_text(json.dumps(order), encoding="utf-8")
    path.write_text(mutant.applied(source), encoding="utf-8")
    try:
        others = dict.fromkeys(test.removeprefix("tests/").partition("::")[0] for test in order)
        files = tuple(dict.fromkeys((*mutant.tests, *others)))
        named = os.pathsep.join(f"tests/{test}" for test in mutant.tests)
        by, _ = outcome(folder, files, timeout, "-x", MUTANTS_ORDER=str(listed), MUTANTS_FILES=named)
    finally:
        path.write_text(source, encoding="utf-8")
    return dict(zip(KEY, mutant.key, strict=True)) | {"by": by, "seconds": round(time.monotonic() - start, 1)}


def baseline(pool: ThreadPoolExecutor, copies: list[pathlib.Path], files: list[str]) -> None:
    """The tests without a mutant, which must pass; notes, by test, the seconds it takes and the functions it calls."""
    start, notes = time.monotonic(), read_notes()

    def part(k):
        path = copies[k] / "notes.json"
        found = outcome(copies[k], files[k :: len(copies)], None, MUTANTS_NOTES=str(path))
        return *found, json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    parts = list(pool.map(part, range(min(len(copies), len(files)))))
    for _, _, found in parts:
        notes |= found
    NOTES.write_text(json.dumps(notes), encoding="utf-8")
    for failed, said, _ in parts:
        if failed != SURVIVED:
            raise SystemExit(f"{said}\nWithout any mutant {failed} fails: mend it first.")
    print(f"baseline: {len(files)} files pass in {time.monotonic() - start:.0f} s", flush=True)


def read_notes() -> dict[str, list]:
    return json.loads(NOTES.read_text(encoding="utf-8")) if NOTES.exists() else {}


def known() -> dict[tuple[str, ...], dict]:
    """The results there are, by the key of the mutant; the last one counts."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {tuple(result[name] for name in KEY): result for result in map(json.loads, lines)}


def campaign(chosen: list[Mutant], jobs: int, timeout: float, *, first: bool) -> None:
    """Run mutants, several at a time, and write and print each result as it comes; `first` without any."""
    CACHE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary, ThreadPoolExecutor(jobs) as pool:
        copies = [copied(pathlib.Path(temporary) / str(k)) for k in range(jobs)]

        def one(mutant):
            folder = copies.pop()  # there are as many as threads
            killers = [f"tests/{result['by']}" for key, result in before.items() if key[:2] == mutant.key[:2]]
            try:
                return run(mutant, folder, timeout, [x for x in killers if "::" in x] + ordered(mutant, notes))
            finally:
                copies.append(folder)

        try:
            if first:
                baseline(pool, copies, list(dict.fromkeys(test for m in chosen for test in m.tests)))
            notes, before = read_notes(), known()
            for k, future in enumerate(as_completed([pool.submit(one, mutant) for mutant in chosen]), 1):
                result = future.result()
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                where = f"{k}/{len(chosen)} {result['package']}/{result['name']}"
                print(f"{where}: {result['by']} ({result['seconds']:.0f} s)", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                end(process)
            raise


def table(chosen: list[Mutant]) -> str:
    """The results by package, as Markdown, and what the survivors break."""
    results = known()
    found = [(m, results[m.key]) for m in chosen if m.key in results]
    lines = ["| package | mutants | killed | by a timeout | minutes | survivors |", "| --- " * 6 + "|"]
    for package in [*dict.fromkeys(m.package for m, _ in found), "all"]:
        here = [result for m, result in found if package in (m.package, "all")]
        alive = [result["name"] for result in here if result["by"] == SURVIVED]
        slow, minutes = sum(r["by"] == TIMEOUT for r in here), sum(r["seconds"] for r in here) / 60
        shown = len(alive) if package == "all" else ", ".join(alive)
        lines.append(f"| {package} | {len(here)} | {len(here) - len(alive)} | {slow} | {minutes:.0f} | {shown} |")
    lines += ["", *(f"- {m.package}/{m.name}: {m.breaks}." for m, result in found if result["by"] == SURVIVED)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Parse, run, and print the table."""
    parser = argparse.ArgumentParser(description="Apply mutants to a copy, and see whether the default tests notice.")
    parser.add_argument("--package", help="only those of one file")
    parser.add_argument("--name", nargs="+", help="only those of these names")
    parser.add_argument("--jobs", type=int, default=2, help="at once (2)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds until a mutant counts as killed (1800)")
    parser.add_argument("--again", action="store_true", help="also those of which there is a result")
    parser.add_argument("--survivors", action="store_true", help="also those that survived")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutant first")
    parser.add_argument("--check", action="store_true", help="check that all can be applied, and end")
    parser.add_argument("--save", action="store_true", help="write the table of what is known into tests/README.md")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `campaign`, which ends what it started
    chosen = mutants(given.package, given.name)
    check(chosen)
    if given.check:
        print(f"{len(chosen)} mutants can be applied.")
        return
    done = {} if given.again else known()
    if given.survivors:
        done = {key: result for key, result in done.items() if result["by"] != SURVIVED}
    if left := [m for m in chosen if m.key not in done]:
        campaign(left, given.jobs, given.timeout, first=not given.no_baseline)
    print(table(chosen), end="")
    if given.save:
        before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
        README.write_text(before + BEGIN + table(mutants()) + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
