"""What requests of OpenAI's chat completions and text completions have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from ale_jax.gateway.api.fields import Fields
from ale_jax.gateway.json_values import without_flaw
from ale_jax.gateway.requests import MAX_STOP, SampleOptions

MAX_REPLIES, MAX_TOP_LOGPROBS, MAX_STOPS = 128, 20, 16

Stop = Annotated[str, Field(max_length=MAX_STOP)]


class StreamOptions(Fields):
    include_usage: bool = False


def _listed(stop: Any) -> Any:
    """A single text as the list that it stands for."""
    return [stop] if isinstance(stop, str) else stop


class SamplingFields(Fields):
    """How replies are sampled and sent."""

    _can_be_passed_on = model_validator(mode="before")(without_flaw)

    model: str = ""
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    seed: int | None = None
    stop: Annotated[list[Stop], Field(max_length=MAX_STOPS), BeforeValidator(_listed)] = Field(
        default_factory=list
    )
    n: Annotated[int, Field(ge=1, le=MAX_REPLIES)] = 1
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict)
    # An extension of vLLM's, where lower ones come first.
    priority: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def options(self, max_tokens: int | None, top_logprobs: int | None) -> SampleOptions:
        """Returns what the fields say, and what the two APIs say in different ways."""
        return SampleOptions(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=tuple(filter(None, self.stop)),
            n=self.n,
            top_logprobs=top_logprobs,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=self.logit_bias,
            min_p=self.min_p,
            min_tokens=self.min_tokens,
            priority=-self.priority,
        )
