"""The benchmark of pods: what it adds to what the compiler says."""

import importlib
from itertools import takewhile

import pytest

from ale_jax.system.checks import checked_config
from ale_jax.system.plan import make_plan
from benchmarks.pods import CONFIGS, HELD, main
from tests.rows import each_row

pytestmark = pytest.mark.slow


@each_row("name", CONFIGS)
def test_all_that_the_plan_holds_beside_the_gradient_is_counted(name):
    config = checked_config(
        importlib.import_module(f"ale_jax.configs.{name}").get_config().to_dict()
    )
    needs = [need.what for need in make_plan(config).needs]
    # The plan goes on with what is more: to compute a step, or to publish it.
    held = list(takewhile(lambda what: not what.startswith(("gradients", "weights before")), needs))
    assert needs != held and held[0] == "weights, float32"  # an argument of the gradient's program
    assert [what for what in held[1:] if not what.startswith(HELD)] == []


def test_a_compiler_that_is_not_there_is_named_with_where_it_comes_from(capsys, tmp_path):
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "libtpu.so")])
    assert "libtpu.so: pip download --no-deps libtpu" in capsys.readouterr().err
