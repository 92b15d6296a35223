"""Runs in the process of one SGLang release: imports its Mooncake `conn.py` and says what became of it.

As a program, in the last line of stdout; the same from `report()`, in a process that has imported it before:
    conn      the file of conn.py
    loaded    modules of this package and of wrapt that were there once conn.py had been imported
    wrapped   attributes of the module's classes that wrapt has wrapped, as "Class.attribute", with the layers
    original  whether `MooncakeKVManager.maybe_send_extra` is a plain function that was compiled from conn.py
    early     what the build's own `envs` reads for the early send of cached prefixes; null without such a variable
    status    what `sglang_dsv4_hotfix.status()` says
"""

import importlib
import inspect
import json
import sys
from types import FunctionType, ModuleType
from typing import Any

EARLY_SEND = "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"


def wrapper_layers(attribute: Any) -> int:
    wrapt = sys.modules.get("wrapt")
    layers = 0
    # By the type: a wrapt wrapper says that it is a function, and a function dressed by functools has __wrapped__ too.
    while wrapt is not None and issubclass(type(attribute), wrapt.FunctionWrapper):
        layers += 1
        attribute = attribute.__wrapped__
    return layers


def wrapped_attributes(module: ModuleType) -> dict[str, int]:
    found = {}
    for class_name, cls in inspect.getmembers(module, inspect.isclass):
        for name, attribute in vars(cls).items():
            if layers := wrapper_layers(attribute):
                found[f"{class_name}.{name}"] = layers
    return found


def early_send() -> bool | None:
    environ = importlib.import_module("sglang.srt.environ")
    variable = getattr(environ.envs, EARLY_SEND, None)
    return None if variable is None else variable.get()


def report() -> dict[str, Any]:
    conn = importlib.import_module("sglang.srt.disaggregation.mooncake.conn")
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in ("sglang_dsv4_hotfix", "wrapt"))
    method = vars(conn.MooncakeKVManager)["maybe_send_extra"]

    from sglang_dsv4_hotfix import status

    return {
        "conn": conn.__file__,
        "loaded": loaded,
        "wrapped": wrapped_attributes(conn),
        "original": type(method) is FunctionType and method.__code__.co_filename == conn.__file__,
        "early": early_send(),
        "status": status(),
    }


if __name__ == "__main__":
    print(json.dumps(report()))
