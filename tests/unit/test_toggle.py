from __future__ import annotations

import pytest

from sglang_dsv4_hotfix import toggle


@pytest.mark.parametrize("value", [None, "", " ", "0", "false", "OFF", " No "])
def test_off(value: str | None) -> None:
    assert toggle.parse(value) == ()


@pytest.mark.parametrize("value", ["1", "true", "On", " YES "])
def test_on_is_every_fix(value: str) -> None:
    assert toggle.parse(value) == toggle.FIXES == ("dispatch", "stride", "status", "early_send")


def test_a_list_of_fixes_in_the_order_of_the_package() -> None:
    assert toggle.parse(" Status , dispatch ") == ("dispatch", "status")


@pytest.mark.parametrize("value", ["2", "enable", "dispatch,", "dispatch,strides", ",", "dispatch stride", "1,1"])
def test_anything_else_is_refused_by_name(value: str) -> None:
    with pytest.raises(ValueError, match="'"):
        toggle.parse(value)


def test_unknown_value_is_said_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(toggle.VARIABLE, "yess")
    monkeypatch.setattr(toggle, "_complained_about", None)
    assert toggle.enabled() == toggle.enabled() == ()
    assert capfd.readouterr().err == (
        "sglang_dsv4_hotfix: SGLANG_DSV4_HOTFIX='yess' is not understood (unknown: 'yess'); the hotfix stays off. "
        "Use 1, 0, or a comma-separated list of: dispatch, stride, status, early_send.\n"
    )
