"""A run's configuration: frozen dataclasses that validate their own fields."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from ale_jax.agent.external import ExternalAgent
from ale_jax.agent.loop import AgentLimits
from ale_jax.algo.algorithm import AlgoConfig
from ale_jax.algo.attention_credit import AttentionCreditHypers
from ale_jax.algo.hypers import require_at_least, require_choice, require_range
from ale_jax.algo.resampling import ResamplingHypers
from ale_jax.data.mixing import Domain
from ale_jax.data.packing import Shape
from ale_jax.engine.engine_shape import EngineShape
from ale_jax.envs.registry import all_families, kind_of
from ale_jax.learn.critics import CriticsHypers
from ale_jax.learn.state import OptimizerHypers
from ale_jax.model.compute import DTYPES, REMAT, Compute
from ale_jax.model.lora import LoraShape
from ale_jax.model.sampler import Sampling
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import MeshShape
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.placement_config import PlacementConfig
from ale_jax.system.survival_config import CheckpointConfig, DeadlinesConfig

RUNTIMES = ("auto", "docker", "bubblewrap")
# Accelerators that a run can be planned for, with the GiB of one device that a program may use:
# the manufacturer's figure, less what the system and the compiler reserve.
# A TPU7x has two devices.
CHIPS = {"v5e": 15.5, "v5p": 94.0, "v6e": 31.0, "tpu7x": 94.5, "h100": 75.0, "h200": 133.0}
MIN_VOCAB = 265  # of the byte-level BPE: 256 bytes, 3 special tokens, 6 markers


@dataclasses.dataclass(frozen=True)
class HardwareConfig:
    """The hardware that the run is meant for. `--mode=plan` computes whether the run fits on it,
    on whatever machine the command is given.

    chip: the accelerator; empty, with devices 0: the local devices.
    devices: number of accelerators; 0: as many as there are locally.
    devices_per_process: accelerators of each process; 0: one process has all.
    """

    chip: str = ""
    devices: int = 0
    devices_per_process: int = 0

    def __post_init__(self) -> None:
        if self.chip:
            require_choice("chip", self.chip, tuple(CHIPS))
        if bool(self.chip) != (self.devices > 0):
            raise ValueError(f"chip {self.chip!r} and devices {self.devices}: set both, or none")
        if self.devices % (self.devices_per_process or 1):
            raise ValueError(
                f"devices_per_process {self.devices_per_process} does not divide devices "
                f"{self.devices}"
            )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The policy's shape, without the vocabulary size, which comes from the tokenizer.

    width: width of the residual stream.
    num_layers: decoder layers.
    num_heads: query heads of each layer, a multiple of num_kv_heads.
    num_kv_heads: key and value heads of each layer.
    head_width: width of a head; even.
    mlp_width: inner width of a dense feed-forward block.
    num_experts: experts of each mixture-of-experts layer; 0: all layers are dense.
    experts_per_token: experts that the router sends each token to.
    expert_width: inner width of each expert's feed-forward block.
    dense_layers: indices of the layers that are dense although the others have experts.
    norm_topk_prob: the router weights of the chosen experts are rescaled to sum to 1.
    qk_norm: queries and keys are normalized per head, as in Qwen3.
    qkv_bias: queries, keys and values have a bias, as in Qwen2.
    rope_theta: base of the rotary embedding.
    llama3_rope: (factor, low, high, trained positions) of Llama 3's scaling; empty: no scaling.
    max_positions: longest conversation, in tokens, that the model was made for. It is only a limit
        on engine.max_sequence_length.
    norm_eps: epsilon of the RMS norms.
    tie_embeddings: the output head is the embedding, transposed.
    """

    width: int = 128
    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 2
    head_width: int = 32
    mlp_width: int = 384
    num_experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    dense_layers: tuple[int, ...] = ()
    norm_topk_prob: bool = True
    qk_norm: bool = True
    qkv_bias: bool = False
    rope_theta: float = 10_000.0
    llama3_rope: tuple[float, ...] = ()
    max_positions: int = 2048
    norm_eps: float = 1e-6
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        require_at_least(0, self, "num_experts")
        sizes = ("width", "num_layers", "num_heads", "num_kv_heads", "head_width", "mlp_width")
        require_at_least(
            1, self, "max_positions", *sizes, *(("expert_width",) if self.num_experts else ())
        )
        require_range("norm_eps", self.norm_eps, 0.0, 1.0, "1e-6 is usual")
        require_range("rope_theta", self.rope_theta, 1.0, 1e12, "1e4 is usual")
        self.policy_shape(MIN_VOCAB)

    def policy_shape(self, vocab_size: int) -> PolicyShape:
        return PolicyShape(vocab_size=vocab_size, **dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes tokens.

    path: a folder that transformers can load, or a .gguf file; empty: the tokenizer of `weights`,
        or, without `weights`, a byte-level BPE of `vocab_size` tokens that is trained on the warm
        start's transcripts.
    vocab_size: tokens of the BPE that is trained. With `weights`: rows of their embedding, which
        may be more than the tokenizer has tokens.
    """

    path: str = ""
    vocab_size: int = 736

    def __post_init__(self) -> None:
        require_at_least(MIN_VOCAB, self, "vocab_size")


@dataclasses.dataclass(frozen=True)
class WorldsConfig:
    """The tasks, given by the names of their families. Each training family is played equally
    often. The families of corridors are named after their settings (docs/worlds.md).

    train_families: families that are trained on.
    held_out_families: families that are only evaluated.
    tasks_per_family: distinct training tasks of a family, which are repeated in the same order; 0:
        every task is new.
    """

    train_families: tuple[str, ...] = ("trail", "count", "script", "log", "lookup", "sort")
    held_out_families: tuple[str, ...] = ()
    tasks_per_family: int = 0

    def __post_init__(self) -> None:
        require_at_least(0, self, "tasks_per_family")
        for family in (*self.train_families, *self.held_out_families):
            kind_of(family)
        if not self.train_families:
            raise ValueError(f"train_families is empty: choose some of {', '.join(all_families())}")
        for name in ("train_families", "held_out_families"):
            families = getattr(self, name)
            if len(set(families)) < len(families):
                raise ValueError(f"{name} {families} names one twice: each comes up equally often")
        if both := set(self.train_families) & set(self.held_out_families):
            raise ValueError(
                f"{', '.join(sorted(both))} cannot be trained on and held out: name it in one list"
            )


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """How episodes are played: actors * episodes_per_actor of them concurrently.

    runtime: sandbox runtime; "auto" uses Docker if its daemon answers, and otherwise bubblewrap.
    actors: rollout worker processes.
    episodes_per_actor: episodes that each worker plays concurrently.
    max_reply_tokens: maximum tokens of one reply.
    retries: how often an episode is repeated that was rejected, or that the system failed.
    devices_per_engine: accelerators of one engine, which has engine.max_sequences slots, and a copy
        of the weights; 0: one engine on all those of a process.
    """

    runtime: str = "auto"
    actors: int = 2
    episodes_per_actor: int = 10
    max_reply_tokens: int = 64
    retries: int = 2
    placement: PlacementConfig = dataclasses.field(default_factory=PlacementConfig)
    devices_per_engine: int = 0

    def __post_init__(self) -> None:
        require_choice("runtime", self.runtime, RUNTIMES)
        require_at_least(1, self, "actors", "episodes_per_actor", "max_reply_tokens")
        require_at_least(0, self, "retries", "devices_per_engine")


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Supervised training on oracle transcripts. It ends when the policy's estimated success on
    unseen tasks reaches target_success, or after max_steps updates.

    transcripts_per_family: demonstrations of each family.
    batches_per_step: full microbatches per update.
    max_steps: maximum number of updates; 0: no warm start.
    probe_every: updates between two estimates of the policy's success.
    probe_tasks: unseen tasks in each estimate.
    target_success: estimated success rate at which the warm start ends.
    domains: the families that are demonstrated. Each domain has a `name`, its `families` and a
        `ratio`, its part of the samples; empty: the training families, in equal parts.
    noisy_share: share of the demonstrations of shell tasks that contain a failing and a repeated
        call.
    mask_errors: exclude chunks whose tool call failed from the loss (data/selection.py).
    mask_repeats: exclude chunks that repeat an earlier one from the loss.
    """

    transcripts_per_family: int = 224
    batches_per_step: int = 2
    max_steps: int = 400
    probe_every: int = 2
    probe_tasks: int = 48
    target_success: float = 0.35
    domains: tuple[Domain, ...] = ()
    noisy_share: float = 0.0
    mask_errors: bool = False
    mask_repeats: bool = False

    def __post_init__(self) -> None:
        require_at_least(
            1, self, "transcripts_per_family", "batches_per_step", "probe_every", "probe_tasks"
        )
        require_at_least(0, self, "max_steps")
        require_range("target_success", self.target_success, 0.0, 1.0, "it is a rate")
        require_range("noisy_share", self.noisy_share, 0.0, 1.0, "it is a share")
        families = [family for domain in self.domains for family in domain.families]
        for family in families:
            kind_of(family)
            if families.count(family) > 1:
                raise ValueError(f"{family} stands in the domains twice: name it in one")


@dataclasses.dataclass(frozen=True)
class RlConfig:
    """Reinforcement learning. A step trains on groups_per_step groups, each of group_size attempts
    at one task.

    steps: reinforcement learning steps of the run; 0: only the warm start.
    groups_per_step: groups of a step, and therefore tasks.
    group_size: attempts at a task.
    alpha: the asynchronous ratio: how many steps rollouts may be ahead. A trajectory's first
        token is at most alpha versions old, rounded up, when it is trained on; 0: synchronous.
    fill_queue: each step waits until rollouts are as far ahead as alpha allows, so that the age of
        trajectories is alpha versions, and not just at most alpha.
    max_uses: updates that a group may be used for while it is fresh.
    dynamic_sampling: groups whose outcomes are all equal do not count towards a step: the next ones
        take their place (DAPO). Of the groups begun at one version, only the first two steps' worth
        are replaced, so at most 3 + alpha steps' worth are judged; then a step takes what comes.
    router_replay: in training, each token goes to the experts that it went to in sampling.
    """

    steps: int = 170
    groups_per_step: int = 16
    group_size: int = 4
    alpha: float = 1.0
    fill_queue: bool = False
    max_uses: int = 1
    dynamic_sampling: bool = False
    router_replay: bool = False

    def __post_init__(self) -> None:
        require_range("alpha", self.alpha, 0.0, 1e6, "0 is synchronous")
        require_at_least(1, self, "groups_per_step", "group_size", "max_uses")
        require_at_least(0, self, "steps")


@dataclasses.dataclass(frozen=True)
class LearnConfig:
    """How a batch is computed: in microbatches of packed rows.

    microbatch_rows: rows of a microbatch.
    pack_length: tokens of a row.
    chunks_per_pack: maximum number of chunks in a row.
    balance_weight: weight of the router's load-balancing loss.
    compute_dtype: type of matrix products and of the activations between layers (see `Compute`).
    remat: what the backward pass recomputes: "none", "dots" (all but products with dense weights)
        or "layers" (all within a layer).
    max_skipped_updates: consecutive updates that are not finite after which the run ends; of
        critics, consecutive steps in which one of them makes only such updates.
    """

    microbatch_rows: int = 4
    pack_length: int = 640
    chunks_per_pack: int = 32
    balance_weight: float = 1e-3
    compute_dtype: str = "float32"
    remat: str = "none"
    max_skipped_updates: int = 3

    def __post_init__(self) -> None:
        require_at_least(1, self, "microbatch_rows", "pack_length")
        require_at_least(1, self, "chunks_per_pack", "max_skipped_updates")
        require_range("balance_weight", self.balance_weight, 0.0, 1e6, "0 switches it off")
        require_choice("compute_dtype", self.compute_dtype, DTYPES)
        require_choice("remat", self.remat, tuple(REMAT))

    @property
    def shape(self) -> Shape:
        return Shape(self.microbatch_rows, self.pack_length, self.chunks_per_pack)

    @property
    def compute(self) -> Compute:
        return Compute(self.compute_dtype, self.remat)


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation after the warm start and at the end of the run, on tasks of the evaluation split
    that are divided evenly among the families.

    tasks: tasks of the training families.
    held_out_tasks: tasks of the held-out families; 0: none.
    every: RL steps between further evaluations during training; 0: none.
    """

    tasks: int = 240
    held_out_tasks: int = 0
    every: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, self, "tasks")
        require_at_least(0, self, "held_out_tasks", "every")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The whole config of a run. It is stored as config.json in the run's folder.

    name: the run's name in reports.
    seed: seed of all random draws.
    compilation_cache: folder for JAX's persistent compilation cache; empty: no cache.
    weights: a Hugging Face folder or .gguf file with the initial weights, whose shape `model` must
        describe; empty: random initial weights.
    """

    name: str = "run"
    seed: int = 0
    compilation_cache: str = ""
    weights: str = ""
    hardware: HardwareConfig = dataclasses.field(default_factory=HardwareConfig)
    mesh: MeshShape = dataclasses.field(default_factory=MeshShape)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    worlds: WorldsConfig = dataclasses.field(default_factory=WorldsConfig)
    sandbox: SandboxSpec = dataclasses.field(default_factory=SandboxSpec)
    agent: AgentLimits = dataclasses.field(default_factory=AgentLimits)
    external_agent: ExternalAgent = dataclasses.field(default_factory=ExternalAgent)
    rollout: RolloutConfig = dataclasses.field(default_factory=RolloutConfig)
    engine: EngineShape = dataclasses.field(default_factory=EngineShape)
    learn: LearnConfig = dataclasses.field(default_factory=LearnConfig)
    lora: LoraShape = dataclasses.field(default_factory=LoraShape)
    warm_start: WarmStartConfig = dataclasses.field(default_factory=WarmStartConfig)
    warm_start_optimizer: OptimizerHypers = dataclasses.field(default_factory=OptimizerHypers)
    rl: RlConfig = dataclasses.field(default_factory=RlConfig)
    rl_optimizer: OptimizerHypers = dataclasses.field(default_factory=OptimizerHypers)
    algo: AlgoConfig = dataclasses.field(default_factory=AlgoConfig)
    critics: CriticsHypers = dataclasses.field(default_factory=CriticsHypers)
    attention_credit: AttentionCreditHypers = dataclasses.field(
        default_factory=AttentionCreditHypers
    )
    resampling: ResamplingHypers = dataclasses.field(default_factory=ResamplingHypers)
    train_sampling: Sampling = dataclasses.field(default_factory=Sampling)
    eval_sampling: Sampling = dataclasses.field(default_factory=Sampling)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    deadlines: DeadlinesConfig = dataclasses.field(default_factory=DeadlinesConfig)

    def __post_init__(self) -> None:
        require_at_least(0, self, "seed")

    @property
    def demonstrated(self) -> tuple[Domain, ...]:
        """The domains that the warm start learns from."""
        every = Domain("all", self.worlds.train_families, 1)
        return self.warm_start.domains or (every,)

    @property
    def sandboxed(self) -> SandboxSpec | None:
        """The sandboxes of episodes and demonstrations; None if no family needs a sandbox."""
        demonstrated = itertools.chain(*(domain.families for domain in self.demonstrated))
        families = (*self.worlds.train_families, *self.worlds.held_out_families, *demonstrated)
        return self.sandbox if any(kind_of(each).needs_sandbox for each in families) else None

    def policy_shape(self, tokenizer_size: int) -> PolicyShape:
        """tokenizer_size: number of tokens that the tokenizer has."""
        return self.model.policy_shape(
            self.tokenizer.vocab_size if self.weights else tokenizer_size
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
