"""A service as the runtime of a run: its sandboxes do what local ones do, and end with who leased
them."""

import contextlib
import dataclasses
import signal
import subprocess
import sys
import time

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxStartError, SnapshotGone, load, save
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.pool.api import Cause, PoolFull, QuotaExceeded, SandboxGone, State
from ale_jax.sandbox.pool.events import steady_clock
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.sdk import service_runtime
from ale_jax.sandbox.sdk.login import ServiceLogin
from ale_jax.sandbox.sdk.service_runtime import LEASE_S, ServiceRuntime
from ale_jax.sandbox.service.access import ServiceSettings, Tenant, Tokens
from ale_jax.sandbox.service.tenants import Quota
from ale_jax.sandbox.spec import WORK
from ale_jax.sandbox.verify.verifier import Verifier, VerifierFailed, judge, verify
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB, SMALL, TOKENS, over_memory, served

LOGIN = ServiceLogin(ANN)
ROOMY = dataclasses.replace(SPEC, memory_mb=128, writable=("/tests", "/logs/verifier"))


@pytest.fixture
def leased(real):
    with ServiceRuntime(real.url, LOGIN).start(SPEC, {"role": "test"}) as box:
        yield box


def test_its_sandboxes_are_used_as_those_of_this_machine_are(leased):
    leased.write({"a": b"one\n"})
    assert leased.run("cat a; cd /tmp; X=5; exit_code() { return 3; }; exit_code").exit_code == 3
    assert leased.run("echo $PWD $X").output == "/tmp 5\n"
    assert leased.run("a\0b").exit_code == 2 and leased.run("echo \ud800").output == "?\n"
    assert leased.exec("cat; echo $Y >&2", stdin=b"in", env={"Y": "1"}).stderr == "1\n"
    assert leased.read("a") == b"one\n" and leased.alive()
    with pytest.raises(FileNotFoundError):
        leased.read("b")
    leased.begin("read x; echo got $x")
    leased.send("it\n")
    assert leased.expect().output.endswith("got it\n")
    leased.reset()
    assert leased.run("ls; echo $X").output == "\n"


def test_a_state_is_kept_at_the_service_as_long_as_there_is_room(leased):
    leased.write({"a": b"one\n"})
    saved = save(leased)
    leased.run("echo two > a; echo > b")
    assert load(leased, saved) and leased.run("cat *").output == "one\n"
    lost = dataclasses.replace(saved, files=b"0" * 64)
    with pytest.raises(SnapshotGone, match="no snapshot"):
        leased.restore(lost.files)
    assert load(leased, lost) is False


def test_a_verifier_judges_and_has_its_control(real):
    seven = Verifier({"test.sh": f"test $(cat {WORK}/n) = 7".encode()}, ["bash", "/tests/test.sh"])
    killed = f"test -e {WORK}/n && exec kill -9 $$; exit 1".encode()
    loops = Verifier({"test.sh": killed}, seven.command)
    with ServiceRuntime(real.url, LOGIN).start(ROOMY, {}) as box:
        box.run("echo 7 > n; sleep 100 &")
        assert verify(box, seven).reward == 1.0
        assert box.run("ls /tests").output == "" and box.read("n") == b"7\n"
        judged = judge(box, loops, restore=lambda: None)
        assert judged.reward == 0.0 and "137 is not a verdict" in judged.no_verdict
        assert box.run("ls; pgrep sleep").output == "", "the control is another machine"
        box.write({"n": b"7"})
        with pytest.raises(VerifierFailed, match="none of the untouched task"):
            judge(box, loops, restore=lambda: box.write({"n": b"7"}))
        with pytest.raises(ValueError, match="keeps the network of its spec, 'none'"):
            verify(box, dataclasses.replace(seven, network=EgressPolicy("open")))


LEAVES = """
import sys
from ale_jax.sandbox.sdk.login import ServiceLogin
from ale_jax.sandbox.sdk.service_runtime import ServiceRuntime
from ale_jax.sandbox.spec import SandboxSpec
runtime = ServiceRuntime(sys.argv[1], ServiceLogin(sys.argv[2]))
box = runtime.start(SandboxSpec(memory_mb=96, files_mb=8), {})
print(box.later.id, flush=True)
sys.stdin.read()
"""


class Ahead:
    """A clock that a test puts forward."""

    def __init__(self):
        self.seconds, self._clock = 0.0, steady_clock()

    def __call__(self):
        return self._clock() + self.seconds


@contextlib.contextmanager
def timed(runtime):
    """A service, and the clock of its pool."""
    clock, made = Ahead(), []

    @contextlib.asynccontextmanager
    async def opened():
        async with NodePool(runtime, PoolOptions(slots=4), clock=clock) as pool:
            made.append(pool)
            yield

    settings = ServiceSettings(port=0)
    with served(lambda: made[0], opened, settings, Tokens(TOKENS)) as service:
        yield service, clock


@pytest.mark.heavy
def test_what_a_killed_process_has_left_ends_with_its_lease(runtime):
    with timed(runtime) as (service, clock), service.client() as client:
        line = [sys.executable, "-c", LEAVES, service.url, ANN]
        with subprocess.Popen(line, stdin=-1, stdout=-1, text=True) as process:
            box = client.attach(process.stdout.readline().strip())
            process.send_signal(signal.SIGKILL)
        assert box.alive(), "it may only be unreachable"
        clock.seconds = LEASE_S
        while (status := box.status()).cause is None:
            pass
        assert status.cause is Cause.DEADLINE


def test_who_lives_keeps_what_it_has_and_hears_of_what_is_gone(runtime, caplog):
    with timed(runtime) as (service, _), service.client() as client:
        with ServiceRuntime(service.url, LOGIN, lease_seconds=0.8).start(SPEC, {}) as box:
            other = client.attach(box.later.id)
            began = other.status().started_at
            while other.status().used_at < began + 2.0:  # by nothing but renewals
                pass
            assert other.status().state is State.RUNNING
            other.close()
            with pytest.raises(SandboxGone, match="stopped"):
                box.run("true")
            assert not box.alive()
            while not box.later._keeping.done():  # until the next renewal
                time.sleep(0.01)
            assert box.later._keeping.exception() is None
        assert not caplog.records, "to close what is gone already is no trouble"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PoolFull("all 4 slots are taken"), "started no sandbox: all 4 slots are taken"),
        (QuotaExceeded("cpus 9 is more"), "started no sandbox: cpus 9 is more"),
        (SandboxStartError("no image 'x'"), "^no image 'x'"),
        (ValueError("sandbox has no field 'y'"), "started no sandbox: sandbox has no field 'y'"),
    ],
)
def test_whatever_keeps_a_sandbox_from_starting_is_a_failed_start(memory, error, told):
    memory.pool.start_error = error
    with pytest.raises(SandboxStartError, match=told):
        ServiceRuntime(memory.url, LOGIN).start(SPEC, {})


def test_a_wrong_token_and_a_service_that_is_not_there_are_told_in_a_line(memory):
    for token in ("wrong-token-of-its-length", None):
        told = "refuses: (wrong|no) token; set ALE_SANDBOX_TOKEN to a token that it accepts"
        with pytest.raises(SandboxStartError, match=told):
            ServiceRuntime(memory.url, ServiceLogin(token)).start(SPEC, {})
    with pytest.raises(SandboxStartError, match="no answer from http://localhost:9/"):
        ServiceRuntime("http://localhost:9", LOGIN).start(SPEC, {})


def test_a_token_goes_to_another_machine_in_clear_only_if_the_environment_says_so(monkeypatch):
    monkeypatch.setenv("ALE_SANDBOX_TOKEN", ANN)
    with pytest.raises(ValueError, match=r"without encryption.*ALE_SANDBOX_IN_CLEAR=1"):
        ServiceRuntime("http://sandboxes:8700", ServiceLogin.of_environment())
    monkeypatch.setenv("ALE_SANDBOX_IN_CLEAR", "1")
    ServiceRuntime("http://sandboxes:8700", ServiceLogin.of_environment())


def test_a_token_that_is_withdrawn_is_trouble_of_the_sandbox_and_of_no_file(memory):
    memory.pool.answers["read"] = PermissionError("never")
    with ServiceRuntime(memory.url, LOGIN).start(SPEC, {}) as box:
        box.later._client.http.headers["Authorization"] = f"Bearer {BOB}"
        with pytest.raises(SandboxGone):  # to another tenant, it never existed
            box.read("x")
        box.later._client.http.headers["Authorization"] = "Bearer withdrawn"
        for call in (lambda: box.read("x"), lambda: box.write({"x": b""}), box.reset):
            with pytest.raises(SandboxError, match="wrong token; set ALE_SANDBOX_TOKEN"):
                call()
        assert not box.alive()


def test_a_run_that_could_never_have_its_sandboxes_is_refused(real):
    runtime = ServiceRuntime(real.url, LOGIN)
    runtime.check(SPEC, 8, calls=1)
    with pytest.raises(ValueError, match=r"needs 9 sandboxes at a time, and http.* has 8 slots"):
        runtime.check(SPEC, 9, calls=1)
    with pytest.raises(ValueError, match=r"calls: this run needs 520 .* may have 512: lower roll"):
        runtime.check(SPEC, 8, calls=65)
    few = {ANN: Tenant("ann", quota=Quota(sandboxes=2, memory_mb=1000)), BOB: Tenant("bob")}
    with over_memory(dataclasses.replace(SMALL, body_seconds=5.0), few) as service:
        runtime = ServiceRuntime(service.url, LOGIN)
        runtime.check(SPEC, 2, calls=1)
        with pytest.raises(ValueError, match=r"sandboxes: this run needs 3 at a time, .* have 2"):
            runtime.check(SPEC, 3, calls=1)
        assert [each.cause for each in service.pool.members.values()] == [Cause.STOPPED] * 2


def test_a_service_that_has_gone_holds_nobody_up_at_the_end(monkeypatch, caplog):
    monkeypatch.setattr(service_runtime, "CLOSE_S", 0.1)
    with over_memory() as service:
        box = ServiceRuntime(service.url, LOGIN).start(SPEC, {})
    box.close()
    assert "is left to the end of its lease: TimeoutError" in caplog.text
