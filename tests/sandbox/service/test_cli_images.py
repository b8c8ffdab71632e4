"""`ale-sandbox images`: the real registry, as a person meets it."""

import os

import pytest

from ale_jax.sandbox import docker_runtime
from ale_jax.sandbox.cli.main import main
from ale_jax.sandbox.hub.hub import Hub
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec

pytestmark = pytest.mark.heavy

IMAGE = SandboxSpec().image


@pytest.fixture
def images(capsys):
    """Runs `ale-sandbox images ...`: exit code, output and errors."""
    if reason := docker_runtime.probe(SandboxSpec()):
        pytest.skip(f"docker: {reason}")

    def run(*words):
        code = main(["images", *words])
        return code, *capsys.readouterr()

    return run


def test_one_that_is_here_is_listed_tried_and_built_at_once(images):
    assert images("try", IMAGE) == (0, f"{IMAGE}: in order\n", "")
    code, table, _ = images()
    (row,) = [
        line for line in table.splitlines() if line.startswith(f"{IMAGE} ") and "works" in line
    ]
    assert code == 0 and " MB " in row and "bash python3 tar agent glibc" in row
    assert Hub().inspect(IMAGE).reference in row and "ago, docker)" in row
    code, table, _ = images("build", IMAGE)
    assert code == 0 and Hub().inspect(IMAGE).reference in table


def test_what_cannot_be_built_does_not_keep_the_rest_waiting(images):
    code, table, _ = images("build", "ale-nowhere", IMAGE)
    nowhere, here = table.splitlines()[1:]
    assert code == 1 and Hub().inspect(IMAGE).reference in here
    assert "there is no recipe of that name" in nowhere


def test_a_registry_that_cannot_be_reached_leaves_a_way(images):
    name = "127.0.0.1:1/python:3.11-slim"
    code, table, _ = images("build", "--pull", name)
    assert code == 1 and f"docker could not pull '{name}'" in table
    assert f"docker save {name} > image.tar, and here: docker load < image.tar" in table


@pytest.fixture
def recipes(tmp_path, monkeypatch, images):
    """A folder with a recipe of one's own, of the image ale-NAME: the folder and the name."""
    monkeypatch.setenv("ALE_RECIPES", "")  # put back when the test is over
    name = f"clitest-{os.getpid()}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "Dockerfile").write_text(f"FROM {IMAGE}\nENV GREETING=hello\n")
    yield tmp_path, f"ale-{name}"
    images("--recipes", str(tmp_path), "rm", f"ale-{name}")


def test_recipes_of_a_folder_of_ones_own(images, recipes):
    folder, image = recipes
    code, table, _ = images("build", image)
    assert code == 1 and "--recipes=DIR" in table
    code, table, _ = images("build", "--recipes", str(folder), image)
    assert code == 0 and image.replace("ale-", "ale/") in table
    assert images("--recipes", str(folder), "try", image) == (0, f"{image}: in order\n", "")
    with pick_runtime("docker", SandboxSpec(image=image)).start(
        SandboxSpec(image=image), {}
    ) as box:
        assert box.run("echo works").output == "works\n"


def test_recipes_that_cannot_be_meant_are_refused(images, recipes):
    folder, _ = recipes
    (folder / "shell").mkdir()
    code, table, _ = images("build", "--recipes", str(folder), IMAGE)
    assert code == 1 and "rename its folder" in table
    code, table, _ = images("build", "--recipes", str(folder / "nothing"), IMAGE)
    assert code == 1 and "is not a folder" in table


@pytest.mark.parametrize("words", [("try", "ale-nowhere"), ("rm", "ale-nowhere")])
def test_one_that_is_not_here_is_an_error_of_one_line(images, words):
    code, out, err = images(*words)
    assert (code, out) == (1, "") and err.count("\n") == 1 and "'ale-nowhere'" in err


def test_one_that_was_not_made_here_is_not_removed(images):
    code, _, err = images("rm", "someone/elses:1")
    assert code == 1 and "is not here" in err
