"""The notebook of the documentation runs from its first cell to its last."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import require

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def notebook() -> Any:
    for package in ("nbclient", "ipykernel"):
        found = importlib.util.find_spec(package) is not None
        require("notebook", found, f"{package} is not installed")
    import nbformat

    return nbformat.read(NOTEBOOK, 4)


def test_the_notebook_is_kept_without_outputs(notebook: Any) -> None:
    """They would be of one machine, and of the version that it had."""
    for cell in notebook.cells:
        assert not cell.get("outputs"), cell.source
        assert cell.get("execution_count") is None


def test_every_cell_runs(notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    client = NotebookClient(
        notebook, timeout=250, resources={"metadata": {"path": os.fspath(NOTEBOOK.parent)}}
    )
    client.execute()
    shown = [
        (cell.source, set(output.get("data", {})))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    ]

    def kinds(begin: str) -> set[str]:
        return set().union(*(data for source, data in shown if begin in source))

    assert "text/html" in kinds('sim = raytwin.run("fig11a"')
    assert "text/html" in kinds("sim.rows.head")
    assert "image/png" in kinds("sim.plot()")
    assert "image/png" in kinds("sim.plot(local")
    assert "text/html" in kinds('pd.DataFrame({"sim": sim.metrics')
    (said,) = [
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.get("name") == "stdout" and "killed.findings" in cell.source
    ]
    assert "kill node:1 at 0.080 s" in said
