"""`ale-sandbox images`: the real registry, as a person meets it."""

import pytest

from ale_jax.sandbox import docker_runtime
from ale_jax.sandbox.cli.main import main
from ale_jax.sandbox.hub.hub import Hub
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


@pytest.mark.parametrize("words", [("try", "ale-nowhere"), ("rm", "ale-nowhere")])
def test_one_that_is_not_here_is_an_error_of_one_line(images, words):
    code, out, err = images(*words)
    assert (code, out) == (1, "") and err.count("\n") == 1 and "'ale-nowhere'" in err


def test_one_that_was_not_made_here_is_not_removed(images):
    code, _, err = images("rm", "someone/elses:1")
    assert code == 1 and "is not here" in err
