"""Compiled programs that outlive the process, so that a run that goes on does not compile anew."""

from __future__ import annotations

import jax


def keep_compiled(folder: str) -> None:
    """From here on programs that took a second or more to compile are kept in `folder`, and taken
    from there. Empty: none is. Hosts of one run may share it."""
    if folder:
        jax.config.update("jax_compilation_cache_dir", folder)
