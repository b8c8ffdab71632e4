"""A person is told what jax compiles, and how long it took."""

import io
import re
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console

from ale_jax.monitor.progress import Progress
from ale_jax.system.compilation import PROGRAMS, Compilations


def test_known_programs_are_announced_and_all_are_added_up():
    def add_gradient(x):
        return jnp.sin(x) * 2.0

    stream = io.StringIO()
    progress = Progress(Console(file=stream), plain=True)
    with Compilations(progress) as compilations:
        jax.jit(add_gradient).lower(jnp.ones(3)).compile()
        assert compilations.take_seconds() > 0
        assert compilations.take_seconds() == 0
        jax.jit(lambda x: x - 3.0).lower(jnp.ones(3)).compile()  # too small to speak of
        assert compilations.take_seconds() > 0
    said, done = stream.getvalue().splitlines()
    assert said.endswith("compiling the training step: gradient of a microbatch ...")
    assert "compiled the training step: gradient of a microbatch in " in done
    jax.jit(add_gradient).lower(jnp.ones(4)).compile()
    assert compilations.take_seconds() == 0  # closed: it listens no longer


def test_every_known_program_exists():
    package = Path(__file__).parents[2] / "ale_jax"
    code = "".join(path.read_text() for path in package.rglob("*.py"))
    # JAX's names of programs are without what their names begin with.
    assert [name for name in PROGRAMS if not re.search(rf"def _?{name}\(", code)] == []
