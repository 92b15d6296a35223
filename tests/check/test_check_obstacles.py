"""Each obstacle, provoked for real: an interpreter in that state runs the command and says what stands in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from installations import (
    CONN,
    REPOSITORY,
    TOGGLE,
    Checked,
    Made,
    base_python,
    check,
    python_of,
    site_packages,
    user_site,
)

from sglang_dsv4_hotfix.check import ways

ON = {TOGGLE: "1"}


def names(checked: Checked) -> list[str]:
    return [obstacle["name"] for obstacle in checked.data["obstacles"]]


def working(checked: Checked) -> list[str]:
    return [way["name"] for way in checked.data["ways"] if way["works"]]


@pytest.fixture
def own_venv(made: Made, tmp_path: Path) -> Path:
    return made.make_venv(tmp_path / "venv")


@pytest.fixture
def without_pth(own_venv: Path) -> Path:
    (site_packages(own_venv) / "sglang_dsv4_hotfix.pth").unlink()
    return own_venv


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Somebody else's sitecustomize, which does not run the one that it shadows."""
    directory = tmp_path / "foreign"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text("", encoding="utf-8")
    return directory


def shipped(directory: Path) -> str:
    """What puts our sitecustomize.py on the path for a package in ``directory``."""
    return f"{directory / 'sglang_dsv4_hotfix' / 'pythonpath'}{os.pathsep}{directory}"


def test_none(made: Made, sglang: Path) -> None:
    checked = check(python_of(made.venv()), "--json", "--sglang", sglang, **ON)

    assert names(checked) == []
    assert working(checked) == ["pth", "plugin"]
    assert checked.code == 0


def test_sitecustomize_is_a_way_in(made: Made, sglang: Path) -> None:
    checked = check(base_python(), "--json", "--sglang", sglang, PYTHONPATH=shipped(made.target()), **ON)

    assert names(checked) == []
    assert working(checked) == ["sitecustomize", "plugin"]
    assert checked.code == 0


def test_pth_missing(without_pth: Path, sglang: Path) -> None:
    checked = check(python_of(without_pth), "--json", "--sglang", sglang, **ON)

    assert names(checked) == ["pth-missing", "plugin-only"]
    assert str(site_packages(without_pth)) in checked.obstacles["pth-missing"]["found"]
    # SGLang's framework would still start it, in most processes.
    assert working(checked) == ["plugin"]
    assert checked.code == 0


def test_plugins_left_out(without_pth: Path, sglang: Path) -> None:
    checked = check(python_of(without_pth), "--json", "--sglang", sglang, SGLANG_PLUGINS="other, another", **ON)

    assert names(checked) == ["pth-missing", "plugins-left-out"]
    assert working(checked) == []
    assert checked.data["active"] is False
    assert checked.code == 1
    assert "remove the obstacles above (pth-missing, plugins-left-out)" in checked.data["conclusion"]


@pytest.mark.parametrize("plugins", ["", "other,sglang_dsv4_hotfix"])
def test_plugins_not_left_out(without_pth: Path, sglang: Path, plugins: str) -> None:
    checked = check(python_of(without_pth), "--json", "--sglang", sglang, SGLANG_PLUGINS=plugins, **ON)

    assert working(checked) == ["plugin"]


def test_plugins_do_not_matter_beside_the_pth(made: Made, sglang: Path) -> None:
    checked = check(python_of(made.venv()), "--json", "--sglang", sglang, SGLANG_PLUGINS="other", **ON)

    assert names(checked) == []
    assert checked.code == 0


def test_no_plugin_framework(without_pth: Path, tmp_path: Path) -> None:
    import environments

    site = environments.release_directory("0.5.9")
    checked = check(python_of(without_pth), "--json", "--sglang", site, **ON)

    assert working(checked) == []
    assert names(checked) == ["pth-missing"]
    assert checked.code == 1


def test_no_site(own_venv: Path, sglang: Path) -> None:
    path = site_packages(own_venv)

    checked = check(
        [python_of(own_venv), "-S"], "--json", "--sglang", sglang, PYTHONPATH=path, SGLANG_PLUGINS="x", **ON
    )

    assert names(checked) == ["no-site"]
    assert checked.code == 1


def test_target_directory(made: Made, sglang: Path) -> None:
    checked = check(base_python(), "--json", "--sglang", sglang, PYTHONPATH=made.target(), SGLANG_PLUGINS="x", **ON)

    assert names(checked) == ["pth-not-read", "plugins-left-out"]
    assert str(made.target()) in checked.obstacles["pth-not-read"]["found"]
    assert checked.code == 1


def test_plain_directory(made: Made, sglang: Path, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "sglang_dsv4_hotfix", tmp_path / "sglang_dsv4_hotfix")
    path = f"{tmp_path}{os.pathsep}{made.target()}"  # wrapt is in the second one, and so is another copy

    checked = check(base_python(), "--json", "--sglang", sglang, PYTHONPATH=path, SGLANG_PLUGINS="x", **ON)

    assert names(checked) == ["installed-twice", "not-installed", "plugins-left-out"]


def test_user_site_is_read(made: Made, sglang: Path) -> None:
    checked = check(base_python(), "--json", "--sglang", sglang, PYTHONUSERBASE=made.user_base(), **ON)

    assert names(checked) == []
    assert working(checked)[0] == "pth"
    assert checked.code == 0


def test_user_site_disabled(made: Made, sglang: Path) -> None:
    base = made.user_base()
    env: dict[str, str | Path] = {"PYTHONUSERBASE": base, "PYTHONPATH": user_site(base), "SGLANG_PLUGINS": "x", **ON}

    flag = check([base_python(), "-s"], "--json", "--sglang", sglang, **env)
    variable = check(base_python(), "--json", "--sglang", sglang, PYTHONNOUSERSITE="1", **env)

    for checked in (flag, variable):
        assert names(checked)[0] == "user-site-disabled"
        assert "PYTHONNOUSERSITE" in checked.obstacles["user-site-disabled"]["found"]
        assert checked.code == 1


def test_user_site_in_a_virtual_environment(made: Made, without_pth: Path, sglang: Path) -> None:
    checked = check(python_of(without_pth), "--json", "--sglang", sglang, PYTHONUSERBASE=made.user_base(), **ON)

    assert "virtual environment" in checked.obstacles["user-site-disabled"]["found"]


def test_pythonpath_ignored(made: Made, without_pth: Path, sglang: Path) -> None:
    for flag in ("-E", "-I"):
        checked = check(
            [python_of(without_pth), flag], "--json", "--sglang", sglang, PYTHONPATH=shipped(made.target()), **ON
        )

        assert names(checked) == ["pythonpath-ignored", "pth-missing", "plugin-only"]


def test_sitecustomize_hidden(made: Made, foreign: Path, sglang: Path) -> None:
    path = f"{foreign}{os.pathsep}{shipped(made.target())}"

    checked = check(base_python(), "--json", "--sglang", sglang, PYTHONPATH=path, SGLANG_PLUGINS="x", **ON)

    assert names(checked)[0] == "sitecustomize-hidden"
    assert str(foreign) in checked.obstacles["sitecustomize-hidden"]["found"]
    assert checked.code == 1


def test_sitecustomize_that_runs_the_one_it_shadows(made: Made, foreign: Path, sglang: Path) -> None:
    """What tracers do. With the toggle on it is seen that ours has run."""
    ours = made.target() / "sglang_dsv4_hotfix" / "pythonpath" / "sitecustomize.py"
    (foreign / "sitecustomize.py").write_text(f"exec(open({str(ours)!r}).read(), {{'__file__': {str(ours)!r}}})\n")
    path = f"{foreign}{os.pathsep}{shipped(made.target())}"

    checked = check(base_python(), "--json", "--sglang", sglang, PYTHONPATH=path, SGLANG_PLUGINS="x", **ON)

    assert names(checked) == []
    assert working(checked) == ["other"]
    assert checked.code == 0


def test_foreign_sitecustomize_behind_ours(made: Made, foreign: Path, sglang: Path) -> None:
    path = f"{shipped(made.target())}{os.pathsep}{foreign}"

    checked = check(base_python(), "--json", "--sglang", sglang, PYTHONPATH=path, **ON)

    assert names(checked) == []
    assert checked.code == 0


def test_wrapt_missing(made: Made, tmp_path: Path, sglang: Path) -> None:
    venv = made.make_venv(tmp_path / "venv", wrapt=None)

    checked = check(python_of(venv), "--json", "--sglang", sglang, **ON)

    assert names(checked) == ["wrapt"]
    assert "No module named 'wrapt'" in checked.obstacles["wrapt"]["found"]
    assert checked.obstacles["wrapt"]["do"] == "Run: pip install 'wrapt>=1.15,<3'"
    assert checked.data["active"] is False
    assert checked.code == 1


def test_wrapt_too_old(made: Made, tmp_path: Path, sglang: Path) -> None:
    venv = made.make_venv(tmp_path / "venv", wrapt="wrapt==1.14.2")

    checked = check(python_of(venv), "--json", "--sglang", sglang, **ON)

    assert names(checked) == ["wrapt"]
    assert checked.obstacles["wrapt"]["found"] == "wrapt 1.14.2 does not fit"
    assert checked.code == 1


def test_toggle_unknown(made: Made, sglang: Path) -> None:
    checked = check(python_of(made.venv()), "--json", "--sglang", sglang, **{TOGGLE: "ja"})

    assert names(checked) == ["toggle-unknown"]
    assert checked.data["toggle"] == {"value": "ja", "enabled": []}
    assert checked.code == 1


def test_not_activated(own_venv: Path, sglang: Path) -> None:
    (site_packages(own_venv) / "zz.pth").write_text(
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'hotfix' not in type(f).__module__]\n"
    )
    for file in site_packages(own_venv).glob("*.pth"):
        assert file.name in ("sglang_dsv4_hotfix.pth", "zz.pth")

    checked = check(python_of(own_venv), "--json", "--sglang", sglang, **ON)

    assert names(checked) == ["not-activated"]
    assert checked.code == 1


def test_installed_twice(made: Made, sglang: Path) -> None:
    checked = check(python_of(made.venv()), "--json", "--sglang", sglang, PYTHONPATH=made.target(), **ON)

    assert names(checked) == ["installed-twice"]
    found = checked.obstacles["installed-twice"]["found"]
    assert str(made.target()) in found
    assert str(made.venv()) in found


def test_conn_edited(made: Made, editable_sglang: Path) -> None:
    before = check(python_of(made.venv()), "--json", "--sglang", editable_sglang, **ON)
    conn = editable_sglang / CONN
    conn.write_text(conn.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")

    after = check(python_of(made.venv()), "--json", "--sglang", editable_sglang, **ON)

    assert names(before) == []
    assert names(after) == ["conn-edited"]
    assert after.data["fixes"] == before.data["fixes"]
    assert after.code == 0


def test_conn_mounted(made: Made, editable_sglang: Path, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not allow mount namespaces; the reader of mountinfo is tested without one")
    other = tmp_path / "conn.py"
    shutil.copy(editable_sglang / CONN, other)
    command = ["unshare", "-m", "sh", "-c", f'mount --bind {other} {editable_sglang / CONN} && exec "$0" "$@"']

    checked = check([*command, python_of(made.venv())], "--json", "--sglang", editable_sglang, PATH=os.environ["PATH"])

    assert names(checked) == ["conn-mounted"]
    assert str(editable_sglang / CONN) in checked.obstacles["conn-mounted"]["found"]


def test_mountinfo(tmp_path: Path) -> None:
    from sglang_dsv4_hotfix.check import locate

    package = tmp_path / "my trees" / "sglang"
    conn = package / "srt" / "conn.py"
    conn.parent.mkdir(parents=True)
    conn.touch()
    mountinfo = tmp_path / "mountinfo"

    def mounted(point: Path) -> Path | None:
        escaped = str(point).replace(" ", r"\040")
        mountinfo.write_text(f"22 1 0:21 / / rw - overlay overlay rw\n36 22 0:32 /x {escaped} rw - ext4 /dev/x rw\n")
        return locate.mounted_over(conn, package, str(mountinfo))

    assert mounted(conn) == conn
    assert mounted(conn.parent) == conn.parent
    # A whole tree on a volume is nothing unusual.
    assert mounted(package) is None
    assert mounted(tmp_path) is None


def test_the_mark_is_that_of_our_sitecustomize() -> None:
    text = (REPOSITORY / "sitecustomize.py").read_bytes()

    assert ways.SITECUSTOMIZE_MARK in text[:1024]
    assert f"_MARK = b{ways.SITECUSTOMIZE_MARK.decode()!r}".replace("'", '"').encode() in text
