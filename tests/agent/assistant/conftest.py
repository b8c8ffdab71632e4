import pytest
from starlette.responses import PlainTextResponse

from ale_jax.gateway.server import served
from tests.agent.assistant.mcp_example import make


@pytest.fixture
def folder(tmp_path):
    """An agent's working directory; beside it there is room for what is not the agent's."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def mcp_url():
    """An MCP server over HTTP, for those who have a key."""
    app = make().streamable_http_app()

    async def guarded(scope, receive, send):
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and headers.get(b"authorization") != b"Bearer key":
            await PlainTextResponse("no key", 401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    with served(guarded) as url:
        yield url.removesuffix("/v1") + "/mcp"
