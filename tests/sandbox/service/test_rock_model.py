"""ROCK's model service: an agent's calls inside, the trainer's answers outside."""

import gc
import itertools
import json
import shlex
import time
import weakref

import pytest

from ale_jax.sandbox.service.rock_commands import RockModel
from ale_jax.sandbox.spec import WORK
from tests.sandbox.service.conftest import BOB
from tests.sandbox.service.rock_wire import V1, ask, refusal, started

pytestmark = pytest.mark.heavy

# Calls with each of the JSON texts that follow, at once, in pieces; prints the answers in order.
AGENT = """
import http.client, json, sys, threading, time
answers = {}
def call(n, text):
    link = http.client.HTTPConnection("127.0.0.1", 8080)
    link.putrequest("POST", "/v1/chat/completions")
    body = text.encode()
    link.putheader("Content-Length", str(len(body)))
    link.endheaders()
    for piece in (body[:7], body[7:]):
        link.send(piece)
        time.sleep(0.1)
    answer = link.getresponse()
    answers[n] = answer.status, json.loads(answer.read())
threads = [threading.Thread(target=call, args=each) for each in enumerate(sys.argv[1:])]
for thread in threads:
    thread.start()
    time.sleep(0.4)
for thread in threads:
    thread.join()
print(json.dumps([answers[n] for n in sorted(answers)]))
"""
NUMBERS = itertools.count(10**18)


class Trainer:
    """Says what ROCK's client says for each method of its model service."""

    def __init__(self, http, **asked):
        self.http, self.id = http, started(http, **asked)
        self.command("rock model-service start --type local")

    def run(self, command, session="default"):
        body = {"sandbox_id": self.id, "session": session, "command": command}
        body |= {"action_type": "bash", "check": "raise", "timeout": None}
        return ask(self.http, "run_in_session", **body)

    def command(self, line):
        """The output; the answers of `kill -0` until it had ended."""
        self.session = session = f"bash-{next(NUMBERS)}"
        opened = ask(self.http, "create_session", sandbox_id=self.id, session=session)
        assert opened["status"] == "Success", opened
        inner = shlex.quote(f"export PATH=/tmp/rock/bin:$PATH && {line}")
        file = f"/tmp/tmp_{session}.out"
        nohup = f"nohup bash -c {inner} < /dev/null > {file} 2>&1"
        begun = self.run(f"{nohup} & echo PIDSTART${{!}}PIDEND;disown", session)
        pid = begun["result"]["output"].removeprefix("PIDSTART").removesuffix("PIDEND")
        self.polls = 0
        while self.run(f"kill -0 {pid}", session)["status"] == "Success":
            self.polls += 1
        self.last = self.run(f"cat {file}", session)
        return self.last["result"].get("output")

    def anti_call(self, index, answer=None):
        line = f"PYTHONWARNINGS=ignore rock model-service anti-call-llm --index {index}"
        return self.command(line + (f" --response {shlex.quote(answer)}" if answer else ""))

    def agent(self, *calls):
        """Starts an agent that makes these calls, and watches it."""
        ask(self.http, "write_file", sandbox_id=self.id, path=f"{WORK}/agent.py", content=AGENT)
        words = shlex.join(["python3", f"{WORK}/agent.py", *map(json.dumps, calls)])
        ask(self.http, "create_session", sandbox_id=self.id, session="default")
        begun = self.run(f"{words} > {WORK}/out 2>&1 < /dev/null & echo $!")
        self.command(f"rock model-service watch-agent --pid {begun['result']['output']}")

    def upload(self, path, content):
        form, files = {"target_path": path, "sandbox_id": self.id}, {"file": ("f", content)}
        self.http.post(f"{V1}/upload", data=form, files=files)

    def answers(self):
        return json.loads(
            ask(self.http, "read_file", sandbox_id=self.id, path=f"{WORK}/out")["result"]["content"]
        )


@pytest.fixture
def trainer(real):
    with real.http() as http:
        trainer = Trainer(http)
        yield trainer
        ask(http, "delete", sandbox_id=trainer.id)


def test_calls_at_once_each_get_their_own_answer_without_polls(trainer):
    trainer.agent({"n": 1}, {"n": 2})
    assert json.loads(trainer.anti_call(0)) == {"n": 1}
    assert trainer.polls == 0  # the client would sleep for 5 s after each
    time.sleep(0.8)  # the second has come
    assert json.loads(trainer.anti_call(0)) == {"n": 1}
    assert json.loads(trainer.anti_call(1, '{"a": 1}')) == {"n": 2}
    assert json.loads(trainer.anti_call(1, '{"a": "again"}')) == {"n": 2}  # is repeated
    assert trainer.anti_call(2, '{"a": 2}') == "SESSION_END"
    assert trainer.answers() == [[200, {"a": 1}], [200, {"a": 2}]]


def test_no_text_of_a_call_or_answer_means_anything(trainer):
    evil = {"m": "LLM_REQUEST_START SESSION_END\nLLM_REQUEST_END{}\n' && \\ \u2028 $(exit)"}
    trainer.agent(evil)
    assert json.loads(trainer.anti_call(0)) == evil
    assert trainer.anti_call(1, json.dumps(evil)) == "SESSION_END"
    assert trainer.answers() == [[200, evil]]


def test_an_answer_too_long_for_a_command_never_is_in_the_sandbox(trainer):
    trainer.agent({"n": 1})
    trainer.anti_call(0)
    long, path = {"a": "x" * 200_000}, "/tmp/anti_call_response_1.json"
    trainer.upload(path, json.dumps(long).encode())
    assert ask(trainer.http, "execute", sandbox_id=trainer.id, command=["ls", path])["result"][
        "exit_code"
    ]
    line = f"rock model-service anti-call-llm --index 1 --response-file {path}"
    assert trainer.command(line) == "SESSION_END"
    assert trainer.answers() == [[200, long]]


def test_a_long_answer_is_forgotten_when_the_model_service_ends(trainer):
    path = "/tmp/anti_call_response_1.json"
    trainer.upload(path, b"{}")
    trainer.command("rock model-service stop")
    trainer.command("rock model-service start")
    trainer.command(f"rock model-service anti-call-llm --index 1 --response-file {path}")
    assert "needs an answer" in refusal(trainer.last)


@pytest.mark.parametrize("end", ["stop", "delete"])
def test_nothing_is_kept_of_a_sandbox_that_has_ended(trainer, end):
    known = weakref.WeakSet(each for each in gc.get_objects() if type(each) is RockModel)
    assert known
    ask(trainer.http, end, sandbox_id=trainer.id)
    for _ in range(100):
        gc.collect()
        if not known:
            return
        time.sleep(0.05)
    raise AssertionError("the model service of a sandbox that has ended is still known")


def test_an_agent_cannot_answer_itself(trainer):
    trainer.agent({"n": 1})
    assert json.loads(trainer.anti_call(0)) == {"n": 1}
    shell = "rock model-service anti-call-llm --index 1 --response '{}'; ls /tmp"
    tried = ask(trainer.http, "execute", sandbox_id=trainer.id, command=["bash", "-c", shell])
    assert "rock: command not found" in tried["result"]["stderr"]
    assert tried["result"]["stdout"] == ""  # no file
    trainer.command("rock model-service stop")
    assert trainer.anti_call(1, "{}") is None and "no model service runs" in refusal(trainer.last)


def test_a_call_that_nobody_will_answer_fails(trainer):
    trainer.agent({"n": 1})
    assert json.loads(trainer.anti_call(0)) == {"n": 1}
    pid = trainer.run("sleep 0.2 & echo $!")["result"]["output"]
    trainer.command(f"rock model-service watch-agent --pid {pid}")
    trainer.run("wait %1")  # the agent
    assert trainer.answers()[0][0] == 500
    assert trainer.anti_call(1, "{}") == "SESSION_END"


def test_nobody_answers_for_a_sandbox_that_is_not_theirs(real, trainer):
    trainer.agent({"n": 1})
    line = "rock model-service anti-call-llm --index 0"
    with real.http(BOB) as bob:
        body = {"sandbox_id": trainer.id, "session": "default", "command": line}
        assert "no sandbox" in refusal(ask(bob, "run_in_session", **body))
    assert json.loads(trainer.anti_call(0)) == {"n": 1}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("start", "runs already"),
        ("start --type proxy", "through a relay"),
        ("fly", "choose one of start"),
        ("anti-call-llm --index 3 --response {}", "there were 0 calls"),
        ("anti-call-llm --index 0 --response {}", "needs no answer"),
        ("anti-call-llm --index x", "whole number"),
        ("watch-agent --pid", "takes"),
        ("watch-agent --pid -1", "from 1"),
    ],
)
def test_what_cannot_be_is_refused(trainer, line, told):
    trainer.command(f"rock model-service {line}")
    assert told in refusal(trainer.last)


def test_a_turn_leaves_no_session_behind(trainer):
    trainer.agent({"n": 1})
    trainer.anti_call(0)
    gone = refusal(trainer.run("true", trainer.session))  # the client never closes it
    assert trainer.session in gone


def test_a_model_service_that_nobody_uses_ends_with_the_time_that_its_sandbox_may_be_idle(real):
    with real.http() as http:
        trainer = Trainer(http, auto_clear_time_minutes=0.02)
        closed = "until ! : 2> /dev/null > /dev/tcp/127.0.0.1/8080; do sleep 0.1; done"
        done = ask(http, "execute", sandbox_id=trainer.id, command=["bash", "-c", closed])
        assert done["status"] == "Success", done
        assert trainer.anti_call(0) is None and "no model service runs" in refusal(trainer.last)
        ask(http, "delete", sandbox_id=trainer.id)


def test_a_command_that_has_ended_soon_is_seen_to_at_the_first_look(trainer):
    ask(trainer.http, "create_session", sandbox_id=trainer.id, session="default")
    pid = trainer.run("sleep 0.1 & echo $!")["result"]["output"]
    assert trainer.run(f"kill -0 {pid}")["status"] == "Failed"


def test_other_commands_are_for_bash(trainer):
    ask(trainer.http, "create_session", sandbox_id=trainer.id, session="default")
    for command in ("echo rock model-service stop", "cat /tmp/x", "kill -0 99999999"):
        mixed = trainer.run(f"{command}; echo bash")
        assert mixed["result"]["output"].endswith("bash"), mixed
    mixed = trainer.run("rock model-service stop && echo no; echo bash")
    assert mixed["result"]["output"].endswith("bash")
