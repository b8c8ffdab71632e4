"""The teacher of on-policy distillation."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class TeacherConfig(Settings):
    """A policy that tells how probable what the student wrote is to it. The divergence of
    `algo.loss` is then from the teacher, and not from the policy after the warm start. It scores
    tokens at the temperatures and among the tokens that they were drawn at and from; its own router
    chooses its experts.
    """

    weights: str = setting(
        "",
        "its weights, named as those of the run, of any family, with the same tokenizer; empty: "
        "there is no teacher.",
    )
    endpoint: str = setting(
        "",
        "in place of weights, http://HOST/v1#MODEL of an API that tells the log-probabilities of a "
        "prompt of ids, as vLLM does (`prompt_logprobs`), with its key in ALE_TEACHER_KEY. Its "
        "tokenizer must be the run's, which cannot be checked.",
    )
    stays: bool = setting(
        True,
        "its weights stay on the devices, sharded as the policy's are; False: they are read for "
        "each step, and given up after it.",
    )

    @property
    def is_given(self) -> bool:
        return bool(self.weights or self.endpoint)
