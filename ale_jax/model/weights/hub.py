"""Weights and tokenizers by their names on the Hugging Face hub: org/name, or org/name@revision.

Cache (HF_HOME), token (HF_TOKEN), endpoint (HF_ENDPOINT) and offline mode (HF_HUB_OFFLINE) are
huggingface_hub's. Only data is fetched: no pickles, and no code.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from ale_jax.files import read_json

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DESCRIPTIONS = (
    *("config.json", "generation_config.json", INDEX),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
)
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"[\w.-]+\.safetensors")


def is_name(source: str | Path) -> bool:
    """Tells whether a source is the name of a model on the hub, and no file or folder here."""
    text = str(source)
    is_given = bool(_NAME.fullmatch(text)) and not text.endswith(".gguf")
    return is_given and not Path(text).exists()


def locate(source: str | Path, *, weights: bool = True) -> Path:
    """Returns the file or folder of a source, a path or a name. What a name stands for is fetched
    into huggingface_hub's cache, if it is not there yet.

    weights: False: without the weights, only what describes them, and the tokenizer.

    Raises:
      ValueError: the hub has no such model, does not let this user read it, or cannot be asked.
    """
    if not is_name(source):
        return Path(source)
    folder = _fetch(str(source), DESCRIPTIONS)
    if not any((folder / name).is_file() for name in ("config.json", "tokenizer.json")):
        name, _ = split(str(source))
        remedy = f"name another, or give a .gguf file of it: `hf download {name} FILE.gguf`"
        raise _error(str(source), "it has no config.json and no tokenizer.json", remedy)
    return _fetch(str(source), (*DESCRIPTIONS, *_weight_files(folder))) if weights else folder


def pinned(source: str) -> str:
    """Returns a source with the commit that a name stands for now, as org/name@commit. A path, or a
    name with a commit, stays as it is. Errors as `locate`."""
    if not is_name(source):
        return source
    name, revision = split(source)
    if revision and _COMMIT.fullmatch(revision):
        return source
    return f"{name}@{locate(source, weights=False).name}"


def split(source: str) -> tuple[str, str | None]:
    """Returns name and revision of a name.

    >>> split("org/name@v2"), split("org/name")
    (('org/name', 'v2'), ('org/name', None))
    """
    found = _NAME.fullmatch(source)
    assert found, source
    return found[1], found[2]


def _weight_files(folder: Path) -> list[str]:
    """The files that hold the weights, by the index if there are several. What an index that is
    damaged names is not fetched, and missed when the folder is opened."""
    if not (folder / INDEX).is_file():
        return [SINGLE]
    index = read_json(folder / INDEX)
    where = index.get("weight_map") if isinstance(index, dict) else None
    files = set(map(str, where.values())) if isinstance(where, dict) else set()
    return sorted(filter(_SHARD.fullmatch, files))


@functools.cache
def _fetch(source: str, files: tuple[str, ...]) -> Path:
    import huggingface_hub as hub
    from huggingface_hub import errors

    name, revision = split(source)
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except errors.RevisionNotFoundError as error:
        why, remedy = f"{name} has no revision {revision}", "name a branch, a tag or a commit"
        raise _error(source, why, remedy) from error
    except errors.GatedRepoError as error:
        page = f"{hub.constants.ENDPOINT}/{name}"
        remedy = f"accept its terms at {page}, and set HF_TOKEN to a token that may read it"
        raise _error(source, "its authors grant access on request", remedy) from error
    except errors.RepositoryNotFoundError as error:
        why = f"{hub.constants.ENDPOINT} has no model of this name that you may read"
        raise _error(source, why, "check it, and for a private one set HF_TOKEN") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        line = f"hf download {name}" + (f" --revision={revision}" if revision else "")
        remedy = f"run `{line}` where there is a network, and set HF_HOME to the folder it fills"
        raise _error(source, _why_unreachable(error), remedy) from error
    except OSError as error:
        if not isinstance(error, errors.HfHubHTTPError):  # of the disk
            raise
        raise _error(
            source, f"{hub.constants.ENDPOINT} says {error!s:.200}", "try again"
        ) from error
    except Exception as error:  # of any library beneath, such as a connection that broke off
        why = f"{type(error).__name__}: {error!s:.200}"
        raise _error(source, why, "start again, which continues the download") from error


def _why_unreachable(error: Exception) -> str:
    if os.environ.get("HF_HUB_OFFLINE"):
        return "HF_HUB_OFFLINE is set, and not all of its files are in the cache"
    return f"the hub cannot be asked, and not all of its files are in the cache ({error!s:.120})"


def _error(source: str, why: str, remedy: str) -> ValueError:
    what = "is no file or folder here, and as a model's name it cannot be used"
    return ValueError(f"{source} {what}: {why}: {remedy}")
