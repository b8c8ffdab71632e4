"""A run's configuration below the door: frozen records that refuse what cannot work."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from ale_jax.agent.loop import AgentLimits
from ale_jax.algo.algorithm import AlgoConfig
from ale_jax.algo.hypers import require_choice, require_range
from ale_jax.algo.resampling import ResamplingHypers
from ale_jax.algo.rhythm import RhythmHypers
from ale_jax.data.mixing import Domain
from ale_jax.data.packing import Shape
from ale_jax.learn.critics import CriticsHypers
from ale_jax.learn.state import OptimizerHypers
from ale_jax.model.compute import DTYPES, REMAT, Compute
from ale_jax.model.lora import LoraShape
from ale_jax.model.sampler import Sampling
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import MeshShape
from ale_jax.rollout.engine import EngineShape
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.checks import check_sections, require_at_least
from ale_jax.system.chips import CHIPS
from envs.registry import all_families, kind_of

RUNTIMES = ("auto", "docker", "bubblewrap")
MIN_VOCAB = 265  # of our byte-level BPE: 256 bytes, 3 special tokens, 6 markers


@dataclasses.dataclass(frozen=True)
class HardwareConfig:
    """What the run is meant for: `--mode=plan` works out whether it fits, wherever that is asked.
    chip: one of plan.CHIPS; empty, with devices 0: what is here."""

    chip: str
    devices: int

    def __post_init__(self) -> None:
        if self.chip:
            require_choice("chip", self.chip, tuple(CHIPS))
        if bool(self.chip) != (self.devices > 0):
            raise ValueError(f"chip {self.chip!r} and devices {self.devices}: set both, or none")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """PolicyShape without the vocabulary, which the tokenizer brings."""

    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    num_experts: int
    experts_per_token: int
    expert_width: int
    dense_layers: tuple[int, ...]
    norm_topk_prob: bool
    qk_norm: bool
    qkv_bias: bool
    rope_theta: float
    llama3_rope: tuple[float, ...]
    max_positions: int
    norm_eps: float
    tie_embeddings: bool

    def __post_init__(self) -> None:
        sizes = ("width", "num_layers", "num_heads", "num_kv_heads", "head_width", "mlp_width")
        require_at_least(
            1, self, "max_positions", *sizes, *(("expert_width",) if self.num_experts else ())
        )
        require_at_least(0, self, "num_experts")
        require_range("norm_eps", self.norm_eps, 0.0, 1.0, "1e-6 is usual")
        require_range("rope_theta", self.rope_theta, 1.0, 1e12, "1e4 is usual")
        self.policy_shape(MIN_VOCAB)

    def policy_shape(self, vocab_size: int) -> PolicyShape:
        return PolicyShape(vocab_size=vocab_size, **dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """path: a folder that transformers loads, or a .gguf file; empty = that of `weights`, and
    without those train a byte-level BPE of `vocab_size` on the warm start's transcripts.

    vocab_size: with `weights`, the rows of their embedding, which may be more than the tokenizer
    has tokens.
    """

    path: str
    vocab_size: int

    def __post_init__(self) -> None:
        require_at_least(MIN_VOCAB, self, "vocab_size")


@dataclasses.dataclass(frozen=True)
class WorldsConfig:
    """Families by name; each training family comes up equally often.
    tasks_per_family: distinct tasks of training, which come again and again; 0: ever new ones."""

    train_families: tuple[str, ...]
    held_out_families: tuple[str, ...]
    tasks_per_family: int

    def __post_init__(self) -> None:
        require_at_least(0, self, "tasks_per_family")
        for family in (*self.train_families, *self.held_out_families):
            require_choice("family", family, all_families())
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
    """runtime: "auto" | "docker" | "bubblewrap". Episodes at once = actors * episodes_per_actor.
    retries: how often a slot whose episode failed for the system's reasons is played again."""

    runtime: str
    actors: int
    episodes_per_actor: int
    max_reply_tokens: int
    retries: int

    def __post_init__(self) -> None:
        require_choice("runtime", self.runtime, RUNTIMES)
        require_at_least(1, self, "actors", "episodes_per_actor", "max_reply_tokens")
        require_at_least(0, self, "retries")


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Supervised training on oracle transcripts, until the policy's estimated success on
    `probe_tasks` unseen tasks, asked every `probe_every` updates, is `target_success`, or
    `max_steps` updates are made. batches_per_step: full microbatches per update.

    domains: the families that are demonstrated, in their proportions; none = the training families,
    equally. clumsy: share of the demonstrations with errors on the way. mask_errors, mask_repeats:
    leave out chunks whose call failed, and those that repeat an earlier one (data/chunk_masks.py).
    """

    transcripts_per_family: int
    batches_per_step: int
    max_steps: int
    probe_every: int
    probe_tasks: int
    target_success: float
    domains: tuple[Domain, ...]
    clumsy: float
    mask_errors: bool
    mask_repeats: bool

    def __post_init__(self) -> None:
        require_at_least(
            1, self, "transcripts_per_family", "batches_per_step", "probe_every", "probe_tasks"
        )
        require_at_least(0, self, "max_steps")
        require_range("target_success", self.target_success, 0.0, 1.0, "it is a rate")
        require_range("clumsy", self.clumsy, 0.0, 1.0, "it is a share")
        families = [family for domain in self.domains for family in domain.families]
        for family in families:
            require_choice("family", family, all_families())
            if families.count(family) > 1:
                raise ValueError(f"{family} stands in the domains twice: name it in one")


@dataclasses.dataclass(frozen=True)
class RlConfig:
    """A step trains on groups_per_step groups of group_size attempts at one task each.
    alpha: the asynchronous ratio, how many versions old a trajectory's first token may be when it
    is trained on; 0 is synchronous. fill_queue: each step waits until rollouts are as far ahead as
    alpha allows, so that trajectories are alpha versions old, and not just at most.
    max_uses: updates per group while fresh.
    router_replay: training sends each token to the experts that sampling sent it to."""

    steps: int
    groups_per_step: int
    group_size: int
    alpha: float
    fill_queue: bool
    max_uses: int
    router_replay: bool

    def __post_init__(self) -> None:
        require_range("alpha", self.alpha, 0.0, 1e6, "0 is synchronous")
        require_at_least(1, self, "groups_per_step", "group_size", "max_uses")
        require_at_least(0, self, "steps")


@dataclasses.dataclass(frozen=True)
class LearnConfig:
    """Microbatches of rows x row_tokens, at most chunks_per_row chunks in a row.
    balance_weight: of the router's load-balancing loss. compute_dtype: "float32" | "bfloat16";
    remat: "none" | "dots" | "layers": see `Compute`."""

    rows: int
    row_tokens: int
    chunks_per_row: int
    balance_weight: float
    compute_dtype: str
    remat: str

    def __post_init__(self) -> None:
        require_at_least(1, self, "rows", "row_tokens", "chunks_per_row")
        require_range("balance_weight", self.balance_weight, 0.0, 1e6, "0 switches it off")
        require_choice("compute_dtype", self.compute_dtype, DTYPES)
        require_choice("remat", self.remat, tuple(REMAT))

    @property
    def shape(self) -> Shape:
        return Shape(self.rows, self.row_tokens, self.chunks_per_row)

    @property
    def compute(self) -> Compute:
        return Compute(self.compute_dtype, self.remat)


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Tasks of the evaluation split, divided evenly among families. Evaluated after the warm start
    and at the end; every: also after this many RL steps (0 = not in between)."""

    tasks: int
    held_out_tasks: int
    every: int

    def __post_init__(self) -> None:
        require_at_least(1, self, "tasks")
        require_at_least(0, self, "held_out_tasks", "every")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """every: RL steps between checkpoints (the end of the warm start is always one).
    keep: how many of the newest stay."""

    every: int
    keep: int

    def __post_init__(self) -> None:
        require_at_least(1, self, "every", "keep")

    def is_due(self, step: int, last: int) -> bool:
        """last: step of the run."""
        return step % self.every == 0 or step == last


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """All of a run. Its JSON form lies beside the run's metrics as config.json.

    compilation_cache: folder in which compiled programs outlive the run; empty = none.
    weights: a Hugging Face folder or .gguf file of which `model` is the shape, and where training
    starts; empty = random ones.
    """

    name: str
    seed: int
    compilation_cache: str
    weights: str
    hardware: HardwareConfig
    mesh: MeshShape
    model: ModelConfig
    tokenizer: TokenizerConfig
    worlds: WorldsConfig
    sandbox: SandboxSpec
    agent: AgentLimits
    rollout: RolloutConfig
    engine: EngineShape
    learn: LearnConfig
    lora: LoraShape
    warm_start: WarmStartConfig
    warm_start_optimizer: OptimizerHypers
    rl: RlConfig
    rl_optimizer: OptimizerHypers
    algo: AlgoConfig
    critics: CriticsHypers
    rhythm: RhythmHypers
    resampling: ResamplingHypers
    train_sampling: Sampling
    eval_sampling: Sampling
    eval: EvalConfig
    checkpoint: CheckpointConfig

    def __post_init__(self) -> None:
        check_sections(self)

    @property
    def demonstrated(self) -> tuple[Domain, ...]:
        """What the warm start learns from."""
        every = Domain("all", self.worlds.train_families, 1)
        return self.warm_start.domains or (every,)

    @property
    def sandboxed(self) -> SandboxSpec | None:
        """What its episodes and demonstrations are played in: None where no world needs any."""
        demonstrated = itertools.chain(*(domain.families for domain in self.demonstrated))
        families = (*self.worlds.train_families, *self.worlds.held_out_families, *demonstrated)
        return self.sandbox if any(kind_of(each).needs_sandbox for each in families) else None

    def policy_shape(self, tokenizer_size: int) -> PolicyShape:
        """tokenizer_size: the tokens that the tokenizer has."""
        return self.model.policy_shape(
            self.tokenizer.vocab_size if self.weights else tokenizer_size
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
