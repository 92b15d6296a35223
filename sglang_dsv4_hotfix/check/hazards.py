"""Faults of SGLang builds that no fix of this package mends, but a setting of the operator avoids.

Each is found by what stands in the build's files, not by its version. ``releases`` is for the reader: the PyPI releases
in which it was found that way (tests/check/test_check_hazards.py looks at all of them).
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..build import Unreadable, parameters
from ..ondisk import OnDiskBuild

_CP_VARIABLE = "SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER"
_RELEASE_VARIABLE = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"


class Hazard(NamedTuple):
    name: str
    releases: str
    #: The deployments that it concerns.
    when: str
    #: What happens.
    what: str
    #: What avoids it.
    do: str
    #: The environment variable that decides, if it is one.
    variable: str | None
    #: What in a build's directory shows it, in words; None where it is not there.
    detect: Callable[[Path, OnDiskBuild], str | None]


def _hisparse(package: Path, build: OnDiskBuild) -> str | None:
    """Prefill sends every KV buffer to one list of page indices, and decode's buffers need two (#31482, #31901).

    Decode with HiSparse registers host pages for the ratio-4 KV and device pages for the rest
    (disaggregation/decode.py). Their page numbers differ; send_kvcache takes the host's only, until 0.5.17 gives it
    ``dst_device_kv_indices``. 0.5.12 refuses such a request (hisparse_coordinator.py, NotImplementedError).
    """
    decode = _text(package / "srt" / "disaggregation" / "decode.py")
    if "c4_layer_num" not in decode or "hisparse_coordinator" not in decode:
        return None
    try:
        accepted = parameters(build.function("send_kvcache"))
    except Unreadable:
        return None
    if "dst_device_kv_indices" in accepted:
        return None
    return "decode registers host and device buffers, and send_kvcache has no parameter dst_device_kv_indices"


def _draft_tokens(package: Path, _: OnDiskBuild) -> str | None:
    """The kernel's write plan keeps 4 tokens of a verified batch at most (#34189, fixed in 0.5.18)."""
    for folder in ("jit_kernel", "kernels/jit"):
        plan = package / folder / "csrc" / "deepseek_v4" / "c_plan.cuh"
        match = re.search(r"kMaxMTPDraftTokens\s*=\s*(\d+)", _text(plan))
        if match:
            return f"{plan.relative_to(package)} has kMaxMTPDraftTokens = {match[1]}"
    return None


def _early_release(package: Path, _: OnDiskBuild) -> str | None:
    """Decode frees the pages of an aborted request while prefill may still write them (#35049, #37454).

    The variable that makes it wait came with 0.5.19 and is on by default from 0.5.21. Earlier builds free the pages as
    well, and have no setting for it.
    """
    match = re.search(rf"^\s+{_RELEASE_VARIABLE}\s*=\s*(\w+\(False\))", _environ(package), re.MULTILINE)
    return f"srt/environ.py has {_RELEASE_VARIABLE} = {match[1]}: off unless set" if match else None


def _cp_ranks(package: Path, _: OnDiskBuild) -> str | None:
    """Pages are split between CP ranks as if a request's page numbers were consecutive (#28718, fixed in 0.5.14).

    filter_kv_indices_for_cp_rank intersects page *numbers* with a range that starts at the smallest one and is as long
    as the chunk: pages outside of it are sent by no rank. Fixed by positions, for which it takes ``total_pages``.
    """
    if f"{_CP_VARIABLE} =" not in _environ(package):
        return None
    utils = package / "srt" / "disaggregation" / "utils.py"
    function = _function(_text(utils), "filter_kv_indices_for_cp_rank")
    if function is None or "total_pages" in {argument.arg for argument in function.args.args}:
        return None
    return "filter_kv_indices_for_cp_rank (disaggregation/utils.py) has no parameter total_pages"


HAZARDS = (
    Hazard(
        "hisparse",
        "0.5.13 to 0.5.16",
        "HiSparse on decode (--enable-hisparse) with DeepSeek-V4",
        "the indexer's and the ratio-128 KV of a request land in other pages of decode",
        "start decode without --enable-hisparse, or use 0.5.17 or later",
        None,
        _hisparse,
    ),
    Hazard(
        "draft-tokens",
        "0.5.12 to 0.5.17",
        "DeepSeek-V4 with more than 4 draft tokens, with or without disaggregation",
        "compressed state is computed from stale rows, silently",
        "keep --speculative-num-draft-tokens at 4 or less, or use 0.5.18 or later",
        None,
        _draft_tokens,
    ),
    Hazard(
        "early-release",
        "0.5.19 and 0.5.20 (builds before them have it too, without a setting)",
        "requests that are aborted or time out on decode during the transfer, any model",
        "decode reuses their pages while prefill still writes them: another request's KV is overwritten",
        f"set {_RELEASE_VARIABLE}=1 on prefill and decode, or use 0.5.21 or later",
        _RELEASE_VARIABLE,
        _early_release,
    ),
    Hazard(
        "cp-ranks",
        "0.5.10 to 0.5.13.post1",
        f"prefill with context parallelism and {_CP_VARIABLE}=1, any model",
        "pages of a request whose page numbers are not consecutive are sent by no rank",
        f"leave {_CP_VARIABLE} unset, or use 0.5.14 or later",
        _CP_VARIABLE,
        _cp_ranks,
    ),
)


def look(package: Path, build: OnDiskBuild) -> list[dict[str, str]]:
    """The hazards of the build in ``package``, as JSON data."""
    found = [(hazard, hazard.detect(package, build)) for hazard in HAZARDS]
    return [
        {
            "name": hazard.name,
            "when": hazard.when,
            "what": hazard.what,
            "do": hazard.do,
            "found": evidence + _here(hazard.variable),
            "releases": hazard.releases,
        }
        for hazard, evidence in found
        if evidence is not None
    ]


def _here(variable: str | None) -> str:
    """For a hazard that a variable decides: how it stands in this environment."""
    if variable is None:
        return ""
    value = os.environ.get(variable)
    return "; not set here" if value is None else f"; set to {value!r} here"


def _environ(package: Path) -> str:
    return _text(package / "srt" / "environ.py")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _function(source: str, name: str) -> ast.FunctionDef | None:
    """One function of a module, without parsing the rest of it."""
    start = source.find(f"\ndef {name}(") + 1
    end = re.compile(r"^\S", re.MULTILINE).search(source, source.find("):", start) + 1) if start else None
    # The closing line of a signature stands at the margin too.
    while end is not None and source[end.start()] == ")":
        end = re.compile(r"^\S", re.MULTILINE).search(source, end.start() + 1)
    if not start:
        return None
    try:
        statement = ast.parse(source[start : end.start() if end else None]).body[0]
    except (SyntaxError, IndexError):
        return None
    return statement if isinstance(statement, ast.FunctionDef) else None
