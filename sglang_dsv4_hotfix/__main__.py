"""``python -m sglang_dsv4_hotfix``: the command, where its script is not on PATH (``pip install --target``)."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
