"""On-policy distillation: what the teacher scores, that the student follows, what is refused."""

import dataclasses
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest

from ale_jax.data.journal import Journal
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from ale_jax.system.plan import make_plan
from ale_jax.system.sources import check_sources
from ale_jax.system.step_metrics import step_metrics
from ale_jax.system.tasks import Cursor
from ale_jax.system.teacher import check_teacher, teacher_shape
from tests.model.shapes import MIXED, changed
from tests.system.in_process import Run, run_config

PADDED = 9  # tokens that the teacher's embedding has, and no tokenizer
ALONE = {
    "kind": "none",
    "kl_weight": 1.0,
    "clip_low": 0.0,
    "clip_high": 0.0,
    "negative_weight": 1.0,
}
FORWARD = {"kl_estimator": "forward", "kl_top": 32}
REVERSE = {"kl_estimator": "reverse", "kl_top": 32}
SAMPLED = {"kl_estimator": "k3_weighted"}


def _config(teacher, steps=1, stays=True, **loss):
    return run_config(
        steps,
        "grpo",
        algo={"loss": loss, "advantage": {"mean": "none", "std": "none"}},
        teacher={"weights": str(teacher), "stays": stays},
        rl={"alpha": 0.0, "router_replay": True},
        rl_optimizer={"learning_rate": 0.02},
    )


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A mixture of experts of another family, width and vocabulary, with the student's tokens. It
    mostly says the same, wherever it is: one number of its hidden states is large everywhere."""
    path = tmp_path_factory.mktemp("teachers") / "teacher"
    tokenizer = Run(run_config(1)).tokenizer
    size = tokenizer.vocab_size + PADDED
    shape = changed(MIXED, vocab_size=size, tie_embeddings=False)
    params = init_params(jax.random.key(5), shape)
    params["embed_VD"] = params["embed_VD"].at[:, 0].set(10.0)
    export(path, params, shape, tokenizer)
    return path


def _train(config):
    game, reports = Run(config), []
    game.trainer.open_teacher()
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder), _nothing) as journal:
        game.train(Cursor(), journal, reports.append, _nothing)
    return game, reports


def _nothing(*args, **fields):
    pass


def _own_scores(teacher, batch):
    """The teacher's log-probabilities of a batch's tokens, from its logits, [B, T, V]."""
    checkpoint = open_checkpoint(teacher)
    params = load_params(checkpoint)
    hidden_BTD, _ = hidden_states(
        params, batch.tokens_BT, batch.position_BT, batch.segment_BT, checkpoint.shape
    )
    logp_BTV = jax.nn.log_softmax(logits(params, hidden_BTD)[..., :-PADDED])
    return np.roll(np.asarray(logp_BTV), 1, axis=1)


@pytest.mark.heavy
@pytest.mark.parametrize("loss", [SAMPLED, REVERSE, FORWARD], ids=lambda x: x["kl_estimator"])
def test_the_student_follows_a_teacher_of_another_family(teacher, loss):
    game, reports = _train(_config(teacher, 8, **ALONE, **loss))
    kl = [step_metrics(report)["kl"] for report in reports]
    assert kl[-1] < 0.6 * kl[0], kl
    batch = reports[0].made.batches[0]
    logp_BTV, written_BT = _own_scores(teacher, batch), batch.chunk_BT >= 0
    own_BT = np.take_along_axis(logp_BTV, batch.tokens_BT[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(batch.logp_ref_BT[written_BT], own_BT[written_BT], atol=1e-4)
    if "kl_top" in loss:
        best_BTk = -np.sort(-logp_BTV, axis=-1)[..., : loss["kl_top"]]
        told_BTk = batch.logp_ref_top_BTk
        np.testing.assert_allclose(told_BTk[written_BT], best_BTk[written_BT], atol=1e-4)
    assert game.config.rl.router_replay and batch.expert_BTLK is not None


@pytest.mark.heavy
def test_weights_that_do_not_stay_are_read_for_each_step_with_the_same_result(teacher):
    scores = []
    for stays in (True, False):
        _, reports = _train(_config(teacher, 2, stays, **ALONE, **SAMPLED))
        scores.append([each.logp_ref_BT for r in reports for each in r.made.batches])
    jax.tree.map(np.testing.assert_array_equal, *scores)


def test_the_plan_counts_the_teacher_in_turn_or_beside(teacher):
    plans = []
    for weights, stays in (("", True), (teacher, True), (teacher, False)):
        config = run_config(1, algo={"loss": {"measure_kl": True}})
        given = dataclasses.replace(config.teacher, weights=str(weights), stays=stays)
        plans.append(
            {n.what: n.bytes for n in make_plan(dataclasses.replace(config, teacher=given)).needs}
        )
    own, beside, in_turn = plans
    assert "weights of the reference" in own and "weights of the reference" not in beside
    size = sum(x.nbytes for x in jax.tree.leaves(load_params(open_checkpoint(teacher))))
    assert size * 0.9 < beside["weights of the teacher"] * jax.device_count() < size * 8
    assert "weights of the teacher" not in in_turn, "a step needs more, and comes after"


REFUSED = {
    "a teacher that nothing reads": (
        {"teacher": {"weights": "x"}},
        r"teacher\.weights x is not read: set algo\.loss\.kl_weight",
    ),
    "two teachers": (
        {"teacher": {"weights": "x", "endpoint": "http://127.0.0.1/v1#z"}},
        r"weights x and teacher\.endpoint http://127.0.0.1/v1#z are two",
    ),
    "an endpoint without a model": (
        {"algo": {"loss": {"measure_kl": True}}, "teacher": {"endpoint": "http://127.0.0.1/v1"}},
        r"teacher\.endpoint 'http://127.0.0.1/v1' must be http://HOST/v1#MODEL",
    ),
    "an endpoint that does not know how tokens were drawn": (
        {
            "algo": {"loss": {"measure_kl": True}},
            "teacher": {"endpoint": "http://127.0.0.1/v1#z"},
            "train_sampling": {"temperature": 0.7},
        },
        r"train_sampling may be otherwise",
    ),
    "no teacher that could stay": ({"teacher": {"stays": False}}, r"set teacher\.weights"),
    "nothing to learn from but the start": (
        {"algo": {"loss": ALONE | SAMPLED}},
        "without a teacher",
    ),
    "credit that is not learned from": (
        {
            "algo": {"loss": ALONE | SAMPLED},
            "teacher": {"weights": "x"},
            "attention_credit": {"credit": "coupled"},
        },
        r"attention_credit\.credit coupled changes advantages",
    ),
    "groups that would teach as much": (
        {
            "algo": {"loss": ALONE | SAMPLED},
            "teacher": {"weights": "x"},
            "rl": {"dynamic_sampling": True},
        },
        r"rl\.dynamic_sampling leaves out groups",
    ),
}


@pytest.mark.parametrize(("changes", "answer"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_its_name(changes, answer):
    with pytest.raises(ValueError, match=answer):
        run_config(1, "grpo", **changes)


def test_a_teacher_with_fewer_tokens_or_another_tokenizer_is_refused(teacher, tmp_path):
    config = _config(teacher, **ALONE, **SAMPLED)
    size = open_checkpoint(teacher).shape.vocab_size
    assert teacher_shape(config, size).vocab_size == size
    with pytest.raises(ValueError, match=rf"has {size} tokens, and the policy {size + 1}"):
        teacher_shape(config, size + 1)
    check_teacher(config, teacher)
    other = [{"role": "user", "content": "an entirely different text, twice and thrice"}] * 20
    ChatTokenizer(train_bpe(other, 300)).save(tmp_path)
    with pytest.raises(ValueError, match=r"has another tokenizer: .* is (no )?token"):
        check_teacher(config, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    config = _config(tmp_path, **ALONE, **SAMPLED)
    answer = (
        r"config\.teacher\.weights .*, whose tokens have to be the run's: no tokenizer\.json in "
    )
    with pytest.raises(ValueError, match=answer):
        check_teacher(config, teacher)
    config = _config(teacher, **ALONE, **SAMPLED)
    with pytest.raises(ValueError, match=r"set config\.tokenizer\.path to .*teacher"):
        check_sources(config)
