"""Runs the notebooks of this folder and stores the outputs in them: `python examples/run.py`."""

from __future__ import annotations

import asyncio
import copy
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
FORMAT: Any = nbformat  # its functions have no types
SECONDS = 600
"""The longest time that a cell may take: machines can be busy."""


class ThisPython(AsyncKernelManager):
    """The Python that runs this file, whatever kernels are registered.  It talks through files, not over a network."""

    def __init__(self, **settings: Any) -> None:
        # An absolute path: the kernel has another working directory.
        super().__init__(transport="ipc", ip=str(Path(jupyter_runtime_dir(), "kernel")), **settings)

    @property
    def kernel_spec(self) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a copy with new outputs.  Files are written to a temporary folder, which is then deleted."""
    done = copy.deepcopy(notebook)
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        # Nobody's own settings of Jupyter, IPython and matplotlib have an effect.
        own = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "MPLCONFIGDIR", "TMPDIR")
        chosen = {"JUPYTER_PLATFORM_DIRS": "1", **dict.fromkeys(own, folder)}
        os.environ.update(chosen)  # for the connection file, which this process writes
        try:
            client = NotebookClient(
                done,
                timeout=SECONDS,
                kernel_manager_class=ThisPython,
                record_timing=False,
                resources={"metadata": {"path": folder}},
            )
            asyncio.run(client.async_execute(env=environment | chosen))
        finally:
            _restore(environment, chosen)
    return done


def _restore(before: Mapping[str, str], changed: Mapping[str, str]) -> None:
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


def main() -> None:
    """Run the notebooks that are named, or all."""
    for path in map(Path, sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb")))):
        done = execute(FORMAT.read(path, as_version=4))
        for number, cell in enumerate(done.cells):
            cell["id"] = f"cell-{number:02d}"  # so that a new run changes outputs only
        FORMAT.write(done, path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
