"""Installed, everything lives under `ale_jax`, and a user's own envs/ and configs/ stay theirs.

The wheel is installed into an empty environment, beside the packages that this one has.
"""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.quick_compile import QUICK_COMPILE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
COUNTDOWN = (
    "--config.worlds.train_families=('countdown3',)",
    "--config.worlds.held_out_families=()",
    "--config.eval.held_out_tasks=0",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", f"--wheel-dir={out}"]
    # Of a copy, as the build writes beside what it builds.
    copy = tmp_path_factory.mktemp("source") / "copy"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    copy.mkdir()
    archive = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-", "--ignore-failed-read"],
        cwd=ROOT,
        input=tracked.stdout,
        check=True,
        capture_output=True,
    )
    subprocess.run(["tar", "--extract"], cwd=copy, input=archive.stdout, check=True)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, copy], check=True)
    (built,) = out.glob("*.whl")
    return built


def test_a_wheel_holds_ale_jax_alone_and_all_of_its_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ale_jax"}
    for folder in ("ale_jax", "envs", "configs", "examples"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        data = [path for path in files if path.suffix not in (".py", ".pyc")]
        home = ROOT if folder == "ale_jax" else ROOT / "ale_jax"
        wanted = {f"{'' if home == ROOT else 'ale_jax/'}{path.relative_to(ROOT)}" for path in data}
        assert wanted <= set(names)


def test_an_installed_run_imports_nothing_of_the_folder_that_it_is_started_from(wheel, tmp_path):
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    site = next((environment / "lib").glob("python*")) / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    # An editable ale-jax among the libraries is found by a .pth file there, which is not read.
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for package in ("envs", "configs"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise AssertionError('imported')\n")
    line = [
        environment / "bin" / "python",
        "-m",
        "ale_jax.launch",
        "--config=smoke",
        "--workdir=run",
    ]
    done = subprocess.run(
        [*line, *COUNTDOWN],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK_COMPILE},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and (tmp_path / "run" / "report.html").is_file(), done.stderr
    assert not re.search("AssertionError", done.stdout + done.stderr)
    assert not list(tmp_path.glob("*/__pycache__")), "a package of the folder was imported"
