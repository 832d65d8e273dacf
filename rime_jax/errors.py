"""How a program ends when it cannot go on: whether the same command can succeed later.

The exit statuses are those of sysexits.h where that has one; launch/README.md lists what the launch
scripts do after each.
"""

import os

# A signal stopped a run after it had saved: the same command goes on.
STOPPED = os.EX_TEMPFAIL
# What the user gave does not fit: the same command would end the same way.
REFUSED = os.EX_CONFIG
# Something failed that may be there again later.
FAILED = 1


class UserError(ValueError):
    """What the user gave does not fit; the message names what, where and the remedy."""


class TransientError(Exception):
    """What is in the way may pass without a change; the message says what happened."""
