"""Imports transformers without its advice: only its tokenizers are used, and they need no torch."""

import os
from types import ModuleType


def transformers() -> ModuleType:
    """The module, imported on first use (it takes a second)."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    return transformers
