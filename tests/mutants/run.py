"""Whether the default tests notice mistakes: `python tests/mutants/run.py`.

Every mutant is one small change of the library, such as a real mistake would make, in the TOML file of its package:

    [name]
    file = "law/_law.py"         # in perfjax/
    breaks = "what is wrong with it, in a line"
    old = 'text that stands there once'
    new = 'text in its place'
    tests = ["test_law.py"]      # likeliest to notice first; those at the top of the file if left out

Each is applied to a copy of the tracked files, and the default tests named are run on it up to the first failure.
Results are kept in `build/mutants.jsonl`: a run that was stopped goes on where it was. Neither pytest nor CI runs this.
"""

import argparse
import ast
import collections
import contextlib
import hashlib
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS, CACHE, NOTES = (ROOT / "build" / f"mutants{end}" for end in (".jsonl", "_cache", "_notes.json"))
QUICK = 2.0  # seconds of a test
README, BEGIN, END = HERE.parent / "README.md", "<!-- campaign: begin -->\n", "<!-- campaign: end -->\n"
SURVIVED, TIMEOUT = "SURVIVED", "timeout"
RUNNING: set[subprocess.Popen] = set()


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
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]

    @property
    def place(self) -> str:
        """The function it is in, by file and name, as `in_order` notes it."""
        source = (ROOT / "perfjax" / self.file).read_text(encoding="utf-8")
        line, within, names = source[: source.index(self.old)].count("\n") + 1, ast.parse(source), []
        while within is not None and not isinstance(within, ast.FunctionDef):
            within = next((x for x in within.body if x.lineno <= line <= x.end_lineno and hasattr(x, "body")), None)
            names += [] if within is None else [getattr(within, "name", "")]
        return f"{self.file}:{'.'.join(names)}"

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
        found += [Mutant(path.stem, key, **{"tests": tests} | table) for key, table in tables.items()]
    found = [m._replace(tests=tuple(m.tests)) for m in found]
    return [m for m in found if package in (None, m.package) and (names is None or m.name in names)]


def check(chosen: list[Mutant]) -> None:
    """Every old text stands once in its file, what comes out is Python and something else, and the tests exist."""
    for m in chosen:
        source = (ROOT / "perfjax" / m.file).read_text(encoding="utf-8")
        changed = m.applied(source)
        if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
            raise SystemExit(f"{m.package}/{m.name} changes nothing.")
        for test in m.tests:
            if not (ROOT / "tests" / test).is_file():
                raise SystemExit(f"{m.package}/{m.name}: there is no tests/{test}.")


def copied(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the tracked files, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def outcome(
    folder: pathlib.Path, tests: tuple[str, ...], timeout: float | None, options: str = "", **settings: str
) -> tuple[str, str]:
    """The first test that fails in a copy, or SURVIVED, or TIMEOUT; and all that pytest said."""
    command = [sys.executable, "-m", "pytest", *f"-n 0 -q -rfE --tb=short -p in_order {options}".split()]
    # Compiled programs are kept by what is compiled, so that all mutants and later runs can share them.
    command += ["-m", "not slow", "-o", f"cache_dir={CACHE}", *(f"tests/{test}" for test in tests)]
    # The copy's perfjax, also in processes that tests start; and the plugin.
    path = os.pathsep.join(map(str, (folder, folder / "tests" / "mutants")))
    environment = os.environ | {"PYTHONPATH": path, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"} | settings
    # With its children in a session of its own, to be ended together.
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    RUNNING.add(process)
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return TIMEOUT, ""
    finally:
        ended(process)
    if process.returncode == 0:
        return SURVIVED, said
    failed = re.findall(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", said, re.MULTILINE)
    if process.returncode in (4, 5):  # wrong usage, or no tests
        raise RuntimeError(f"pytest ended with {process.returncode}:\n{said}")
    return failed[0] if failed else f"exit {process.returncode}", said


def ended(process: subprocess.Popen) -> None:
    """End a process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    RUNNING.discard(process)


def ordered(mutant: Mutant, notes: dict[str, list], killers: list[str]) -> list[str]:
    """Tests by how soon they may notice: what did before, what calls the changed function, what is quick.

    File by file: going back and forth between files would make their fixtures again.
    """
    files = {f"tests/{test}": k for k, test in enumerate(mutant.tests)}
    found = {test: files[test.partition("::")[0]] for test in notes if test.partition("::")[0] in files}
    calling = [test for test in found if mutant.place in notes[test][1]]
    others = [test for test in found if mutant.place not in notes[test][1]]
    calling.sort(key=lambda test: (found[test], notes[test][0]))
    others.sort(key=lambda test: (notes[test][0] > QUICK, found[test]))
    return [*killers, *calling, *others]


def run(mutant: Mutant, folder: pathlib.Path, timeout: float, order: list[str]) -> dict:
    """The result of one mutant, in a copy that is left as it was."""
    path, start = folder / "perfjax" / mutant.file, time.monotonic()
    listed, source = folder / "order.json", path.read_text(encoding="utf-8")
    listed.write_text(json.dumps(order), encoding="utf-8")
    path.write_text(mutant.applied(source), encoding="utf-8")
    try:
        killed_by, _ = outcome(folder, mutant.tests, timeout, "-x", MUTANTS_ORDER=str(listed))
    finally:
        path.write_text(source, encoding="utf-8")
    seconds = round(time.monotonic() - start, 1)
    return {
        "package": mutant.package,
        "name": mutant.name,
        "digest": mutant.digest,
        "by": killed_by,
        "seconds": seconds,
    }


def read_notes() -> dict[str, list]:
    """By test, the seconds it took and the functions it called, in the order of the baseline."""
    return json.loads(NOTES.read_text(encoding="utf-8")) if NOTES.exists() else {}


def baseline(folders: list[pathlib.Path], files: list[str]) -> None:
    """The tests without a mutant, which must pass; takes notes."""
    start, parts = time.monotonic(), [tuple(files[k :: len(folders)]) for k in range(len(folders))]
    pairs = [(folder, part) for folder, part in zip(folders, parts, strict=True) if part]
    with ThreadPoolExecutor(len(pairs)) as pool:
        found = list(pool.map(lambda pair: outcome(*pair, None, MUTANTS_NOTES=str(pair[0] / "notes.json")), pairs))
    for failed, said in found:
        if failed != SURVIVED:
            raise SystemExit(f"{said}\nWithout any mutant {failed} fails: mend it first.")
    notes = read_notes()
    for folder, _ in pairs:
        notes |= json.loads((folder / "notes.json").read_text(encoding="utf-8"))
    NOTES.write_text(json.dumps(notes), encoding="utf-8")
    print(f"baseline: {len(files)} files pass in {time.monotonic() - start:.0f} s", flush=True)


def known() -> dict[tuple[str, str, str], dict]:
    """The results there are, by package, name and digest of the mutant; the last one counts."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {(r["package"], r["name"], r["digest"]): r for r in map(json.loads, lines)}


def campaign(chosen: list[Mutant], jobs: int, timeout: float, *, first: bool) -> None:
    """Run mutants, several at a time, and write and print each result as it comes; `first` without any."""
    RESULTS.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary, ThreadPoolExecutor(jobs) as pool:
        copies = [copied(pathlib.Path(temporary) / str(k)) for k in range(jobs)]
        if first:
            baseline(copies, list(dict.fromkeys(test for m in chosen for test in m.tests)))
        notes, before, free = read_notes(), known(), queue.SimpleQueue()
        for folder in copies:
            free.put(folder)

        def one(mutant):
            folder = free.get()
            killers = [f"tests/{r['by']}" for key, r in before.items() if key[:2] == (mutant.package, mutant.name)]
            try:
                return run(mutant, folder, timeout, ordered(mutant, notes, killers))
            finally:
                free.put(folder)

        try:
            for k, future in enumerate(as_completed([pool.submit(one, mutant) for mutant in chosen]), 1):
                result = future.result()
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                by = result["by"] if result["by"] == SURVIVED else f"killed by {result['by']}"
                where = f"{k}/{len(chosen)} {result['package']}/{result['name']}"
                print(f"{where}: {by} ({result['seconds']:.0f} s)", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                ended(process)
            raise


def table(chosen: list[Mutant]) -> str:
    """The results by package, as Markdown, and what the survivors break."""
    results = known()
    rows, survivors = collections.defaultdict(list), []
    for m in chosen:
        result = results.get((m.package, m.name, m.digest))
        if result is not None:
            rows[m.package].append(result)
            survivors += [m] if result["by"] == SURVIVED else []
    rows["all"] = [result for package in list(rows) for result in rows[package]]
    lines = ["| package | mutants | killed | by a timeout | minutes | survivors |", "| --- " * 6 + "|"]
    for package, found in rows.items():
        alive = [result["name"] for result in found if result["by"] == SURVIVED]
        slow = sum(result["by"] == TIMEOUT for result in found)
        minutes = sum(result["seconds"] for result in found) / 60
        shown = f"{len(alive)}" if package == "all" else ", ".join(alive)
        lines.append(f"| {package} | {len(found)} | {len(found) - len(alive)} | {slow} | {minutes:.0f} | {shown} |")
    lines += ["", *(f"- {m.package}/{m.name}: {m.breaks}." for m in survivors)]
    return "\n".join(lines).rstrip() + "\n"


def save(text: str) -> None:
    """Put the table where tests/README.md has its place."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    README.write_text(f"{before}{BEGIN}{text}{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    """Parse, run, and print the table."""
    parser = argparse.ArgumentParser(description="Apply mutants to a copy, and see whether the default tests notice.")
    parser.add_argument("--package", help="only those of one file")
    parser.add_argument("--name", nargs="+", help="only those of these names")
    parser.add_argument("--jobs", type=int, default=2, help="at once (2)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds until a mutant counts as killed (1800)")
    parser.add_argument("--again", action="store_true", help="also those of which there is a result")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutant first")
    parser.add_argument("--list", action="store_true", help="print mutants and what they break, and end")
    parser.add_argument("--check", action="store_true", help="check that all can be applied, and end")
    parser.add_argument("--save", action="store_true", help="write the table of what is known into tests/README.md")
    given = parser.parse_args()
    chosen = mutants(given.package, given.name)
    check(chosen)
    if given.list or given.check:
        if given.list:
            print(*(f"{m.package}/{m.name}: {m.breaks}" for m in chosen), sep="\n")
        print(f"{len(chosen)} mutants can be applied.")
        return
    done = {} if given.again else known()
    left = [m for m in chosen if (m.package, m.name, m.digest) not in done]
    if left:
        campaign(left, given.jobs, given.timeout, first=not given.no_baseline)
    print(table(chosen), end="")
    if given.save:
        save(table(mutants()))


if __name__ == "__main__":
    main()
