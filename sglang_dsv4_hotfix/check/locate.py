"""Finds an SGLang installation without importing it: where it is, which version, and whether conn.py is its own."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .findings import Obstacle

_CONN = Path("srt", "disaggregation", "mooncake", "conn.py")


class NotFound(Exception):
    """There is no SGLang to judge. The message says where was looked."""


@dataclass(frozen=True)
class Installation:
    package: Path
    """The directory that ``import sglang`` would load."""
    written: str | None
    """The version that its own files state."""
    metadata: str | None
    """The version that pip knows."""
    dist_info: Path | None

    @property
    def conn(self) -> Path:
        return self.package / _CONN

    @property
    def version(self) -> str | None:
        return self.written or self.metadata

    @property
    def has_model(self) -> bool:
        """Whether DeepSeek-V4 is among SGLang's own models (0.5.12 on)."""
        return (self.package / "srt" / "models" / "deepseek_v4.py").is_file()

    @property
    def has_plugins(self) -> bool:
        return (self.package / "srt" / "plugins" / "__init__.py").is_file()


def find(path: str | None) -> Installation:
    """The installation at ``path``, or else the one that this interpreter would import. Raises NotFound."""
    package = _importable() if path is None else _below(Path(path))
    if not (package / _CONN).is_file():
        raise NotFound(f"SGLang at {package} has no {_CONN}")
    # An editable installation keeps its metadata elsewhere on the path.
    directories = [package.parent, *(Path(entry) for entry in sys.path if path is None)]
    dist_info = next((found for directory in directories for found in _metadata(directory)), None)
    return Installation(package, _written_version(package), _metadata_version(dist_info), dist_info)


def obstacles(installation: Installation) -> Iterator[Obstacle]:
    """What makes this conn.py another than its version says."""
    mount = mounted_over(installation.conn, installation.package)
    if mount is not None:
        yield Obstacle(
            "conn-mounted",
            f"{mount} is a mount of its own inside SGLang's directory: this conn.py did not come with this version",
            "go by the verdicts, not by the version; run check where the servers run, with the same mounts",
        )
    if record_differs(installation):
        yield Obstacle(
            "conn-edited",
            f"{installation.conn} is not the file that was installed: its hash differs from the one in RECORD",
            "go by the verdicts, not by the version; ask whoever built the image what was changed, or reinstall SGLang",
        )


def record_differs(installation: Installation) -> bool:
    """Whether conn.py has another hash than the wheel's RECORD says. False where no RECORD lists it."""
    record = installation.dist_info / "RECORD" if installation.dist_info else None
    if record is None or installation.dist_info is None or not record.is_file():
        return False
    try:
        name = installation.conn.relative_to(installation.dist_info.parent).as_posix()
    except ValueError:
        return False
    with record.open(encoding="utf-8", newline="") as file:
        recorded = next((row[1] for row in csv.reader(file) if row and row[0] == name and len(row) > 1), "")
    algorithm, _, expected = recorded.partition("=")
    if algorithm != "sha256" or not expected:
        return False
    digest = hashlib.sha256(installation.conn.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != expected


def mounted_over(conn: Path, package: Path, mountinfo: str = "/proc/self/mountinfo") -> Path | None:
    """The mount point, if conn.py or a directory between it and SGLang's own is one."""
    conn, package = conn.resolve(), package.resolve()
    candidates = {str(conn), *(str(parent) for parent in conn.parents if package in parent.parents)}
    try:
        lines = Path(mountinfo).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    points = {_unescaped(fields[4]) for line in lines if len(fields := line.split(" ")) > 4}
    found = sorted(candidates & points, key=len)
    return Path(found[-1]) if found else None


def _unescaped(text: str) -> str:
    """A mount point of mountinfo, where blanks and backslashes are octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _importable() -> Path:
    from importlib.util import find_spec

    spec = find_spec("sglang")  # asks the finders, of editable installations too, and imports nothing
    locations = [Path(location) for location in (spec.submodule_search_locations or ())] if spec else []
    if not locations:
        raise NotFound(f"this Python ({sys.executable}) has no SGLang; name one with --sglang PATH")
    return next((location for location in locations if (location / _CONN).is_file()), locations[0])


def _below(path: Path) -> Path:
    """The package at ``path``: itself, or in site-packages, or in a checkout."""
    for candidate in (path, path / "sglang", path / "python" / "sglang"):
        if (candidate / "srt").is_dir():
            return candidate.resolve()
    raise NotFound(f"there is no SGLang in {path}: neither srt/, nor sglang/srt/, nor python/sglang/srt/")


def _metadata(directory: Path) -> list[Path]:
    return [
        found
        for pattern in ("sglang-*.dist-info", "sglang-*.egg-info", "sglang.egg-info")
        for found in sorted(directory.glob(pattern))
    ]


def _metadata_version(dist_info: Path | None) -> str | None:
    if dist_info is None:
        return None
    for name in ("METADATA", "PKG-INFO"):
        found = _search(dist_info / name, r"^Version: *(\S+)")
        if found:
            return found
    return None


def _written_version(package: Path) -> str | None:
    for name in ("_version.py", "version.py"):
        found = _search(package / name, r"""^__version__ *(?:= *version *)?= *["']([^"']+)["']""")
        if found:
            return found
    return None


def _search(path: Path, pattern: str) -> str | None:
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None
