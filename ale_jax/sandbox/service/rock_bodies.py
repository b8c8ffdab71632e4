"""Bodies of requests as rl-rock 1.11 sends them.

Fields that it sends and nobody reads are let by, but for those of a start, where one that is not
understood could be a limit that is not kept.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ale_jax.sandbox.service.bodies import ID

MAX_IDS = 2000
# No others: some of Python's take a time that grows with the square of the text.
Encoding = Literal["utf-8", "utf8", "ascii", "latin-1", "iso-8859-1", "utf-16", "gbk", "gb18030"]
Seconds = Annotated[float, Field(gt=0)]
Env = dict[str, str] | None


class RockBody(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class StartBody(RockBody):
    model_config = ConfigDict(extra="forbid")

    image: str = Field(min_length=1)
    image_os: Literal["linux"] | None = None
    sandbox_id: str | None = Field(None, pattern=f"{ID}|^$")
    cpus: Annotated[float, Field(gt=0)] = 2.0
    limit_cpus: Annotated[float, Field(gt=0)] | None = None
    memory: str = "8g"
    disk: str | None = None
    auto_clear_time_minutes: float = Field(360.0, ge=0, lt=1e9)
    auto_delete_seconds: float | None = Field(None, ge=0)
    use_kata_runtime: bool = False
    # Meaningless here: the pool has its own.
    auto_clear_time: Any = None
    startup_timeout: Any = None
    pull: Any = None
    # What would be a lie to accept: see rock_spec.REFUSED.
    num_gpus: Any = None
    accelerator_type: Any = None
    registry_username: Any = None
    registry_password: Any = None
    auto_archive_seconds: Any = None


class SandboxBody(RockBody):
    sandbox_id: str = Field(min_length=1, max_length=256)


class BatchBody(RockBody):
    sandbox_ids: list[str] = Field(max_length=MAX_IDS)


class ExecuteBody(SandboxBody):
    command: str | list[str]
    timeout: Seconds | None = None
    cwd: str | None = None
    env: Env = None


class SessionBody(SandboxBody):
    session: str = "default"


class CreateSessionBody(SessionBody):
    env: Env = None
    startup_source: list[str] = Field(default_factory=list)
    remote_user: str | None = None


class RunBody(SessionBody):
    command: str
    timeout: Seconds | None = None
    check: Literal["silent", "raise", "ignore"] = "raise"


class ReadFileBody(SandboxBody):
    path: str
    encoding: Encoding | None = None
    errors: Literal["strict", "ignore", "replace", "backslashreplace"] | None = None


class WriteFileBody(SandboxBody):
    path: str
    content: str


class UploadForm(SandboxBody):
    target_path: str
    file: bytes


def parse(kind: type[RockBody], values: Any) -> RockBody:
    """Errors: ValueError, which names the field."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"])
        raise ValueError(f"{where or 'body'}: {first['msg']}") from error
