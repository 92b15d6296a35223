"""What ``check`` has to say beside the verdicts."""

from __future__ import annotations

from typing import NamedTuple


class Obstacle(NamedTuple):
    """Something that keeps the hotfix from acting, or a reader from trusting what the versions say."""

    name: str
    found: str
    do: str
    #: Whether it alone keeps the hotfix from acting.
    blocks: bool = False


class Way(NamedTuple):
    """One way in, as it stands for an interpreter that is started like this one."""

    name: str
    works: bool
    detail: str
