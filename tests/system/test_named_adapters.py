"""Adapters that `serve.adapters` names are planned for, and evaluated by their names."""

import dataclasses
import json

import jax
import pytest

from ale_jax.config.model import LoraShape
from ale_jax.config.serve import ServeConfig
from ale_jax.evaluation.episodes import read_result
from ale_jax.launch import main
from ale_jax.model.lora import merged, new_adapters, trained, with_trained
from ale_jax.model.params import init_params
from ale_jax.model.sampling_weights import sampling_adapters
from ale_jax.model.served_adapters import placed
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.export import export
from ale_jax.model.weights.peft import save_peft
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config
from ale_jax.system.served_adapters import read_served
from ale_jax.system.serving_plan import plan_serving
from tests.system.test_eval_command import CONFIG
from tests.system.test_plan import SMOKE
from tests.system.whole_runs import one_device

SIZE = 280  # of the vocabulary
MESSAGES = [{"role": "user", "content": "Read lemon.txt, then report."}]
LORA = LoraShape(rank=2, alpha=4.0, targets=("q", "v"))
QUICK = ("--limit=2", "--sampling=greedy", "--json", "--config.rollout.max_reply_tokens=12")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of weights, of an adapter, and of the weights with the adapter merged."""
    path = tmp_path_factory.mktemp("models")
    values = SMOKE()
    values.model.tie_embeddings = False  # else greedy replies repeat what they are asked
    config = checked_config(values.to_dict())
    tokenizer = ChatTokenizer(train_bpe(MESSAGES * 10, SIZE))
    policy = policy_shape(config, SIZE)
    params = init_params(jax.random.key(0), policy)
    adapted = params | new_adapters(jax.random.key(5), policy, LORA)
    adapted = with_trained(adapted, jax.tree.map(lambda x: x + 0.3, trained(adapted)))
    save_peft(path / "adapter", adapted, policy, LORA, "some/base")
    export(path / "base", params, policy, tokenizer)
    export(path / "merged", merged(adapted), policy, tokenizer)
    return path


def line(command, folders, *more):
    adapters = f"--config.serve.adapters=('mine={folders / 'adapter'}',)"
    return ["ale-jax", command, *CONFIG, f"--config.tokenizer.vocab_size={SIZE}", adapters, *more]


def test_plan_counts_what_serve_holds_beside_the_run(folders, capsys):
    weights = f"--config.weights={folders / 'base'}"
    assert main(line("plan", folders, weights)) == 0
    told = capsys.readouterr()
    run, serving = told.out.split("to serve the adapters")
    assert "adapters, " not in run and "moments" in run
    assert "1 adapters, float32 and float32" in serving and "moments" not in serving
    assert "adapter mine says that it is of some/base, and is served beside" in told.err
    own = [f"--config.lora.{field}" for field in ("rank=2", "alpha=4.0", "targets=('q',)")]
    assert main(line("plan", folders, weights, *own)) == 2
    assert "serve.adapters cannot lie beside the policy's own" in capsys.readouterr().err
    wider = "--config.model.width=96"
    assert main(line("plan", folders, wider)) == 2
    assert "serve.adapters mine: " in capsys.readouterr().err


def test_a_server_that_does_not_fit_is_refused_with_its_own_remedy(folders, capsys):
    room = ("--config.hardware.chip=v5e", "--config.hardware.devices=1")
    weights = f"--config.weights={folders / 'base'}"
    assert main(line("plan", folders, weights, *room, "--config.serve.max_sequences=999999")) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "serve needs" in told and "lower serve.max_sequences" in told


def test_adapters_take_what_is_planned(folders):
    config = checked_config(SMOKE().to_dict())
    served = ServeConfig(adapters=(f"a={folders / 'adapter'}", f"b={folders / 'adapter'}"))
    config = dataclasses.replace(config, weights=str(folders / "base"), serve=served)
    policy, mesh = policy_shape(config, SIZE), make_mesh(config.mesh)
    adapters = list(read_served(config, policy, lambda _: None).values())
    needs = {need.what: need.bytes for need in plan_serving(config, policy, adapters).needs}
    read = {"adapters": placed(adapters, policy, mesh)}
    held = [read["adapters"], sampling_adapters(read, policy, "float32", mesh)]
    nbytes = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(held))
    assert needs["2 adapters, float32 and float32"] == nbytes > 0


@pytest.mark.heavy
def test_the_base_and_its_adapter_are_evaluated_apart(folders, tmp_path, capsys):
    said = {}
    with one_device():
        for source in ("base", "base#mine", "merged"):
            out = tmp_path / source
            policy = f"--policy=hf:{folders}/{source}"
            assert main(line("eval", folders, *QUICK, f"--out={out}", policy)) == 0
            assert json.loads(capsys.readouterr().out)["all"]["episodes"] == 2
            played = read_result(out, messages=True).episodes
            said[source] = sorted((each.item, each.messages[-1]["content"]) for each in played)
    assert said["base"] != said["base#mine"] == said["merged"]
    settings = json.loads((tmp_path / "base#mine" / "eval.json").read_text())
    assert settings["policy"] == f"hf:{folders}/base#mine={folders / 'adapter'}"
    assert settings["tools"] == "template"
    policy = f"--policy=hf:{folders}/base#other"
    assert main(line("eval", folders, f"--out={tmp_path}/x", policy)) == 2
    assert "there is no adapter 'other' in config.serve.adapters, but mine" in (
        capsys.readouterr().err
    )
