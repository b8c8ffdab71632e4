"""Names of models, resolved by huggingface_hub from a hub of our own."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.export import export
from ale_jax.model.weights.hub import is_name, locate, pinned, split
from tests.model.shapes import QWEN2
from tests.model.weights.families import random_params
from tests.model.weights.hub_server import TOKEN, Model, served_hub

pytestmark = pytest.mark.heavy  # a process for each environment

FIRST, SECOND = "1" * 40, "2" * 40
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
NEEDED = {
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "additional_chat_templates/tool_use.jinja"),
    *("model.safetensors.index.json", *SHARDS),
}
OTHERS = {
    *("pytorch_model.bin", "modeling_own.py", "consolidated.safetensors", "README.md"),
    *("original/model.safetensors", "model.safetensors", "model-q4.gguf", "training_args.bin"),
}


CALLS = """
import sys
from ale_jax.model.weights.hub import locate, pinned
if "(" in sys.argv[1] and not sys.argv[1].startswith(("locate", "pinned")):
    from ale_jax.model.tokenizer import ChatTokenizer
    from ale_jax.model.weights.load import open_checkpoint, read_shape
    load = ChatTokenizer.load
for call in sys.argv[1:]:
    try:
        print(eval(call))
    except ValueError as error:
        print("ValueError:", *str(error).split())
"""


@pytest.fixture
def folder(tmp_path):
    where = {
        "a": SHARDS[0],
        "b": SHARDS[1],
        "c": "../escaped.safetensors",
        "d": "pytorch_model.bin",
    }
    for name in NEEDED | OTHERS:
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "model" / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": where})
    )
    return tmp_path / "model"


@pytest.fixture
def run(tmp_path):
    """Makes calls of ours in a process of their own, as huggingface_hub reads its environment once.
    Returns what each returns, or its error; without a list if it is one."""

    def run(*calls, **environment):
        home = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        given = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        done = subprocess.run(
            [sys.executable, "-c", CALLS, *calls],
            env=given | home | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        answers = done.stdout.splitlines()
        return answers if len(calls) > 1 else answers[0]

    return run


def files_of(path):
    return {os.path.relpath(os.path.join(at, x), path) for at, _, xs in os.walk(path) for x in xs}


def test_only_what_is_needed_is_fetched_and_once(folder, run):
    with served_hub(tiny=Model(folder, {"main": FIRST})) as hub:
        described = run("locate('org/tiny', weights=False)", HF_ENDPOINT=hub.url)
        assert files_of(described) == NEEDED - set(SHARDS)
        path = run("locate('org/tiny')", HF_ENDPOINT=hub.url)
        assert path == described and files_of(path) == NEEDED == set(hub.fetched)
        assert len(hub.fetched) == len(NEEDED)
        assert run("locate('org/tiny')", HF_ENDPOINT=hub.url) == path
        assert len(hub.fetched) == len(NEEDED), "it was in the cache"
    # The hub is gone.
    assert run("locate('org/tiny')", HF_ENDPOINT=hub.url) == path
    assert run("locate('org/tiny')", HF_HUB_OFFLINE="1") == path


def test_weights_in_one_file_need_no_index(folder, run):
    (folder / "model.safetensors.index.json").unlink()
    with served_hub(tiny=Model(folder, {"main": FIRST})) as hub:
        path = run("locate('org/tiny')", HF_ENDPOINT=hub.url)
    assert {"model.safetensors"} == {f for f in files_of(path) if f.endswith(".safetensors")}


def test_a_model_in_another_format_says_how_to_get_it(tmp_path, run):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tiny-q4.gguf").write_text("weights")
    with served_hub(tiny=Model(tmp_path / "model", {"main": FIRST})) as hub:
        error = run("locate('org/tiny')", HF_ENDPOINT=hub.url)
        assert hub.fetched == []
    assert (
        "no tokenizer.json: name another, or give a .gguf file of it: `hf download org/tiny"
        in error
    )


def test_a_revision_is_a_branch_or_a_commit_and_names_are_pinned_to_commits(folder, run):
    calls = [f"pinned({name!r})" for name in ("org/tiny", "org/tiny@v2", f"org/tiny@{SECOND}")]
    with served_hub(tiny=Model(folder, {"main": FIRST, "v2": SECOND})) as hub:
        *names, path, error = run(
            *(*calls, "locate('org/tiny@v2')", "locate('org/tiny@v3')"), HF_ENDPOINT=hub.url
        )
    assert names == [f"org/tiny@{FIRST}", f"org/tiny@{SECOND}", f"org/tiny@{SECOND}"]
    assert os.path.basename(path) == SECOND
    assert error.startswith("ValueError: org/tiny@v3 is no file or folder here, and as a model's ")
    assert "org/tiny has no revision v3: name a branch, a tag or a commit" in error


def test_a_token_opens_what_is_private(folder, run):
    with served_hub(tiny=Model(folder, {"main": FIRST}, "private")) as hub:
        error = run("locate('org/tiny')", HF_ENDPOINT=hub.url)
        assert f"{hub.url} has no model of this name that you may read: check it, and" in error
        assert "for a private one set HF_TOKEN" in error
        path = run("locate('org/tiny')", HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)
    assert files_of(path) == NEEDED


def test_a_model_with_terms_says_where_they_are(folder, run):
    with served_hub(tiny=Model(folder, {"main": FIRST}, "gated")) as hub:
        error = run("locate('org/tiny')", HF_ENDPOINT=hub.url)
    assert f"accept its terms at {hub.url}/org/tiny, and set HF_TOKEN" in error


def test_a_model_that_nobody_has_is_refused(run):
    with served_hub() as hub:
        error = run("locate('org/unknown')", HF_ENDPOINT=hub.url)
    assert "org/unknown is no file or folder here" in error and "has no model of this name" in error


def test_without_a_network_the_remedy_is_a_line_to_run_elsewhere(run):
    line = "run `hf download org/tiny --revision=v2` where there is a network, and set HF_HOME to"
    error = run("locate('org/tiny@v2')", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set, and not all of its files are in the cache: " + line in error
    error = run("locate('org/tiny@v2')", HF_ENDPOINT="http://127.0.0.1:1")
    assert "the hub cannot be asked, and not all of its files are in the cache" in error
    assert line in error


def test_a_fetch_that_broke_off_is_not_taken_for_a_whole_one(folder, run):
    with served_hub(tiny=Model(folder, {"main": FIRST}, fails=SHARDS[1])) as hub:
        assert run("locate('org/tiny')", HF_ENDPOINT=hub.url).startswith("ValueError: org/tiny is")
    assert "not all of its files are in the cache" in run("locate('org/tiny')", HF_HUB_OFFLINE="1")


def test_weights_and_tokenizer_of_a_name_are_those_of_its_folder(tmp_path, run):
    told = [{"role": "user", "content": "Reach 24 with 3, 5 and 7."}]
    tokenizer, shape = ChatTokenizer(train_bpe(told, 320)), QWEN2
    shape = dataclasses.replace(shape, vocab_size=tokenizer.vocab_size)
    export(tmp_path / "model", random_params(shape), shape, tokenizer)
    (tmp_path / "model" / "pytorch_model.bin").write_text("a pickle")
    with served_hub(tiny=Model(tmp_path / "model", {"main": FIRST})) as hub:
        found, ends = run(
            "read_shape('org/tiny')", "load('org/tiny').stop_ids", HF_ENDPOINT=hub.url
        )
        assert not {f for f in hub.fetched if f.endswith((".safetensors", ".bin"))}
        opened = run("open_checkpoint('org/tiny').shape", HF_ENDPOINT=hub.url)
        assert "model.safetensors" in hub.fetched and "pytorch_model.bin" not in hub.fetched
    assert found == opened == str(shape) and ends == str(tokenizer.stop_ids)


def test_paths_are_no_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "out").mkdir(parents=True)
    paths = ("runs/out", "/nowhere", "./org/tiny", "a/b/c", "org/x.gguf", "tiny", "", "../up")
    for path in paths:
        assert not is_name(path)
        assert str(locate(path)) == os.path.normpath(path) and pinned(path) == path
    assert is_name("org/Tiny-1.5B") and is_name("org/tiny@refs/pr/1")
    assert split("org/tiny@refs/pr/1") == ("org/tiny", "refs/pr/1")
