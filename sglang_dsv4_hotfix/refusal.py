"""Raised by a fix for state that cannot be sent rightly."""

from __future__ import annotations


class Refused(Exception):
    """The layouts of the two sides have no right mapping. The message names what differs and the usual causes."""
