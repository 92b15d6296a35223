"""Like probe_start.py, for a real scalar build: one call of its maybe_send_extra with state of type "dsv4".

    probe_real.py [--before CODE] [--after CODE]

Prints as its last line a JSON object: ``conn`` (its file), ``status``, ``verdicts``, ``wrappers``, ``layers`` and
``found`` as in probe_start.py, ``sent`` (the calls that reached the build's generic sender), and ``log`` (our records).
"""

import argparse
import importlib
import json
import logging
import sys

import probe_start

TARGET = probe_start.TARGET


class Anything:
    def __init__(self, **known):
        self.__dict__.update(known)


def call(conn):
    """The build's own method, on a manager that was not set up: its generic sender only takes notes."""
    sent = []

    class Manager(conn.MooncakeKVManager):
        def __init__(self):
            self.kv_args = Anything(state_type="dsv4", state_data_ptrs=[4096], state_item_lens=[64])
            self.is_mla_backend = True
            self.attn_tp_size = 1
            self.pp_size = 1

        def _send_kvcache_generic(self, **arguments):
            sent.append(arguments["mooncake_session_id"])
            return 0

    request = Anything(room=1, mooncake_session_id="session", dst_state_indices=[0])
    registration = Anything(dst_state_item_lens=[64], dst_attn_tp_size=1, dst_state_data_ptrs=[8192])
    Manager().maybe_send_extra(request, [0], [8192], None, registration)
    return sent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", default="")
    parser.add_argument("--after", default="")
    arguments = parser.parse_args()
    log = []
    handler = logging.Handler()
    handler.emit = lambda record: log.append([record.levelname, record.getMessage()])
    logging.getLogger("sglang_dsv4_hotfix").addHandler(handler)
    logging.getLogger("sglang_dsv4_hotfix").setLevel("INFO")
    found = {}
    names = {"found": found, "sys": sys, "TARGET": TARGET}
    exec(arguments.before, names)
    conn = names["conn"] = importlib.import_module(TARGET)
    exec(arguments.after, names)
    package = sys.modules.get("sglang_dsv4_hotfix")
    status = package.status() if package else {"fixes": {}}
    method = vars(conn.MooncakeKVManager)["maybe_send_extra"]
    report = {
        "conn": conn.__file__,
        "status": status,
        "verdicts": {name: fix["verdict"] for name, fix in status["fixes"].items()},
        "wrappers": probe_start.wrappers(conn),
        "layers": len(probe_start.layers(method)),
        "sent": call(conn),
        "found": found,
        "log": log,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
