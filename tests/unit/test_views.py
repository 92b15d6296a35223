from __future__ import annotations

from typing import Any

import pytest
import wrapt

from sglang_dsv4_hotfix.views import CallView, View


class Manager:
    def __init__(self) -> None:
        self.kv_args = "real"
        self.count = 0

    def read(self) -> str:
        return self.kv_args


def method_of_the_build(self: Manager) -> tuple[str, str]:
    self.count += 1
    return self.kv_args, self.read()


def test_a_call_sees_one_picture_and_the_object_stays_as_it_is() -> None:
    manager = Manager()
    assert method_of_the_build(View(manager, {"kv_args": "shown"})) == ("shown", "shown")
    assert manager.count == 1
    assert manager.kv_args == "real"
    assert manager.read() == "real"


def test_a_view_for_one_call_keeps_what_is_put_aside() -> None:
    manager = Manager()
    view = CallView(manager, {"kv_args": "shown"})
    view.cache = view.read()  # type: ignore[attr-defined]
    assert view.cache == "shown"  # type: ignore[attr-defined]
    assert not hasattr(manager, "cache")


def test_methods_of_every_kind() -> None:
    class Various(Manager):
        @staticmethod
        def static(value: str) -> str:
            return value

        @classmethod
        def of_class(cls) -> str:
            return cls.__name__

        @wrapt.decorator
        def loud(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            return wrapped(*args, **kwargs) + "!"

        @loud
        def wrapped(self) -> str:
            return self.kv_args

    manager = Various()
    manager.own = manager.read  # type: ignore[attr-defined]
    view = View(manager, {"kv_args": "shown"})
    assert view.static("given") == "given"
    assert view.of_class() == "Various"
    assert view.wrapped() == "shown!"
    assert view.own() == "real", "what somebody put on the object itself is theirs"


def test_it_has_the_class_of_what_it_shows() -> None:
    class Child(Manager):
        def read(self) -> str:
            return "child " + super().read()

    view = View(Child(), {"kv_args": "shown"})
    assert isinstance(view, Manager)
    assert Child.read(view) == "child shown"
    with pytest.raises(AttributeError):
        view.nothing  # noqa: B018
