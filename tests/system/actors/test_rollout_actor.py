"""What the process of a rollout worker loads."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.heavy

HEAVY = {"jax", "jaxlib", "flax", "optax", "transformers", "tokenizers", "ml_collections"}


def test_the_worker_module_imports_nothing_heavy():
    module = "ale_jax.system.actors.rollout_actor"
    code = f"import sys, {module}; print(*{{m.split('.')[0] for m in sys.modules}})"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(output.stdout.split())
    assert "ale_jax" in loaded
    assert not loaded & HEAVY
