"""What the recipes of pretrained models share. Not a recipe: each of them starts from one of these.

Sizes of engine, rollouts and rows are the defaults, for a device with 80 GB and up to a billion
weights.
"""

from ml_collections import ConfigDict

from ale_jax.config.run import RunConfig
from ale_jax.configs import algorithms
from ale_jax.envs.shell.families import HELD_OUT_FAMILIES


def on_shell_tasks(algorithm: str) -> ConfigDict:
    """Reinforcement learning of a Llama, or of a model of that kind, on shell tasks.

    algorithm: one of configs/algorithms.py.
    """
    c = ConfigDict(RunConfig().to_json())
    c.rl.update(steps=500, groups_per_step=16, group_size=8, alpha=1.0)
    c.rl_optimizer.update(learning_rate=1e-6, warmup_ratio=0.02, decay_ratio=1.0)
    c.rl.update(algorithms.rl(algorithm))
    c.algo.update(algorithms.named(algorithm))
    # As in the papers; the 0.1 of the quickstart was measured on a policy of its size alone.
    c.algo.loss.negative_weight = 1.0
    if c.algo.loss.kind != "vanilla":  # vanilla does not use pi_old
        c.algo.old_logp = "generating"
    c.critics.update(algorithms.critics(algorithm))
    c.critics.optimizer.update(name="muon", learning_rate=1e-3, muon_learning_rate=0.005)
    c.critics.optimizer.update(warmup_ratio=0.02, decay_ratio=1.0)

    families = ("trail", "count", "script", "log", "lookup", "sort", "config")
    c.worlds.train = ({"world": "shell", "families": families},)
    c.worlds.held_out = ({"world": "shell", "families": HELD_OUT_FAMILIES},)
    c.eval.update(tasks=240, held_out_tasks=64)
    c.warm_start.update(transcripts_per_family=224, max_steps=50, target_success=0.2)
    c.warm_start_optimizer.update(learning_rate=1e-5, warmup_ratio=0.4)

    c.hardware.update(chip="h100", devices=1)
    c.model.qk_norm = False
    c.learn.update(compute_dtype="bfloat16", remat="layers")
    c.agent.turns = 16
    return c


def qwen2_5_coder_0_5b(algorithm: str) -> ConfigDict:
    """The same with the shape of Qwen2.5-Coder-0.5B."""
    c = on_shell_tasks(algorithm)
    c.model.update(width=896, num_layers=24, num_heads=14, num_kv_heads=2, head_width=64)
    c.model.update(mlp_width=4864, qkv_bias=True, rope_theta=1e6, norm_eps=1e-6)
    c.model.update(max_positions=32_768, tie_embeddings=False)
    c.tokenizer.vocab_size = 151_936
    return c


def qwen3_30b_a3b(algorithm: str) -> ConfigDict:
    """The same with the shape of Qwen3-30B-A3B, and long conversations."""
    c = on_shell_tasks(algorithm)
    c.model.update(width=2048, num_layers=48, num_heads=32, num_kv_heads=4, head_width=128)
    c.model.update(mlp_width=6144, num_experts=128, experts_per_token=8, expert_width=768)
    c.model.update(qk_norm=True, rope_theta=1e6, norm_eps=1e-6)
    c.model.update(max_positions=40_960, tie_embeddings=False)
    c.tokenizer.vocab_size = 151_936
    c.learn.pack_length = 8192
    c.engine.max_sequence_length = 8192
    c.engine.dispatch_ahead = True  # one dispatch of delay is little beside replies of this length
    return c
