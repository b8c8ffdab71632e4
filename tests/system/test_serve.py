"""--mode=serve: clients talk to the newest policy of a run, until Ctrl-C."""

import importlib
import os
import re
import signal
import subprocess
import sys

import anthropic
import jax
import openai
import pytest

from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.state import WholeState, init_state, make_optimizer
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.system.build_config import build_config
from ale_jax.system.workdir import Workdir
from tests.quick_compile import QUICK_COMPILE

MESSAGES = [{"role": "user", "content": "Read lemon.txt, then report."}]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run that has saved the weights of step 3."""
    path = tmp_path_factory.mktemp("runs") / "run"
    config = build_config(importlib.import_module("configs.smoke").get_config().to_dict())
    tokenizer = ChatTokenizer(train_bpe(MESSAGES * 10, config.tokenizer.vocab_size))
    policy = config.policy_shape(tokenizer.vocab_size)
    optimizer = make_optimizer(config.rl_optimizer, policy, config.lora)
    state = init_state(jax.random.key(0), policy, optimizer, make_mesh(config.mesh))
    with Workdir.claim(path, config) as workdir:
        tokenizer.save(path / "tokenizer")
        with Checkpoints(workdir.checkpoints, 1, lambda *_, **__: None) as checkpoints:
            checkpoints.save(3, WholeState(state), {})
    return path


@pytest.fixture
def server(workdir, pytestconfig):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "ale_jax.launch", "--config=configs/smoke.py"),
            *(f"--workdir={workdir}", "--mode=serve", "--port=0"),
        ],
        cwd=pytestconfig.rootpath,
        env=os.environ | {"XLA_FLAGS": QUICK_COMPILE, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def test_clients_of_both_apis_talk_to_the_newest_policy(server):
    said = server.stdout.readline()
    url, key = re.fullmatch(
        r"step 3 answers at (\S+) to clients with the key (\S+)\n", said
    ).groups()
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    asked = {"model": client.models.list().data[0].id, "messages": MESSAGES, "max_tokens": 8}
    replies = [client.chat.completions.create(**asked, seed=7, temperature=1) for _ in range(2)]
    first, again = (reply.choices[0].message.content for reply in replies)
    assert first == again and replies[0].usage.completion_tokens > 0
    other = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)
    assert other.messages.create(**asked).content[0].type == "text"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="guessed", max_retries=0).models.list()
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 0
