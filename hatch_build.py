"""Build hook: an editable install gets the start-up files alone.

Without it hatchling puts everything that pyproject.toml force-includes into site-packages, pythonpath/sitecustomize.py
with it, although the package itself is elsewhere: a half directory of its name, which outlives the uninstall.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StartUpFiles(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # Read for editable wheels only, in place of force-include.
        build_data["force_include_editable"] = {
            source: target
            for source, target in self.build_config.get_force_include().items()
            if target.startswith("sglang_dsv4_hotfix.")
        }
