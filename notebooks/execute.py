"""Run every notebook from top to bottom and fail on the first error: `python -m notebooks.execute`."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

__all__ = ["execute"]


def execute(path: Path) -> None:
    """Run one notebook in its own folder; with `--save`, keep its outputs."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}).execute()
    if "--save" in sys.argv:
        nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        print(f"{path.name} ...", flush=True)
        execute(path)
