import jax
import pytest


@pytest.fixture(autouse=True)
def strict_promotion():
    """An array that broadcasts or changes type by accident is a bug in a loss."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield
