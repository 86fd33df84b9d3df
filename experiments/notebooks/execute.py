"""``python -m experiments.notebooks.execute``: run every notebook from top to bottom and keep its outputs.

What is stored depends on the code, the numbers it measured and nothing else: no time stamps, no paths of a temporary
directory, counts and ids as they follow from the order of the cells. The code that ran is kept as a digest, so that an
edit without a new run is found.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

HERE = Path(__file__).parent
TIMEOUT_S = 120


def notebooks() -> list[Path]:
    """Every notebook, in order."""
    return sorted(HERE.glob("*.ipynb"))


def code_digest(notebook: Any) -> str:
    """Identify the code of a notebook: any change of any code cell changes it."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def execute(path: Path, environment: dict[str, str] | None = None) -> Any:
    """Run a notebook in a fresh kernel and give it with its outputs; an error in a cell is raised.

    Parameters
    ----------
    path : Path
        The notebook, which is only read.
    environment : dict of str to str, optional
        Variables that the kernel gets on top of ours.
    """
    notebook = nbformat.read(path, as_version=4)
    # Commands in cells (`!gids ...`) are those of this interpreter.
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kernel = os.environ | {"PATH": programs, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    with tempfile.TemporaryDirectory(prefix="gids-kernel-") as directory:
        # Sockets in a directory of their own: kernels that start at the same time cannot take each other's port.
        sockets = Config(KernelManager={"transport": "ipc", "ip": f"{directory}/kernel"})
        client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", record_timing=False, config=sockets)
        client.execute(cwd=str(HERE.parents[1]), env=kernel | (environment or {}))
    return notebook


def tidy(notebook: Any) -> Any:
    """Drop what says nothing: the interpreter's version, ids that are drawn at random, pieces that one stream came in."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "gids": {"executed": code_digest(notebook)},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number:02d}", {}
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
            for output in cell.outputs:
                if "metadata" in output:
                    output.metadata = {}
                # A figure's text is its size and address; the picture says more.
                if "image/png" in output.get("data", {}):
                    output.data = {"image/png": output.data["image/png"].strip()}
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for output in outputs:
        if kept and output.output_type == "stream" == kept[-1].output_type and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.notebooks.execute", description="run and store notebooks"
    )
    parser.add_argument("name", nargs="*", help=f"which (default: all): {', '.join(p.stem for p in notebooks())}")
    args = parser.parse_args()
    names = {path.stem: path for path in notebooks()}
    for name in args.name or names:
        if name not in names:
            parser.error(f"name must be one of {', '.join(names)} (got {name!r})")
        start = time.perf_counter()
        nbformat.write(tidy(execute(names[name])), names[name])
        print(f"{names[name]}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
