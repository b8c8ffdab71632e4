"""`ale-jax serve`: clients talk to the newest policy of a run, until Ctrl-C."""

import contextlib
import dataclasses
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import jax
import openai
import pytest

from ale_jax.config.model import LoraShape
from ale_jax.config.serve import ServeConfig
from ale_jax.engine.engine import Engine
from ale_jax.errors import RolloutsFailed
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.state import WholeState, init_state, make_optimizer
from ale_jax.model.lora import new_adapters, trained, with_trained
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.export import export
from ale_jax.model.weights.peft import save_peft
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config
from ale_jax.system.serve import serving
from ale_jax.system.served_adapters import read_served
from ale_jax.system.workdir import Workdir
from tests.quick_compile import QUICK_COMPILE
from tests.system.whole_runs import one_device

pytestmark = pytest.mark.heavy

MESSAGES = [{"role": "user", "content": "Read lemon.txt, then report."}]


@pytest.fixture(scope="module")
def config():
    return checked_config(importlib.import_module("ale_jax.configs.smoke").get_config().to_dict())


@pytest.fixture(scope="module")
def tokenizer(config):
    return ChatTokenizer(train_bpe(MESSAGES * 10, config.tokenizer.vocab_size))


@pytest.fixture(scope="module")
def state(config, tokenizer):
    policy = policy_shape(config, tokenizer.vocab_size)
    optimizer = make_optimizer(config.rl_optimizer, policy, config.lora)
    return init_state(jax.random.key(0), policy, optimizer, make_mesh(config.mesh))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, config, tokenizer, state):
    """A run that has saved the weights of step 3."""
    path = tmp_path_factory.mktemp("runs") / "run"
    with Workdir.claim(path, config) as workdir:
        tokenizer.save(path / "tokenizer")
        with Checkpoints(workdir.checkpoints, 1, lambda *_, **__: None) as checkpoints:
            checkpoints.save(3, WholeState(state), {})
    return path


@pytest.fixture
def serve(pytestconfig):
    """Starts a server with these flags; returns it, and a client that has read its address from
    what it printed."""
    started = []

    def call(*flags, called):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ale_jax.launch", "serve"),
                *("--config=configs/smoke.py", "--port=0", *flags),
            ],
            cwd=pytestconfig.rootpath,
            env=os.environ | {"XLA_FLAGS": QUICK_COMPILE, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        said, known = process.stdout.readline(), re.escape(called)
        url, key = re.fullmatch(
            rf"{known} answers at (\S+) to clients with the key (\S+)\n", said
        ).groups()
        return process, openai.OpenAI(base_url=url, api_key=key, max_retries=0)

    yield call
    for process in started:
        process.kill()
        process.wait()


@contextlib.contextmanager
def client_of(config, path, called):
    """A client of a server in this process."""
    with one_device(), serving(config, path, "127.0.0.1", 0) as at:
        assert at.policy == called
        yield openai.OpenAI(base_url=at.url, api_key=at.key, max_retries=0)


def test_clients_of_both_apis_talk_to_the_newest_policy(serve, workdir):
    server, client = serve(f"--workdir={workdir}", called="step 3")
    asked = {"model": client.models.list().data[0].id, "messages": MESSAGES, "max_tokens": 8}
    replies = [client.chat.completions.create(**asked, seed=7, temperature=1) for _ in range(2)]
    first, again = (reply.choices[0].message.content for reply in replies)
    assert first == again and replies[0].usage.completion_tokens > 0
    url = str(client.base_url).removesuffix("/v1/")
    other = anthropic.Anthropic(base_url=url, api_key=client.api_key, max_retries=0)
    assert other.messages.create(**asked).content[0].type == "text"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="guessed").models.list()
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 0


def test_weights_of_others_answer_as_a_run_with_the_same_weights(
    workdir, config, tokenizer, state, tmp_path
):
    folder = tmp_path / "weights"
    export(folder, state.params, policy_shape(config, tokenizer.vocab_size), tokenizer)
    sized = dataclasses.replace(config.tokenizer, vocab_size=tokenizer.vocab_size)
    given = dataclasses.replace(config, weights=str(folder), tokenizer=sized)
    asked = {"model": "any", "messages": MESSAGES, "max_tokens": 8, "seed": 7, "temperature": 1}
    said = []
    lora = LoraShape(rank=2, alpha=4.0, targets=("q", "v"), start=str(tmp_path / "adapter"))
    policy = policy_shape(config, tokenizer.vocab_size)
    adapted = new_adapters(jax.random.key(5), policy, lora)
    adapted = with_trained(adapted, jax.tree.map(lambda x: x + 0.3, trained(adapted)))
    save_peft(tmp_path / "adapter", adapted, policy, lora, str(folder))
    for served, path, called in (
        (given, None, str(folder)),
        (config, workdir, "step 3"),
        (dataclasses.replace(given, lora=lora), None, f"{folder} with {lora.start}"),
    ):
        with client_of(served, path, called) as client:
            said.append(client.chat.completions.create(**asked).choices[0].message.content)
    assert said[0] == said[1] != said[2]
    beside = ServeConfig(adapters=(f"mine={lora.start}", f"same={lora.start}"))
    with client_of(dataclasses.replace(given, serve=beside), None, str(folder)) as client:
        assert [each.id for each in client.models.list().data] == [config.name, "mine", "same"]
        with ThreadPoolExecutor() as pool:  # in one batch
            calls = [
                pool.submit(client.chat.completions.create, **asked | {"model": name})
                for name in (config.name, "mine", "same")
            ]
        replies = [call.result() for call in calls]
        assert [each.choices[0].message.content for each in replies] == [said[0], said[2], said[2]]
        assert [each.model for each in replies] == [config.name, "mine", "same"]
        with pytest.raises(openai.NotFoundError, match="there is no model 'any'") as refused:
            client.chat.completions.create(**asked)
        assert refused.value.code == "model_not_found"


def test_a_server_whose_engine_has_failed_is_not_healthy_and_ends(config, workdir, monkeypatch):
    def out_of_memory(*_):
        raise MemoryError("the device has none left")

    with serving(config, workdir, "127.0.0.1", 0) as at:
        health = at.url.removesuffix("/v1") + "/health"
        assert httpx.get(health).status_code == 200
        monkeypatch.setattr(Engine, "_begin", out_of_memory)
        monkeypatch.setattr(threading, "excepthook", lambda failed: None)
        client = openai.OpenAI(base_url=at.url, api_key=at.key, max_retries=0)
        with pytest.raises(openai.InternalServerError, match="has none left"):
            client.chat.completions.create(model="m", messages=MESSAGES)
        sick = httpx.get(health)
        assert sick.status_code == 503 and "has none left" in sick.json()["error"]["message"]
        with pytest.raises(RolloutsFailed, match="has none left"):
            at.wait()


def test_calls_in_progress_finish_when_the_server_is_told_to_end(serve, workdir):
    server, client = serve(f"--workdir={workdir}", called="step 3")
    asked = {"model": "any", "messages": MESSAGES, "max_tokens": 200, "temperature": 1}
    stream = client.chat.completions.create(**asked, stream=True, extra_body={"min_tokens": 200})
    next(stream)
    server.send_signal(signal.SIGTERM)  # which is handled as Ctrl-C is
    assert list(stream)[-1].choices[0].finish_reason == "length"
    assert server.wait(60) == 0


def test_calls_that_do_not_finish_in_time_are_told_so(config, workdir, monkeypatch):
    begin, begun, said = Engine._begin, threading.Event(), []

    def slowly(*args):
        begun.set()
        time.sleep(0.2)
        return begin(*args)

    hurried = dataclasses.replace(config, serve=ServeConfig(finish_seconds=0.1))
    with ThreadPoolExecutor() as pool:
        with serving(hurried, workdir, "127.0.0.1", 0, say=said.append) as at:
            monkeypatch.setattr(Engine, "_begin", slowly)
            begun.clear()
            client = openai.OpenAI(base_url=at.url, api_key=at.key, max_retries=0)
            asked = {"model": "any", "messages": MESSAGES, "extra_body": {"min_tokens": 200}}
            call = pool.submit(client.chat.completions.create, **asked, max_tokens=200)
            assert begun.wait(60)
        with pytest.raises(openai.InternalServerError, match="engine closed") as refused:
            call.result()
    assert refused.value.status_code == 503
    before, after = said
    assert before.startswith(f"compiling the engine for {8 * jax.device_count()} conversations ")
    assert before.endswith("in float32") and after.startswith("compiled in ")


def test_a_server_has_places_and_pages_of_its_own(config):
    sizes = ServeConfig(max_sequences=3).engine(config.engine, shards=2)
    assert sizes.max_sequences == 6 and sizes.pages == 6 * config.engine.pages_per_sequence
    assert sizes.max_sequence_length == config.engine.max_sequence_length
    with pytest.raises(ValueError, match="prefill_tokens"):
        ServeConfig(prefill_tokens=())


@pytest.mark.parametrize(
    ("entries", "answer"),
    [
        (("sql",), "adapters 'sql' must be NAME=FOLDER"),
        (("=folder",), "adapters '=folder' must be NAME=FOLDER"),
        (("a b=folder",), "must be NAME=FOLDER, the name of up to 64"),
        (("a=one", "a=two"), "adapters 'a' is there twice"),
    ],
)
def test_adapters_have_names_and_folders(entries, answer):
    with pytest.raises(ValueError, match=answer):
        ServeConfig(adapters=entries)


def test_adapters_that_cannot_be_served_are_refused_by_name(config, tmp_path):
    def beside(entry, **changes):
        serve = ServeConfig(adapters=(entry,))
        return dataclasses.replace(config, serve=serve, **changes)

    lora = LoraShape(rank=2, alpha=4.0, targets=("q",))
    for wrong, answer in (
        (beside("a=folder", lora=lora), r"\(lora.rank 2\): export those with --adapter"),
        (beside(f"{config.name}=folder"), "is the policy's own name: choose another"),
    ):
        with pytest.raises(ValueError, match=answer), serving(wrong, None, "127.0.0.1", 0):
            pass
    policy, said = policy_shape(config, 300), []
    with pytest.raises(ValueError, match=r"serve.adapters a: there is no .*adapter_config"):
        read_served(beside(f"a={tmp_path}"), policy, said.append)
    weights = new_adapters(jax.random.key(5), policy, lora)
    save_peft(tmp_path / "adapter", weights, policy, lora, "org/base@v2")
    named = beside(f"a={tmp_path / 'adapter'}")
    assert list(read_served(named, policy, said.append)) == ["a"]
    assert said == ["adapter a says that it is of org/base, and is served beside random weights"]
    read_served(dataclasses.replace(named, weights="org/base@v3"), policy, said.append)
    assert len(said) == 1
