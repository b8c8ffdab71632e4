"""`ale-agent` is trained: in sandboxes that reach nothing but the policy, by a real engine."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ale_jax.agent.assistant.main import main
from ale_jax.agent.assistant.sessions import Sessions
from ale_jax.agent.external import PolicyAccess
from ale_jax.agent.tools import SYSTEM_PROMPT
from ale_jax.config.agent import AgentLimits
from ale_jax.config.engine import Sampling
from ale_jax.config.learn import Shape
from ale_jax.config.model import MIN_VOCAB
from ale_jax.configs import quickstart_ale_agent
from ale_jax.configs.quickstart_ale_agent import SETTINGS
from ale_jax.data.packing import pack
from ale_jax.engine.engine import Engine
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.ledger import Ledger
from ale_jax.gateway.server import served
from ale_jax.learn.step import forward
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.sandbox import bubblewrap
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.status import Status
from ale_jax.system.agent_demonstrations import played_by
from ale_jax.system.checks import checked_config
from ale_jax.system.demonstrations import conversation_of, make_tokenizer, tokenize
from ale_jax.system.reply_limits import reply_limits
from tests.agent.assistant.scripted import endpoint_that, in_turn
from tests.engine.shapes import engine_shape
from tests.model.shapes import DENSE, changed
from tests.played_worlds import OurWorlds, family_of
from tests.system.untimed import rl_lines
from tests.system.whole_runs import SYNCHRONOUS, run_here

pytestmark = pytest.mark.heavy

CONFIG = checked_config(quickstart_ale_agent.get_config().to_dict())
AGENT, SPEC = CONFIG.external_agent, CONFIG.sandbox
TASK = Task("count", 3, "train")
KEY = EpisodeKey("train", 0, 0, TASK)
TOKENS = CONFIG.engine.max_sequence_length


@pytest.fixture(scope="module")
def runtime():
    if reason := bubblewrap.probe(SPEC):
        pytest.skip(f"bubblewrap: {reason}")
    return pick_runtime("bubblewrap", SPEC)


@pytest.fixture(scope="module")
def transcript(runtime):
    return demonstrated(runtime, AGENT)


def demonstrated(runtime, agent, task=TASK):
    untrained = ChatTokenizer(train_bpe((), MIN_VOCAB))
    with played_by(agent, OurWorlds(), untrained) as play, runtime.start(SPEC, {}) as box:
        return play(box, task)


def test_a_demonstration_is_what_the_agent_tells_its_policy(transcript):
    system, user, *rest = transcript.messages
    assert (system.role, system.content, user.role) == ("system", SYSTEM_PROMPT, "user")
    assert [message.role for message in rest] == ["assistant", "tool"] * (len(rest) // 2) + [
        "assistant"
    ]
    said = tuple(message.content for message in rest[::2])
    assert said == family_of(TASK.family).oracle(TASK) and len(said) > 1
    assert [tool["function"]["name"] for tool in transcript.tools] == ["bash", "finish"]


def test_an_agent_that_does_not_do_as_the_oracle_says_demonstrates_nothing(runtime):
    ((name, settings),) = AGENT.env
    without_shell = settings.replace("[features]", "[features]\nbash = false")
    helpless = dataclasses.replace(AGENT, env=((name, without_shell),))
    with pytest.raises(RuntimeError, match=r"the agent, with the oracle of .* ended in"):
        demonstrated(runtime, helpless, Task("sort", 3, "train"))


def test_its_settings_serve_as_they_were_trained_with(transcript, tmp_path, monkeypatch):
    with endpoint_that(in_turn("Done.")) as endpoint:
        monkeypatch.setenv("OPENAI_API_KEY", endpoint.token)
        options = ("--config", str(SETTINGS), "--base-url", endpoint.url, "--output=text")
        assert main(["run", "Go.", *options, f"--cwd={tmp_path}", f"--state={tmp_path}/state"]) == 0
    sessions = Sessions(tmp_path / "state" / "sessions")
    started, *_ = sessions.events(sessions.newest())
    assert started.system_prompt == transcript.messages[0].content
    assert started.tools == transcript.tools


def learned(sample, shape):
    """The weights of a policy that has learned one sample by heart."""
    batch, _ = pack([sample], Shape(1, TOKENS, 8))
    arrays = {name: value for name, value in vars(batch).items() if value is not None}
    optimizer = optax.adam(1e-2)
    params = init_params(jax.random.key(0), shape)

    def loss_of(params):
        logp_BT = forward(params, arrays, shape)[0].logp_BT
        return -jnp.where(arrays["chunk_BT"] >= 0, logp_BT, 0.0).sum()

    @jax.jit
    def update(params, state):
        loss, gradient = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, loss

    state = optimizer.init(params)
    for _ in range(200):
        params, state, loss = update(params, state)
        if loss < 0.05:
            return params
    raise AssertionError(f"not learned: {loss}")


def test_its_calls_become_the_chunks_that_were_demonstrated(runtime, transcript, tmp_path):
    tokenizer = make_tokenizer(
        None, CONFIG.tokenizer.vocab_size, [conversation_of(transcript)] * 20, tmp_path
    )
    sample = tokenize(transcript, tokenizer)
    shape = changed(DENSE, vocab_size=tokenizer.vocab_size, max_positions=TOKENS)
    sizes = engine_shape(max_sequences=1, max_sequence_length=TOKENS, prefill_tokens=(16, 64))
    with contextlib.closing(
        Engine(shape, sizes, tokenizer.stop_ids, learned(sample, shape))
    ) as engine:
        trajectory = played(engine, tokenizer, runtime)
    assert (trajectory.episode.status, trajectory.episode.reward) == (Status.FINISHED, 1.0)
    assert not trajectory.side_branches and trajectory.turns[-1].reward == 1.0
    for turn, shown in zip(trajectory.turns, sample.turns, strict=True):
        np.testing.assert_array_equal(turn.prompt_ids, shown.prompt_ids)
        np.testing.assert_array_equal(turn.action_ids, shown.action_ids)


def played(engine, tokenizer, runtime):
    ledger = Ledger(engine, tokenizer, 0, reply_limits(CONFIG))
    start = lambda spec: runtime.start(SPEC, {})  # noqa: E731
    runner = EpisodeRunner(start, OurWorlds(), AgentLimits())
    with served(make_app(ledger.episodes, "policy")) as url, contextlib.closing(runner):
        ledger.open("secret", KEY, Sampling(temperature=0.0))
        result = runner.play_external(KEY, AGENT, PolicyAccess(url, "secret"))
        return ledger.close("secret", result.episode)


def test_a_run_learns_from_its_episodes(runtime, tmp_path):
    small = ["--config.warm_start.transcripts_per_family=2", "--config.agent.turns=3"]
    long = ["--config.engine.max_sequence_length=1024", "--config.engine.pages=512"]
    punished = ["--config.algo.advantage.mean=none", "--config.algo.advantage.failure_reward=-1.0"]
    plays = [
        f"--config.external_agent.command={AGENT.command!r}",
        f"--config.external_agent.env={AGENT.env!r}",
        "--config.external_agent.demonstrates=True",
        "--config.sandbox.ale_agent=True",
        "--config.sandbox.memory_mb=512",
        "--config.learn.pack_length=1024",
    ]
    short = [*SYNCHRONOUS, "--config.rl.steps=2"]
    run_here(tmp_path / "run", "bubblewrap", *short, *small, *long, *punished, *plays)
    lines = rl_lines(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2]
    # An untrained policy calls no tool, which is how this agent ends.
    assert all(line["turns"] == 1 and line["grad_norm"] > 0 for line in lines)
