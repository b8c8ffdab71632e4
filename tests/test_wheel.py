"""What is installed lives under `ale_jax` and needs only what the package requires. A user's envs/
and configs/ stay theirs."""

import re
import zipfile
from pathlib import Path

import pytest

from ale_jax.model.tokenizer import train_bpe
from tests.fresh_installation import FreshInstallation, built, copied_source
from tests.model.shapes import QWEN2, changed
from tests.model.weights.families import random_params
from tests.model.weights.gguf_files import write_gguf

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
COUNTDOWN = (
    "--config=smoke",
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
)
WEIGHTS = ("--config=smoke_weights", *COUNTDOWN[1:])
# The same from Python.
EVALUATE = """
import ale_jax
train = ({"world": "countdown", "families": ("countdown3",)},)
families = {"worlds.train": train, "worlds.held_out": ()}
found = ale_jax.evaluate("smoke", "run", families | {"eval.held_out_tasks": 0})
print("found", found.total(held_out=False))
"""
NAMED = re.compile(r"python -m ([\w.]+)")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return copied_source(tmp_path_factory.mktemp("source") / "copy")


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return built(source, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return FreshInstallation(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A .gguf file."""
    texts = [{"role": "user", "content": "Reach 24 with 3, 5 and 7, each used once."}]
    tokenizer = train_bpe(texts * 20, 320)
    shape = changed(QWEN2, len(tokenizer), max_positions=2048)
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    return write_gguf(path, "qwen2", random_params(shape), shape, tokenizer=tokenizer)


def succeeded(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_a_run_imports_nothing_of_the_folder_that_it_is_started_from(
    source, installed, kind, tmp_path
):
    if kind == "editable":
        installed = FreshInstallation(tmp_path / "environment", built(source, tmp_path, kind))
    here = tmp_path / "here"
    for package in ("envs", "configs", "examples", "benchmarks", "tests"):
        (here / package).mkdir(parents=True)
        (here / package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (here / "smoke").write_text("raise AssertionError('taken for a config')\n")
    done = installed.run("-m", "ale_jax.launch", *COUNTDOWN, "--workdir=run", cwd=here)
    succeeded(done)
    assert (here / "run" / "report.html").is_file()
    assert not re.search("AssertionError", done.stdout + done.stderr)
    assert "found" in succeeded(installed.run("-c", EVALUATE, cwd=here))
    assert not list(here.glob("*/__pycache__")), "a package of the folder was imported"


def test_real_models_are_converted_planned_trained_and_exported(installed, model, tmp_path):
    launch = ("-m", "ale_jax.launch")

    def run(*line):
        return succeeded(installed.run(*line, cwd=tmp_path))

    convert = ("-m", "ale_jax.model.weights.convert", str(model), "sparse")
    run(*convert, "--experts=4", "--experts-per-token=2")
    dense, sparse = ([*WEIGHTS, f"--config.weights={each}"] for each in (model, "sparse"))
    for config in (dense, sparse):
        assert "total" in run(*launch, "plan", *config)
    one_step = [*dense, "--config.rl.steps=1", "--workdir=run"]
    run(*launch, *one_step)
    run(*launch, "export", *one_step, "--out=exported")
    assert "total" in run(*launch, "plan", *dense, "--config.weights=exported")
    run("-m", "ale_jax.monitor.report", "run")
    assert "`rl.steps`" in run("-m", "ale_jax.configs.document")


def test_whatever_the_pages_name_can_be_imported(installed, source):
    named = {*NAMED.findall((ROOT / "README.md").read_text())}
    named |= {*NAMED.findall((ROOT / "docs/policy.md").read_text())}
    assert {"ale_jax.launch", "ale_jax.model.weights.convert", "benchmarks.pods"} <= named
    for module in sorted(named):
        package = (source / module.replace(".", "/")).is_dir()
        name = f"{module}.__main__" if package else module
        succeeded(installed.run("-c", f"import {name}", cwd=source))
