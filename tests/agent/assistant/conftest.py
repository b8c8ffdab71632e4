import pytest


@pytest.fixture
def folder(tmp_path):
    """An agent's working directory; beside it there is room for what is not the agent's."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"
