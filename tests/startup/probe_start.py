"""Runs in the interpreter that is looked at; prints what it found as one JSON object, the last line of stdout.

    probe_start.py [--tree DIR] [--before CODE] [--after CODE] [--stay-away] [--no-status]

Imports SGLang's Mooncake module, from DIR if given, unless told to stay away from it. CODE runs before and after that
and may put things into ``found``. The object has:

    started_with   sys.modules as this file met it
    error          what the import raised, if it did
    wrappers       our layers around the manager's methods, by method
    layers         everybody's layers around maybe_send_extra
    sent           how often a stand-in sends DeepSeek-V4's state for one request: 1 with the hotfix, 0 without
    status         what sglang_dsv4_hotfix.status() says, unless it is not to be asked; null when nobody has imported it
    package        the file of sglang_dsv4_hotfix; null likewise
    found          what CODE has put there
"""

import sys

STARTED_WITH = sorted(sys.modules)

TARGET = "sglang.srt.disaggregation.mooncake.conn"


def layers(attribute):
    """The chain of wrappers, from outside in, without the innermost function."""
    chain = []
    while hasattr(attribute, "__wrapped__"):
        chain.append(attribute)
        attribute = attribute.__wrapped__
    return chain


def is_ours(layer):
    wrapper = getattr(layer, "_self_wrapper", None)
    return str(getattr(wrapper, "__module__", None)).startswith("sglang_dsv4_hotfix")


def methods_of(conn):
    manager = getattr(conn, "MooncakeKVManager", None)
    return vars(manager) if isinstance(manager, type) else {}


def wrappers(conn):
    methods = methods_of(conn)
    return {
        name: sum(map(is_ours, layers(methods[name]))) for name in ("maybe_send_extra", "send_aux") if name in methods
    }


def send(conn, state_type="dsv4"):
    """One request through the stand-in's transfer_worker. Returns how often the generic sender was called."""
    if not hasattr(conn, "Request"):
        return None
    try:
        manager = conn.MooncakeKVManager(state_type)
        manager.transfer_worker([conn.Request()])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return len(manager.sent)


def main():
    import argparse
    import importlib
    import json

    parser = argparse.ArgumentParser()
    parser.add_argument("--tree")
    parser.add_argument("--before", default="")
    parser.add_argument("--after", default="")
    parser.add_argument("--stay-away", action="store_true")
    parser.add_argument("--no-status", action="store_true")
    arguments = parser.parse_args()
    if arguments.tree:
        sys.path.insert(0, arguments.tree)
    found = {}
    names = {"found": found, "sys": sys, "layers": layers, "wrappers": wrappers, "send": send, "conn": None}
    exec(arguments.before, names)
    error = None
    if not arguments.stay_away:
        try:
            names["conn"] = importlib.import_module(TARGET)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    exec(arguments.after, names)
    conn = names["conn"]
    package = sys.modules.get("sglang_dsv4_hotfix")
    report = {
        "started_with": STARTED_WITH,
        "error": error,
        "wrappers": wrappers(conn),
        "layers": len(layers(methods_of(conn).get("maybe_send_extra"))),
        "sent": send(conn),
        "status": package.status() if package and not arguments.no_status else None,
        "package": package.__file__ if package else None,
        "found": found,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
