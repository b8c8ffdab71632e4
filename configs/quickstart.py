"""Does chunk-level reinforcement (IPA) lift a small MoE policy on shell tasks? Expect: clearly.
python -m ale_jax.launch --config=configs/quickstart.py --workdir=runs/quickstart

A mixture of experts with 8 experts learns from oracle transcripts until it solves about a third of
unseen tasks, then from its own attempts in sandboxes. Expect more than nine tenths of the
evaluation tasks at the end, in about ten minutes, and nothing of the held-out families.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from configs import algorithms
from envs.shell.families import HELD_OUT_FAMILIES


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py; whichever it is, failures weigh a tenth."""
    c = ConfigDict()
    c.name = "quickstart" if algorithm == "ipa" else f"quickstart_{algorithm}"
    c.seed = 0
    c.compilation_cache = ""
    c.weights = ""
    c.hardware = {"chip": "", "devices": 0}
    c.mesh = {"data": -1, "fsdp": 1, "expert": 1, "tensor": 1, "context": 1}

    c.model = {
        "width": 128,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_width": 32,
        "mlp_width": 384,
        "num_experts": 8,
        "experts_per_token": 2,
        "expert_width": 192,
        "dense_layers": (0, 1),
        "norm_topk_prob": True,
        "qk_norm": True,
        "qkv_bias": False,
        "rope_theta": 10_000.0,
        "llama3_rope": (),
        "max_positions": 2048,
        "norm_eps": 1e-6,
        "tie_embeddings": True,
    }
    c.tokenizer = {"path": "", "vocab_size": 736}

    # The families that a policy of this size learns in minutes; config and rename take longer.
    c.worlds = {
        "train_families": ("trail", "count", "script", "log", "lookup", "sort"),
        "held_out_families": HELD_OUT_FAMILIES,
        "tasks_per_family": 0,
    }
    c.sandbox = {
        "image": "ale-shell",
        "runtime": "runc",
        "user": "agent",
        "cpus": 0.0,
        "memory_mb": 256,
        "pids": 64,
        "files_mb": 16,
        "writable": (),
        "env": (),
        "network": {"mode": "none", "allow": ()},
        "command_seconds": 10.0,
        "output_bytes": 8192,
    }
    c.agent = {"turns": 10, "malformed_limit": 0, "replay_share": 0.0}

    c.rollout = {
        "runtime": "auto",
        "actors": 2,
        "episodes_per_actor": 10,
        "max_reply_tokens": 64,
        "retries": 2,
    }
    c.engine = {
        "slots": 20,
        "slot_tokens": 384,
        "decode_steps": 4,
        "prefill_tokens": (32, 128),
        "prefill_rows": 1,
        "prefill_budget": 512,
        "page_tokens": 16,
        "pages": 20 * 384 // 16,
        "share_across_versions": False,
        "int8_cache": False,
        "weights": "same",
    }
    c.learn = {
        "rows": 4,
        "row_tokens": 640,
        "chunks_per_row": 32,
        "balance_weight": 1e-3,
        "compute_dtype": "float32",
        "remat": "none",
    }
    c.lora = {"rank": 0, "alpha": 0.0, "targets": ()}

    c.warm_start = {
        "transcripts_per_family": 224,
        "batches_per_step": 2,
        "max_steps": 400,
        "probe_every": 2,
        "probe_tasks": 48,
        "target_success": 0.35,
        "domains": (),
        "clumsy": 0.0,
        "mask_errors": False,  # scripts are repaired by those who saw them fail first
        "mask_repeats": False,
    }
    c.warm_start_optimizer = _muon(5e-3, 0.02, warmup_steps=20, decay_steps=0)

    c.rl = {
        "steps": 170,
        "groups_per_step": 16,
        "group_size": 4,
        "alpha": 1.0,
        "fill_queue": False,
        "max_uses": 1,
        "router_replay": False,
    }
    c.rl_optimizer = _muon(5e-4, 0.0025, warmup_steps=5, decay_steps=170)
    c.algo = algorithms.named(algorithm)
    # Every algorithm that was measured ends higher so (docs/experiments.md, `failures`).
    c.algo.loss.negative_weight = 0.1
    c.critics = algorithms.critics(algorithm) | {
        "optimizer": _muon(1e-3, 0.005, warmup_steps=5, decay_steps=170)
    }
    c.rhythm = {
        "credit": "none",
        "amplification": 1.5,
        "top_share": 0.4,
        "layers": 5,
        "head_share": 0.3,
        "window": 10,
        "horizon_low": 10,
        "horizon_high": 50,
        "introduction_share": 0.4,
        "introduction_tokens": 3,
        "dominated_share": 0.5,
    }
    c.resampling = {
        "scheme": "none",
        "teacher": "own",
        "anchors": 4,
        "anchor_choice": "uniform",
        "threshold": 0.4,
        "window": 32,
        "memory": 100,
        "imitation_weight": 0.1,
    }
    c.train_sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}

    c.eval_sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    c.eval = {"tasks": 240, "held_out_tasks": 64, "every": 0}
    c.checkpoint = {"every": 20, "keep": 2}
    return c


def _muon(
    learning_rate: float, muon_learning_rate: float, warmup_steps: int, decay_steps: int
) -> dict[str, object]:
    return {
        "name": "muon",
        "learning_rate": learning_rate,
        "muon_learning_rate": muon_learning_rate,
        "warmup_steps": warmup_steps,
        "decay_steps": decay_steps,
        "b1": 0.9,
        "b2": 0.95,
        "weight_decay": 0.0,
        "clip_norm": 1.0,
    }
