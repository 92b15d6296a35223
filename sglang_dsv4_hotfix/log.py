"""Logging that cannot fail.

A logging filter or handler of the process may raise. In a post-import hook that would end the scheduler, in a transfer
thread the thread: neither is worth a line of log.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger(__package__)


def say(level: int, message: str, *arguments: object, traceback: bool = False) -> None:
    """Logs under the package's logger. Messages name the package: SGLang's log format leaves out the logger's name."""
    try:
        LOG.log(level, message, *arguments, exc_info=traceback)
    except Exception:
        pass
