"""ale-jax eval as a user types it."""

import contextlib
import json
import re
import shutil
import time

import pytest

from ale_jax.config.worlds import Domain
from ale_jax.evaluation.episodes import read_result
from ale_jax.evaluation.plan import Plan
from ale_jax.files import read_json
from ale_jax.launch import main
from ale_jax.system.lease import Lease
from ale_jax.worlds.families import open_families
from tests.evaluation.endpoint import endpoint
from tests.rows import each_row
from tests.system.whole_runs import LEARNING, one_device

DOMAIN = Domain("countdown", ("countdown3",))
CONFIG = (
    "--config=smoke",
    "--config.worlds.train=({'world': 'countdown', 'families': ('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
)
FAMILY = open_families((DOMAIN,))["countdown3"]


def evaluate(capsys, *args):
    code = main(["ale-jax", "eval", *CONFIG, *args])
    told = capsys.readouterr()
    return code, told.out, told.err


def knows(some):
    """A policy that solves the tasks of `some` places in the plan, by the oracle."""
    tasks = [key.task for key in Plan(open_families((DOMAIN,)), limit=8).episodes()]
    lines = {FAMILY.checked(each, None).reset()[-1].content: FAMILY.oracle(each) for each in tasks}
    known = dict(list(lines.items())[:some])
    return lambda body: known.get(body["messages"][-1]["content"], ("no idea",))[0]


def test_an_endpoint_is_evaluated_and_what_is_played_is_not_played_again(tmp_path, capsys):
    out = f"--out={tmp_path}/a"
    with endpoint(knows(3)) as (url, asked):
        policy = f"--policy={url}#any"
        code, told, err = evaluate(capsys, out, policy, "--limit=4", "--samples=2", "--json")
        assert (code, len(asked)) == (0, 8), err
        assert "evaluation 8/8  success 75%" in err.splitlines()[-1]
        whole = json.loads(told)["all"]
        assert (whole["items"], whole["samples"], whole["solved"]) == (4, 2, 6)
        assert whole["pass_at_k"]["1"]["value"] == 0.75
        code, told, _ = evaluate(capsys, out, policy, "--limit=8", "--samples=2", "--dry-run")
        assert "16 episodes, of which 8 are finished" in told and len(asked) == 8
        _, _, err = evaluate(capsys, out, policy, "--limit=8", "--samples=2")
        assert len(asked) == 16 and "evaluation 16/16  success 0%" in err
        evaluate(capsys, out, policy, "--limit=8", "--samples=2")
        assert len(asked) == 16
    rates = read_json(tmp_path / "a" / "pass_rates.json")["countdown"]["countdown3"]
    assert [each[1:] for each in rates] == [[2, 2]] * 3 + [[0, 2]] * 5
    episodes = read_result(tmp_path / "a", messages=True).episodes
    assert len(episodes) == 16 and sum(each.solved for each in episodes) == 6
    for each in episodes:
        assert (each.world, each.turns) == ("countdown", 1)
        assert [m["role"] for m in each.messages] == ["system", "user", "assistant"]
        assert each.policy_tokens == len(each.messages[-1]["content"].split())


@pytest.mark.heavy
def test_a_given_model_is_offered_the_tools_that_its_template_tells(tmp_path, capsys):
    """`agent.tools` auto is about the policy that plays, and not about that of the config, which
    trains its own and tells it of the tools by a sentence."""
    line = ("ale-jax", "eval", "--config=smoke", "--config.worlds.held_out=()", "--limit=1")
    line += ("--config.eval.held_out_tasks=0",)
    text = "--config.agent.tools=text"
    with endpoint(lambda body: "no idea") as (url, asked):
        for out, more in (("auto", ()), ("text", (text,))):
            to = (f"--policy={url}#any", f"--out={tmp_path / out}")
            assert main([*line, *to, *more]) == 0
        assert main([*line, *to, "--limit=2", "--config.agent.tools=auto"]) == 2
    assert "holds episodes with tools 'text', not 'template'" in capsys.readouterr().err
    (offered,), (none,) = (
        read_result(tmp_path / each, messages=True).episodes for each in ("auto", "text")
    )
    assert [each["function"]["name"] for each in offered.tools] == ["bash", "finish"]
    assert not none.tools
    assert [len(body.get("tools", ())) for body in asked] == [2, 2, 0, 0]


def test_the_number_of_items_is_not_that_of_a_run(tmp_path, capsys):
    code, _, err = evaluate(capsys, f"--out={tmp_path}/a", "--dry-run", "--config.eval.tasks=5")
    assert code == 2 and "config.eval.tasks is about a run's own evaluations" in err
    assert "say --limit=N" in err


def test_a_policy_that_falls_silent_loses_nothing_that_was_played(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ale_jax.worlds.endpoint.ATTEMPTS", 1)
    knowing, left = knows(8), iter(range(3))
    out = f"--out={tmp_path}/a"

    def dies(body):
        return knowing(body) if next(left, None) is not None else (500, {"error": "down"})

    with endpoint(dies) as (url, asked):
        where = (f"--policy={url}#any", "--limit=8", "--workers=1", "--config.rollout.retries=0")
        code, _, err = evaluate(capsys, out, *where)
        *shown, error = err.splitlines()
        assert code == 2 and "the policy does not answer" in error
        assert shown[0].endswith("evaluation: 8 episodes") and "evaluation 3/8" in shown[-1]
        assert len(read_result(tmp_path / "a").episodes) == 3
    # On the same port nobody answers now, so the same policy is another one.
    with endpoint(knows(8)) as (url, asked):
        code, _, err = evaluate(capsys, out, f"--policy={url}#any", "--limit=8")
        assert code == 2 and "holds episodes with policy" in err and not asked


def test_what_an_evaluation_costs_is_told(tmp_path, capsys):
    usage = {"completion_tokens": 1000, "total_tokens": 6000}
    message = {"message": {"role": "assistant", "content": "1"}, "finish_reason": "stop"}
    line = (f"--out={tmp_path}/a", "--limit=4", "--prices=0.5,2", "--json")
    with endpoint(lambda body: (200, {"choices": [message], "usage": usage})) as (url, _):
        _, told, err = evaluate(capsys, *line, f"--policy={url}#any")
    cost = {"prompt_tokens": 20_000, "policy_tokens": 4000, "money": 0.018}
    assert json.loads(told)["cost"] == pytest.approx(cost) and "--prices" not in err
    with endpoint(knows(0)) as (url, _):
        where = (f"--out={tmp_path}/b", *line[1:])
        _, told, err = evaluate(capsys, *where, f"--policy={url}#any")
    cost = {"prompt_tokens": None, "policy_tokens": 8, "money": None}
    assert json.loads(told)["cost"] == cost and "--prices: not all episodes" in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--out=x", "--prices=1"), "--prices='1' must be IN,OUT"),
        (("--out=x", "--prices=1,-2"), "--prices='1,-2' must be IN,OUT"),
        ((), "--out is missing"),
        (
            ("--out=x", "--policy=best"),
            "must be newest, step:N, hf:DIR, hf:ORGANIZATION/NAME or http",
        ),
        (("--out=x",), "name its folder with --workdir"),
        (("--out=x", "--policy=http://localhost/v1"), "must be http://HOST/v1#MODEL"),
        (("--out=x", "--samples=0"), "--samples=0"),
        (("--out=x", "--sampling=hot"), "--sampling=hot is unknown: choose one of greedy, paper"),
        (("--out=x", "--split=test"), "unknown split 'test'"),
        (("--out=x", "--policy=http://127.0.0.1:9/v1#m", "--workers=0"), "--workers=0"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(tmp_path, capsys, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = evaluate(capsys, *args)
    assert code == 2 and said in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.heavy
def test_a_run_is_evaluated_at_a_step_and_its_figures_stay(
    unbroken, tmp_path, runtime_name, capsys
):
    shutil.copytree(unbroken[0], tmp_path / "run")
    before = {file: file.read_bytes() for file in (tmp_path / "run").glob("*.json*")}
    config = ("--config=smoke", f"--config.rollout.runtime={runtime_name}", *LEARNING)
    line = ["ale-jax", "eval", *config, f"--workdir={tmp_path}/run", "--limit=3", "--json"]
    for policy, step in (("newest", 4), ("step:3", 3)):
        out = tmp_path / policy.replace(":", "")
        with one_device(), contextlib.closing(Lease.take(tmp_path / "run")):  # as if it went on
            assert main([*line, f"--out={out}", f"--policy={policy}"]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["all"]["episodes"] == 3 and told["all"]["policy_tokens"] > 0
        settings = json.loads((out / "eval.json").read_text())
        assert re.match(f"step:{step} of ", settings["policy"])
    assert {file: file.read_bytes() for file in before} == before
    for name in ("warm_start", "final"):
        own = read_result(tmp_path / "run/evals" / name, messages=True).episodes
        assert len(own) == 3 and all(each.messages for each in own)
    pair = [f"{tmp_path}/run/evals/{name}" for name in ("warm_start", "final")]
    assert main(["ale-jax", "compare", *pair]) == 0
    assert "cannot tell" in capsys.readouterr().out
    assert main([*line, f"--out={tmp_path}/x", "--policy=step:9"]) == 2
    assert "the run has no checkpoint of step 9: it has " in capsys.readouterr().err
    assert not list(tmp_path.glob(".*")), "no copy is left"


def test_a_folder_that_another_process_writes_is_refused(tmp_path, capsys):
    out = f"--out={tmp_path}/a"
    with endpoint(knows(4)) as (url, asked):
        evaluate(capsys, out, f"--policy={url}#any", "--limit=1")
        asked.clear()
        with contextlib.closing(Lease.take(tmp_path / "a")):
            code, _, err = evaluate(capsys, out, f"--policy={url}#any", "--limit=4")
            assert code == 2 and "is in use by" in err and not asked
        code, _, err = evaluate(capsys, out, f"--policy={url}#any", "--limit=4")
        assert (code, len(asked)) == (0, 3), err


@each_row(
    "changed, told",
    [
        (("--split=train",), "split 'eval', not 'train'"),
        (("--config.agent.turns=1",), "turns 2, not 1"),
        (("--config.rollout.max_reply_tokens=7",), "reply_tokens 8, not 7"),
        (("--config.sandbox.memory_mb=999",), "sandbox.memory_mb"),
    ],
)
def test_episodes_that_are_played_otherwise_do_not_come_into_one_folder(
    tmp_path_factory, capsys, changed, told
):
    out = f"--out={tmp_path_factory.mktemp('evals')}/a"
    with endpoint(knows(4)) as (url, asked):
        evaluate(capsys, out, f"--policy={url}#any", "--limit=1")
        for more in ((), ("--dry-run",)):
            code, _, err = evaluate(
                capsys, out, f"--policy={url}#any", "--limit=2", *changed, *more
            )
            assert (code, len(asked)) == (2, 1) and told in err and "--out" in err


def test_an_evaluation_whose_folder_was_taken_over_writes_nothing_more(tmp_path, capsys):
    known = knows(4)

    def taken_over(body):
        lease = tmp_path / "a" / "lease"
        newest = max(lease.iterdir())
        (lease / f"{int(newest.name) + 1:08d}").write_text(newest.read_text())
        time.sleep(2.5)  # in which it is renewed, and finds the other
        return known(body)

    with endpoint(taken_over) as (url, _):
        code, _, err = evaluate(
            capsys, f"--out={tmp_path}/a", f"--policy={url}#any", "--limit=4", "--workers=1"
        )
    assert code == 2 and "ends here: it was silent" in err
    assert not (tmp_path / "a" / "episodes.jsonl").read_text()
