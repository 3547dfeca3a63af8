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
RESULTS, CACHE, TIMES = (ROOT / "build" / f"mutants{end}" for end in (".jsonl", "_cache", "_times.json"))
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

    def applied(self, source: str) -> str:
        """The text of its file with the change."""
        if source.count(self.old) != 1:
            raise SystemExit(f"{self.package}/{self.name}: `old` stands {source.count(self.old)} times in {self.file}.")
        return source.replace(self.old, self.new)


def mutants(package: str | None = None, name: str | None = None) -> list[Mutant]:
    """All of them, or those of a package or of a name."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        tests = tables.pop("tests")
        found += [Mutant(path.stem, key, **{"tests": tests} | table) for key, table in tables.items()]
    found = [m._replace(tests=tuple(m.tests)) for m in found]
    return [m for m in found if package in (None, m.package) and name in (None, m.name)]


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
    folder: pathlib.Path, tests: tuple[str, ...], *, timeout: float | None, baseline: bool = False
) -> tuple[str, str]:
    """The first test that fails in a copy, or SURVIVED, or TIMEOUT; and all that pytest said."""
    options = "-n 0 -q -rfE --tb=short -p quick_first" + ("" if baseline else " -x")
    command = [sys.executable, "-m", "pytest", *options.split(), "-m", "not slow"]
    # Compiled programs are kept by what is compiled, so that all mutants and later runs can share them.
    command += ["-o", f"cache_dir={CACHE}", *(f"tests/{test}" for test in tests)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (folder, folder / "tests" / "mutants"))),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "MUTANTS_TIMES": str(TIMES),
        "MUTANTS_BASELINE": "1" if baseline else "",
    }
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
    failed = re.findall(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", said, re.MULTILINE)
    if process.returncode in (4, 5):  # wrong usage, or no tests
        raise RuntimeError(f"pytest ended with {process.returncode}:\n{said}")
    return failed[0] if failed else f"exit {process.returncode}", said


def ended(process: subprocess.Popen) -> None:
    """End a process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    RUNNING.discard(process)


def run(mutant: Mutant, folder: pathlib.Path, timeout: float) -> dict:
    """The result of one mutant, in a copy that is left as it was."""
    path, start = folder / "perfjax" / mutant.file, time.monotonic()
    source = path.read_text(encoding="utf-8")
    path.write_text(mutant.applied(source), encoding="utf-8")
    try:
        killed_by, _ = outcome(folder, mutant.tests, timeout=timeout)
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


def known() -> dict[tuple[str, str, str], dict]:
    """The results there are, by package, name and digest of the mutant; the last one counts."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {(r["package"], r["name"], r["digest"]): r for r in map(json.loads, lines)}


def campaign(chosen: list[Mutant], jobs: int, timeout: float, *, baseline: bool) -> None:
    """Run mutants, several at a time, and write and print each result as it comes."""
    RESULTS.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary, ThreadPoolExecutor(jobs) as pool:
        folders = queue.SimpleQueue()
        for k in range(jobs):
            folders.put(copied(pathlib.Path(temporary) / str(k)))
        if baseline:
            start, files = time.monotonic(), tuple(dict.fromkeys(test for m in chosen for test in m.tests))
            failed, said = outcome(pathlib.Path(temporary) / "0", files, timeout=None, baseline=True)
            if failed != SURVIVED:
                raise SystemExit(f"{said}\nWithout any mutant {failed} fails: mend it first.")
            print(f"baseline: {len(files)} files pass in {time.monotonic() - start:.0f} s", flush=True)

        def one(mutant):
            folder = folders.get()
            try:
                return run(mutant, folder, timeout)
            finally:
                folders.put(folder)

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
    parser.add_argument("--name", help="only those of this name")
    parser.add_argument("--jobs", type=int, default=2, help="at once (2)")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds after which a mutant counts as killed (600)"
    )
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
        campaign(left, given.jobs, given.timeout, baseline=not given.no_baseline)
    print(table(chosen), end="")
    if given.save:
        save(table(mutants()))


if __name__ == "__main__":
    main()
