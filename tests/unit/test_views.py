from __future__ import annotations

import pytest

from sglang_dsv4_hotfix.views import View


class Manager:
    def __init__(self) -> None:
        self.kv_args = "real"
        self.count = 0

    def read(self) -> str:
        return self.kv_args


def method_of_the_build(self: Manager) -> tuple[str, str]:
    self.count += 1
    return self.kv_args, self.read()


def test_only_the_code_that_was_handed_the_view_sees_it() -> None:
    manager = Manager()
    assert method_of_the_build(View(manager, {"kv_args": "shown"})) == ("shown", "real")
    assert manager.count == 1
    assert manager.kv_args == "real"


def test_it_has_the_class_of_what_it_shows() -> None:
    class Child(Manager):
        def read(self) -> str:
            return "child " + super().read()

    view = View(Child(), {"kv_args": "shown"})
    assert isinstance(view, Manager)
    assert Child.read(view) == "child shown"
    with pytest.raises(AttributeError):
        view.nothing  # noqa: B018
