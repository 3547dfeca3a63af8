"""Progress of a sweep on stderr: a bar on a terminal, a line per tenth elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Generator

__all__ = ["reporting"]


@contextlib.contextmanager
def reporting(shown: bool, cells: int, done: int) -> Generator[Callable[[int], None]]:
    """A function to call with the number of cells that are now done, of which `done` were so before."""
    if not shown:
        yield lambda now: None
    elif sys.stderr.isatty():
        with _bar(cells, done) as report:
            yield report
    else:
        yield _lines(cells, done)


def _lines(cells, done):
    start, told = time.monotonic(), [10 * done // cells]

    def report(now: int) -> None:
        tenth = 10 * now // cells
        if tenth > told[0]:
            told[0] = tenth
            rate, left = _rate(start, now - done, cells - now)
            print(f"{now} of {cells} cells, {rate:.3g} cells/s, {left:.0f} s left", file=sys.stderr, flush=True)

    return report


@contextlib.contextmanager
def _bar(cells, done):
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("cells, {task.fields[rate]:.3g}/s,"))
    start = time.monotonic()
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("cells", total=cells, completed=done, rate=0.0)

        def report(now: int) -> None:
            progress.update(task, completed=now, rate=_rate(start, now - done, 0)[0])

        yield report


def _rate(start, finished, left):
    rate = finished / max(time.monotonic() - start, 1e-9)
    return rate, left / max(rate, 1e-9)
