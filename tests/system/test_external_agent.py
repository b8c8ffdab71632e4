"""Agents that are programs of their own, in real sandboxes, before the real gateway."""

import contextlib
import dataclasses
import secrets
import select
import time
from pathlib import Path

import pytest

from ale_jax.agent.external import PolicyAccess
from ale_jax.agent.tools import SYSTEM_PROMPT
from ale_jax.config.agent import AgentLimits, ExternalAgent
from ale_jax.config.engine import Sampling
from ale_jax.envs.shell.families import FAMILIES
from ale_jax.examples.shell_agent import Shell
from ale_jax.gateway.app import make_app
from ale_jax.gateway.server import served
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.sandbox.api import SandboxLost
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.sdk.login import ServiceLogin
from ale_jax.sandbox.sdk.service_runtime import ServiceRuntime
from ale_jax.status import Status
from tests.played_worlds import OurWorlds
from tests.sandbox.service.conftest import ANN, over
from tests.system.conftest import SPEC
from tests.system.oracle_ledger import OracleLedger
from tests.system.untimed import rl_lines
from tests.system.whole_runs import LEARNING, run_here

pytestmark = pytest.mark.heavy

EXAMPLES = Path(__file__).parents[2] / "examples"


def program(source):
    return ("python3", "-c", source, SYSTEM_PROMPT, "{instruction}")


AGENT = ExternalAgent(command=program((EXAMPLES / "shell_agent.py").read_text()))


def key_of(family, seed=3):
    return EpisodeKey("train", 0, 0, Task(family, seed, "train"))


class Stage:
    """Plays episodes in the sandboxes that `start` starts. ledger: the policy's side."""

    def __init__(self, start, ledger, url):
        self.runner = EpisodeRunner(start, OurWorlds(), AgentLimits())
        self.ledger, self._url = ledger, url

    def play(self, agent, key):
        """The episode; the branches of its calls."""
        name = secrets.token_urlsafe()
        self.ledger.open(name, key, Sampling(), (), 0)
        played = self.runner.play_external(key, agent, PolicyAccess(self._url, name))
        return played.episode, self.ledger.episodes.end(name, "all")


@contextlib.contextmanager
def staged(start):
    ledger = OracleLedger()
    with served(make_app(ledger.episodes, "oracle")) as url:
        stage = Stage(start, ledger, url)
        with contextlib.closing(stage.runner):
            yield stage


@pytest.fixture
def stage(each_runtime):
    with staged(lambda spec: pick_runtime(each_runtime, SPEC).start(SPEC, {})) as stage:
        yield stage


def test_an_agents_program_solves_what_the_policy_can(stage):
    for family in FAMILIES:
        episode, branches = stage.play(AGENT, key_of(family))
        assert (episode.status, episode.reward) == (Status.FINISHED, 1.0), (family, episode)
        (branch,) = branches
        assert branch.calls[-1].reply.content.startswith("<tool_call>")
        assert [message.role for message in branch.calls[0].messages] == ["system", "user"]


def test_it_does_so_too_in_a_sandbox_of_a_service_which_cannot_reach_the_policy(runtime_name):
    with over(pick_runtime(runtime_name, SPEC)) as service:
        with staged(
            lambda spec: ServiceRuntime(service.url, ServiceLogin(ANN)).start(SPEC, {})
        ) as stage:
            for _ in range(2):  # in the same sandbox
                episode, branches = stage.play(AGENT, key_of("count"))
                assert (episode.status, episode.reward) == (Status.FINISHED, 1.0), episode
                assert len(branches) == 1


def test_it_does_so_too_in_a_sandbox_with_a_network(runtime_name):
    spec = dataclasses.replace(SPEC, network=EgressPolicy("allowlist", ("example.invalid",)))
    with staged(lambda _: pick_runtime(runtime_name, spec).start(spec, {})) as stage:
        episode, _ = stage.play(AGENT, key_of("count"))
    assert (episode.status, episode.reward) == (Status.FINISHED, 1.0), episode


class Broken:
    """A sandbox of a service whose relay breaks while the agent runs."""

    def __init__(self, sandbox):
        self._sandbox = sandbox

    def __getattr__(self, name):
        return getattr(self._sandbox, name)

    @contextlib.contextmanager
    def relay(self, *address):
        yield
        raise SandboxLost("the connection to the service broke")


def test_an_agent_that_lost_its_policy_is_not_judged(runtime_name):
    with staged(lambda spec: Broken(pick_runtime(runtime_name, SPEC).start(SPEC, {}))) as stage:
        episode, _ = stage.play(AGENT, key_of("count"))
    assert (episode.status, episode.reward) == (Status.SANDBOX_LOST, None)


def test_a_program_that_is_not_there_is_no_failure_of_the_policy(stage):
    missing = dataclasses.replace(AGENT, command=("no-such-agent",))
    episode, branches = stage.play(missing, key_of("count"))
    assert (episode.status, episode.reward, branches) == (Status.AGENT_FAILED, None, [])
    assert "no-such-agent" in episode.detail


def test_what_writes_in_the_background_does_not_hide_how_a_command_ended(tmp_path, monkeypatch):
    shell, go, done = Shell(), tmp_path / "go", tmp_path / "done"
    read = shell._read_until

    def read_both(mark):
        select.select([shell._bash.stdout], [], [])  # the command has ended
        go.touch()
        while not done.exists():
            time.sleep(0.01)
        return read(mark)

    monkeypatch.setattr(shell, "_read_until", read_both)
    late = f"until [ -e {go} ]; do sleep 0.01; done; echo late; touch {done}"
    assert shell.run(f"({late}) & (exit 3)") == "(no output)\n[exit 3]"


def test_an_agent_that_breaks_off_is_judged_by_what_it_has_done(stage):
    fails = dataclasses.replace(AGENT, command=("sh", "-c", "echo lost my way >&2; exit 3"))
    episode, _ = stage.play(fails, key_of("count"))
    assert (episode.status, episode.reward) == (Status.BROKE_OFF, 0.0)
    assert episode.detail == "exit 3: lost my way"
    endless = dataclasses.replace(AGENT, command=("sleep", "60"), seconds=0.5)
    episode, _ = stage.play(endless, key_of("count"))
    assert (episode.status, episode.reward) == (Status.TIME_LIMIT, 0.0)
    assert episode.detail == "it was killed at its time limit"


def test_an_agent_finds_the_policy_where_official_clients_look(stage):
    show = 'test "$OPENAI_BASE_URL" = {url} && test "$ANTHROPIC_API_KEY" = "$KEY" && echo "$NAME"'
    env = (("KEY", "{token}"), ("NAME", "{not a name}"))
    agent = ExternalAgent(command=("bash", "-c", f"{show} >&2; exit 9"), env=env, port=9001)
    episode, _ = stage.play(agent, key_of("count"))
    assert episode.detail == "exit 9: {not a name}"


def test_a_run_is_the_same_whether_our_loop_plays_or_a_program(unbroken, runtime_name, tmp_path):
    """An untrained policy writes what no call can be read in; both answer that in the same way."""
    by_loop, _ = unbroken
    source = (EXAMPLES / "shell_agent.py").read_text()
    source = source.replace("the reply must end with one <tool_call>", "malformed JSON")
    asks = f"--config.external_agent.command={program(source)!r}"
    run_here(tmp_path, runtime_name, *LEARNING, asks)
    for ours, theirs in zip(rl_lines(by_loop), rl_lines(tmp_path), strict=True):
        assert theirs["grad_norm"] > 0
        for figure in ("tokens_crc32", "policy_tokens", "turns"):
            assert ours[figure] == theirs[figure], figure
        for figure in ("loss", "grad_norm"):  # that process has another number of devices
            assert ours[figure] == pytest.approx(theirs[figure], rel=1e-5), figure


def test_calls_that_an_agent_requires_are_trained_on(runtime_name, tmp_path):
    """An untrained policy can write nothing but calls, and learns from what they lead to."""
    source = (EXAMPLES / "tool_agent.py").read_text()
    asks = program(source.replace('"maxLength": 200', '"maxLength": 3'))
    overrides = {
        "external_agent.command": asks,
        "rl.steps": 2,
        "algo.old_logp": "generating",
        "rollout.max_reply_tokens": 64,
        "engine.max_sequence_length": 640,
        "engine.pages": 8 * 640 // 16,
    }
    options = [f"--config.{name}={value}" for name, value in overrides.items()]
    run_here(tmp_path, runtime_name, *LEARNING, *options)
    for line in rl_lines(tmp_path):
        assert 1 <= line["turns"] <= 2 and line["trajectories_with_gradient"] == 6
        assert line["grad_norm"] > 0.01 and line["entropy"] < 1.0, "log 320 if it were free"
        # Of the learner's pi_old and the engine's mu, both over the tokens that were allowed.
        assert line["old_rollout_logp_diff"] < 1e-4


@pytest.mark.parametrize(("field", "value"), [("port", 80), ("port", 70000), ("seconds", 0.0)])
def test_what_cannot_be_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(AGENT, **{field: value})
