"""The client's own distribution: a service is used from an environment with nothing else."""

import pytest

from ale_jax.sandbox.cli.main import LOCAL
from tests.fresh_installation import FreshInstallation, built, copied_source
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN

pytestmark = pytest.mark.slow

MAIN = ("-m", "ale_jax.sandbox.cli.main")
IN_PYTHON = """
import sys
from ale_jax.sandbox.sdk.client import SandboxClient
with SandboxClient(*sys.argv[1:]) as client, client.attach("box") as box:
    print(box.run("echo python").output)
print(sorted({"jax", "ray", "transformers", "docker", "fastapi", "numpy"} & sys.modules.keys()))
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("client")
    wheel = built(copied_source(folder / "copy") / "client", folder, "wheel")
    return FreshInstallation(folder / "environment", wheel)


def test_it_requires_little(alone):
    (site,) = (alone.bin.parent / "lib").glob("python*/site-packages")
    there = {each.name for each in site.iterdir()}
    assert {"httpx", "websockets", "rich", "ale_jax"} <= there
    assert not there & {"jax", "ray", "transformers", "numpy", "docker", "fastapi", "torch"}


def test_a_sandbox_is_used_from_the_command_line_and_from_python(
    alone, real, tmp_path, monkeypatch
):
    monkeypatch.setenv("ALE_SANDBOX_TOKEN", ANN)
    monkeypatch.setenv("ALE_SANDBOX_URL", real.url)
    with real.client() as client:
        client.start(SPEC, id="box")
    done = alone.run(*MAIN, "exec", "box", "echo works; exit 3", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "works\n", "")
    (tmp_path / "file").write_text("content")
    assert alone.run(*MAIN, "cp", "file", "box:/tmp/", cwd=tmp_path).returncode == 0
    assert alone.run(*MAIN, "exec", "box", "cat /tmp/file", cwd=tmp_path).stdout == "content"
    assert "running" in alone.run(*MAIN, "ps", cwd=tmp_path).stdout
    done = alone.run("-c", IN_PYTHON, real.url, ANN, cwd=tmp_path)
    assert done.stdout == "python\n\n[]\n", done.stderr


@pytest.mark.parametrize("command", ["serve", "images", "doctor"])
def test_what_needs_the_whole_package_says_so(alone, tmp_path, command):
    assert command in LOCAL
    done = alone.run(*MAIN, command, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"ale-sandbox {command}: it needs " in done.stderr
    assert "leaves out; for all of ale-jax, type in a clone of it: pip install ." in done.stderr
