"""Each notebook runs from its first to its last cell on the recorded run, and draws."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.quick_compile import QUICK_COMPILE

pytestmark = pytest.mark.heavy

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PICTURES = {
    "credit": 2,
    "granularity": 4,
    "staleness": 2,
    "attention_credit": 2,
    "crucial_chunks": 2,
    "credit_truth": 3,
    "compare_runs": 2,
    "laboratory": 3,
    "python_entry": 1,
}


# They compute what slow tests of benchmarks hold, and gradients of which tests/algo knows more.
LONG = {"laboratory", "credit_truth", "granularity"}


@pytest.fixture
def recorded(tmp_path):
    """A copy: opening a run claims its folder."""
    return shutil.copytree(FOLDER / "recorded", tmp_path / "recorded")


@pytest.fixture(scope="module")
def kernel():
    """Plays all notebooks, as loading what they import takes longer than most of them."""
    path = [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    one_device = {"XLA_FLAGS": QUICK_COMPILE}  # as at a person's desk
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=os.environ | one_device | {"PYTHONPATH": os.pathsep.join(path)})
    yield manager
    manager.shutdown_kernel(now=True)


def executed(name, run, kernel):
    """The notebook with what its cells put out, beginning with no name defined."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    begin = f"%reset -f\n%cd -q {FOLDER}\n%env ALE_RUN={run}"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(begin))
    return NotebookClient(notebook, kernel, timeout=300).execute()


def test_every_notebook_is_known():
    assert set(NAMES) == PICTURES.keys()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in NAMES],
)
def test_a_notebook_runs_and_draws(name, recorded, kernel):
    cells = executed(name, recorded, kernel).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == PICTURES[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_notebook_shows_its_pictures_and_names_no_machine(name):
    text = (FOLDER / f"{name}.ipynb").read_text()
    assert text.count('"image/png"') == PICTURES[name]
    assert "/root" not in text and "/home" not in text and "/tmp" not in text


def test_a_run_without_trajectories_is_refused_by_the_files_name(recorded, kernel):
    (recorded / "trajectories.jsonl").unlink()
    with pytest.raises(CellExecutionError, match=r"trajectories\.jsonl holds no trajectory"):
        executed("credit", recorded, kernel)


def test_a_run_without_experts_is_refused_by_its_scheme(recorded, kernel):
    (host,) = recorded.glob("checkpoints/step_*/host.json")
    assert '"experts"' in host.read_text()
    config = recorded / "config.json"
    config.write_text(config.read_text().replace('"scheme": "parallel"', '"scheme": "none"'))
    with pytest.raises(CellExecutionError, match=r"has no experts \(resampling.scheme is none\)"):
        executed("crucial_chunks", recorded, kernel)
