"""transformers, of which we use the tokenizers, imported without its advice to install torch.

That advice is for its models. It would be the first thing that a user of ours reads.
"""

from __future__ import annotations

import logging
from types import ModuleType

ADVICE = "PyTorch was not found"


def transformers() -> ModuleType:
    """Returns the module."""
    logging.getLogger("transformers").addFilter(_is_no_advice)  # once, however often it is added
    import transformers

    return transformers


def _is_no_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(ADVICE)
