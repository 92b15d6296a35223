"""What a guard says of a build."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Word(str, Enum):
    """Only NEEDED patches."""

    NEEDED = "needed"
    FIXED = "fixed upstream"
    NOT_APPLICABLE = "not applicable"
    UNRECOGNISED = "unrecognised"


class Verdict(NamedTuple):
    word: Word
    #: What was seen in the build that led to the word.
    observation: str
