"""The service on a real socket: over a pool in memory, or over real sandboxes."""

import asyncio
import contextlib
import dataclasses

import httpx
import pytest

from ale_jax.sandbox import blocking
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.sdk.client import SandboxClient
from ale_jax.sandbox.service import gem, rock
from ale_jax.sandbox.service.access import ServiceSettings, Tenant, Tokens
from ale_jax.sandbox.service.app import create_app
from ale_jax.sandbox.service.server import serve_in_thread
from ale_jax.sandbox.service.tenants import Quota
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.memory_pool import MemoryPool

ANN, BOB, ROOT = "ann-" + "a" * 20, "bob-" + "b" * 20, "root-" + "r" * 20
TOKENS = {ANN: Tenant("ann"), BOB: Tenant("bob"), ROOT: Tenant("root", admin=True)}
FEW_CALLS = {ANN: Tenant("ann", quota=Quota(calls=3))}
FREE_PORT = ServiceSettings(port=0)
SMALL = ServiceSettings(port=0, json_bytes=20_000, upload_bytes=200_000, body_seconds=0.3)


@dataclasses.dataclass
class Served:
    url: str
    pool: object

    def http(self, token=ANN, **options):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=False, **options)

    def client(self, token=ANN):
        return SandboxClient(self.url, token)


@pytest.fixture(autouse=True)
def every_lease_is_given_up():
    """One that is left behind would be renewed, and warn, in the middle of another test."""
    yield
    tasks = asyncio.all_tasks(blocking._loop())
    assert not [task for task in tasks if task.get_coro().__name__ == "_keep"]


@contextlib.contextmanager
def served(pool, opened, settings, tokens, fronts=()):
    @contextlib.asynccontextmanager
    async def open_app():
        async with opened():
            yield create_app(pool(), settings, tokens, fronts)

    with serve_in_thread(open_app, settings) as url:
        yield Served(url, pool())


@contextlib.contextmanager
def over_memory(settings=SMALL, tokens=TOKENS, fronts=()):
    pool = MemoryPool()
    with served(lambda: pool, pool.opened, settings, Tokens(tokens), fronts) as service:
        yield service


@contextlib.contextmanager
def over(runtime, fronts=(), settings=FREE_PORT):
    made = []

    @contextlib.asynccontextmanager
    async def opened():
        async with NodePool(runtime, PoolOptions(slots=8)) as pool:
            made.append(pool)
            yield

    with served(lambda: made[0], opened, settings, Tokens(TOKENS), fronts) as service:
        yield service


@pytest.fixture
def memory():
    with over_memory() as service:
        yield service


@pytest.fixture
def rocky():
    with over_memory(fronts=[rock.front()]) as service:
        yield service


@pytest.fixture
def http(memory):
    with memory.http() as client:
        yield client


@pytest.fixture(scope="session")
def real(runtime):
    fronts = [rock.front(), gem.front(worlds(), SPEC)]
    with over(runtime, fronts) as service:
        yield service


@pytest.fixture(scope="session")
def shared_remote(real):
    with real.client() as client, client.start(SPEC) as box:
        yield box


@pytest.fixture
def remote(shared_remote):
    shared_remote.reset()
    return shared_remote


def worlds():
    """As launch code would make them."""
    from ale_jax.envs.shell.families import FAMILIES
    from ale_jax.worlds.gym import AsGem
    from tests.played_worlds import family_of

    def factory(family):
        return lambda sandbox: AsGem(family_of(family), sandbox)

    return {f"shell:{family}": factory(family) for family in FAMILIES}
