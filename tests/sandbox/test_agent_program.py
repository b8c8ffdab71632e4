"""The project's own agent in sandboxes without a network."""

import dataclasses
import os
import subprocess
import sys

import pytest

from ale_jax.sandbox import agent_program, bubblewrap
from ale_jax.sandbox.agent_program import HOME, PROGRAM, PYTHON
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.docker_runtime import DockerRuntime
from ale_jax.sandbox.runtime import pick_runtime
from tests.sandbox.conftest import SPEC

pytestmark = pytest.mark.heavy

WITH_AGENT = dataclasses.replace(SPEC, ale_agent=True)
# Of a sandbox, which has the python3 of the system.
PATH = "/usr/bin:/bin"
LOADED = f"""
import sys
sys.path.insert(0, "{HOME}/lib")
import ale_jax.agent.assistant.main
print(sorted({{"jax", "numpy", "rich", "ale_jax", "httpx"}} & sys.modules.keys()))
"""


@pytest.fixture(scope="module")
def runtime_with_agent():
    if reason := bubblewrap.probe(WITH_AGENT):
        pytest.skip(f"bubblewrap: {reason}")
    return pick_runtime("bubblewrap", WITH_AGENT)


@pytest.fixture(scope="module")
def agent_box(runtime_with_agent):
    with runtime_with_agent.start(WITH_AGENT, {}) as sandbox:
        yield sandbox


def test_it_starts_and_loads_only_what_an_agent_needs(agent_box):
    result = agent_box.exec([PROGRAM, "run", "--help"])
    assert result.exit_code == 0 and "work on a request" not in result.stderr, result
    assert "--base-url" in result.stdout
    loaded = agent_box.exec([PYTHON, "-I", "-S", "-c", LOADED])
    assert loaded.stdout == "['ale_jax', 'httpx']\n", loaded


def test_all_of_it_was_compiled_where_it_was_packed(agent_box):
    source = f"find {HOME}/lib/ale_jax -name '*.py' | wc -l"
    compiled = f"find {HOME}/lib/ale_jax -name '*.pyc' | wc -l"
    assert agent_box.run(source).output == agent_box.run(compiled).output != "0\n"


def test_nobody_in_the_sandbox_can_change_it(agent_box):
    for path in (PROGRAM, f"{HOME}/lib/ale_jax/files.py", f"{HOME}/lib/new.py"):
        assert agent_box.run(f"echo x >> {path}").exit_code != 0
    assert agent_box.run(f"rm {PROGRAM}").exit_code != 0
    # Not only by its modes, which are its owner's to change.
    options = agent_box.run(f"awk '$2 == \"{HOME}\" {{ print $4 }}' /proc/mounts").output
    assert options.startswith("ro,")


def test_a_sandbox_without_it_has_nothing_of_it(box):
    assert box.run(f"test -e {HOME}").exit_code != 0


def test_other_code_is_another_folder_and_the_one_in_use_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_program, "_directory", lambda: tmp_path)
    source = tmp_path / "source.py"
    source.write_text("x = 1")
    monkeypatch.setattr(agent_program, "_files", lambda: {"ale_jax/source.py": source})
    first = agent_program.ensure.__wrapped__()
    assert agent_program.ensure.__wrapped__() == first
    source.write_text("x = 2")
    second = agent_program.ensure.__wrapped__()
    assert (second / "lib/ale_jax/source.py").read_text() == "x = 2"
    assert (first / "lib/ale_jax/source.py").read_text() == "x = 1"  # this process holds it
    assert os.access(second / "ale-agent", os.X_OK)


def test_a_host_without_the_python_that_packed_it_is_refused(runtime_with_agent, monkeypatch):
    monkeypatch.setattr(agent_program, "PYTHON", "python3.99")
    assert "no python3.99 in /usr" in bubblewrap.probe(WITH_AGENT)
    assert bubblewrap.probe(SPEC) is None


@pytest.mark.usefixtures("runtime_with_agent")
def test_for_an_image_it_is_written_into_a_folder(tmp_path):
    line = [sys.executable, "-m", "ale_jax.sandbox.agent_program", str(tmp_path / "ale-agent")]
    subprocess.run(line, check=True)
    started = subprocess.run([tmp_path / "ale-agent" / "ale-agent", "--help"], env={"PATH": PATH})
    assert started.returncode == 0


def test_where_there_are_images_it_belongs_in_the_image(runtime_with_agent):
    with pytest.raises(SandboxStartError, match="put the agent into the image"):
        DockerRuntime(WITH_AGENT)
    on_disk = dataclasses.replace(WITH_AGENT, disk_mb=64)
    with pytest.raises(SandboxStartError, match="put the agent into the image"):
        runtime_with_agent.start(on_disk, {})
