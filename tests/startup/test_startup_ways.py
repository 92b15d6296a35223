"""The ways to install the package, each tried for real: activated, patched once, and gone without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import interpreters
import pytest
import standin_sglang
from interpreters import run
from laboratory import (
    OTHER_VERSION,
    REPOSITORY,
    WRAPT,
    Lab,
    copy_sources,
    look,
    make_venv,
    pip,
    python_of,
    site_packages,
)

#: For commands that start others.
PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def pythonpath(python: str | Path, package: Path) -> str:
    """What the command ``sglang-dsv4-hotfix path`` tells to put on PYTHONPATH for the package in ``package``."""
    ended = run([python, "-m", "sglang_dsv4_hotfix.cli", "path"], cwd=package)
    assert ended.code == 0, ended.err
    return ended.out.strip()


def uv(lab: Lab) -> Path:
    """The uv command, in an environment of its own."""
    name = interpreters.mine()

    def make(place: Path) -> None:
        make_venv(name, place)
        pip(place / "bin" / "python", "install", "uv")

    return lab.made("uv", make) / "bin" / "uv"


def in_namespace(*mounts: str) -> list[str]:
    """What to put before a command for it to run after ``mounts``, shell commands that it alone sees the effects of."""
    prefix = ["/usr/bin/unshare", "-m" if os.geteuid() == 0 else "-rm"]
    if run([*prefix, "/bin/true"]).code != 0:
        pytest.skip(
            "this machine does not allow mount namespaces: a read-only or system-wide installation is not tried"
        )
    return [*prefix, "/bin/sh", "-c", " && ".join([*mounts, 'exec "$0" "$@"'])]


def test_wheel(lab: Lab, name: str, tree: Path) -> None:
    report = look(lab.installed(name), "--tree", tree)

    assert report.patched
    assert report.ended.err == ""
    assert "/site-packages/" in report.seen["package"]


def test_wheel_has_its_start_up_files_at_the_top(lab: Lab) -> None:
    """The sitecustomize must not be among them: installers overwrite one that is there, and delete it later."""
    name = interpreters.mine()
    top = {path.name for path in site_packages(Path(lab.without_wrapt(name)).parents[1]).iterdir()}

    assert {entry for entry in top if not entry.endswith(".dist-info")} == {
        "sglang_dsv4_hotfix",
        "sglang_dsv4_hotfix.pth",
        "sglang_dsv4_hotfix.start",
    }


def test_editable(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    make_venv(name, venv)
    wheel, checkout = lab.editable_wheel()
    lab.install(name, venv, wheel)

    report = look(venv / "bin" / "python", "--tree", tree)

    assert report.patched
    assert report.ended.err == ""
    assert report.seen["package"] == str(checkout / "sglang_dsv4_hotfix" / "__init__.py")
    # For PYTHONPATH there is the checkout's own sitecustomize.
    assert pythonpath(venv / "bin" / "python", venv) == str(checkout)


def test_editable_by_pip_itself(lab: Lab, tree: Path, tmp_path: Path) -> None:
    """The whole command, once, and its reverse."""
    venv = tmp_path / "venv"
    make_venv(interpreters.mine(), venv)
    python = venv / "bin" / "python"
    pip(python, "install", WRAPT)
    checkout = copy_sources(tmp_path / "checkout")
    before = files(venv)
    pip(python, "install", "--no-deps", "-e", checkout)

    assert look(python, "--tree", tree).patched

    uninstall(python)
    assert {path for path in files(venv) - before if "wrapt" not in path} == set()


@pytest.mark.parametrize("options", [[], ["-s"], ["-P"]])
def test_target_on_pythonpath(lab: Lab, name: str, tree: Path, options: list[str]) -> None:
    if options == ["-P"] and name == "3.10":
        pytest.skip("Python 3.10 has no -P")
    target = lab.target(name)
    path = pythonpath(lab.empty(name), target)
    assert path == f"{target}/sglang_dsv4_hotfix/pythonpath:{target}"

    for python in (python_of(name), lab.empty(name)):
        report = look([python, *options], "--tree", tree, PYTHONPATH=path)

        assert report.patched
        assert report.ended.err == ""
        assert report.seen["package"] == str(target / "sglang_dsv4_hotfix" / "__init__.py")


@pytest.mark.parametrize("options", [["-I"], ["-E"]])
def test_target_is_not_seen_where_pythonpath_is_not(lab: Lab, name: str, tree: Path, options: list[str]) -> None:
    """Documented: these options leave out the PYTHON* variables, and with them a way in that rests on one."""
    path = pythonpath(lab.empty(name), lab.target(name))

    report = look([lab.empty(name), *options], "--tree", tree, PYTHONPATH=path)

    assert report.untouched
    assert report.seen["package"] is None


def test_target_alone_does_not_activate(lab: Lab, name: str, tree: Path) -> None:
    """Documented: Python reads no .pth file on PYTHONPATH, so the sitecustomize's directory has to be there too."""
    report = look(lab.empty(name), "--tree", tree, PYTHONPATH=lab.target(name))

    assert report.untouched
    assert report.seen["package"] is None


def test_half_of_pythonpath_is_said(lab: Lab, name: str, tree: Path) -> None:
    shipped = lab.target(name) / "sglang_dsv4_hotfix" / "pythonpath"

    on = look(lab.empty(name), "--tree", tree, PYTHONPATH=shipped)
    off = look(lab.empty(name), "--tree", tree, toggle=None, PYTHONPATH=shipped)

    assert on.untouched
    assert on.ended.err == (
        f"sglang_dsv4_hotfix: {shipped}/sitecustomize.py is on the path, but the package cannot be imported "
        "(ModuleNotFoundError: No module named 'sglang_dsv4_hotfix'); SGLang runs unpatched. Put the directory that "
        "holds sglang_dsv4_hotfix/ on PYTHONPATH too.\n"
    )
    assert off.ended.err == ""


def test_checkout_on_pythonpath(lab: Lab, name: str, tree: Path) -> None:
    """The clone itself, as it is, with wrapt from elsewhere."""
    report = look(lab.installed(name), "--tree", tree, PYTHONPATH=REPOSITORY, PYTHONDONTWRITEBYTECODE="1")

    assert report.patched
    assert report.seen["package"] == str(REPOSITORY / "sglang_dsv4_hotfix" / "__init__.py")


def test_target_on_a_read_only_mount(lab: Lab, name: str, tree: Path) -> None:
    target = lab.target(name)
    read_only = in_namespace(f"mount --bind {target} {target}", f"mount -o remount,ro,bind {target}")
    attempt = f"""if True:
        try:
            open({str(target / "sglang_dsv4_hotfix" / "new")!r}, "w")
        except OSError as error:
            found["write"] = error.strerror
    """
    path = f"{target}/sglang_dsv4_hotfix/pythonpath:{target}"

    report = look([*read_only, lab.empty(name)], "--tree", tree, "--before", attempt, PYTHONPATH=path, **PATH)

    assert report.seen["found"] == {"write": "Read-only file system"}
    assert report.patched
    assert report.ended.err == ""


def test_user_site(lab: Lab, tree: Path, tmp_path: Path) -> None:
    """Of the system's Python, as ``pip install --user`` does it; also seen from a virtual environment that sees it."""
    python = python_of("system")
    home = {"PYTHONUSERBASE": str(tmp_path / "user")}
    lab.install("system", python, "--user", "--break-system-packages", lab.wheel(), env=home)
    make_venv("system", tmp_path / "venv", "--system-site-packages")

    for command in ([python], [tmp_path / "venv" / "bin" / "python"]):
        report = look(command, "--tree", tree, **home)
        assert report.patched
        assert report.ended.err == ""
        assert report.seen["package"].startswith(str(tmp_path / "user"))
    # Documented: where Python leaves out the user site, the package is not there at all.
    for option in ("-s", "-I"):
        report = look([python, option], "--tree", tree, **home)
        assert report.untouched
        assert report.seen["package"] is None

    uninstall(python, "--break-system-packages", env=home)
    assert not [path for path in files(tmp_path / "user") if "dsv4" in path]


def test_system_wide(lab: Lab, tree: Path, tmp_path: Path) -> None:
    """Into the system's dist-packages, as in the official images, and out again; also seen from a virtual environment.

    In a mount namespace, so that nothing of it happens to this machine.
    """
    python = python_of("system")
    tell = "import sysconfig; print(sysconfig.get_path('purelib'), sysconfig.get_path('scripts'))"
    packages, scripts = map(Path, run([python, "-c", tell]).out.split())
    if not (packages.is_dir() and scripts.is_dir()):
        pytest.skip("the system's Python has no directory for packages: a system-wide installation is not tried")
    copies = [tmp_path / "packages", tmp_path / "scripts"]
    for copy in copies:
        copy.mkdir()
        (copy / "of somebody else").touch()
    system = in_namespace(
        *(f"mount --bind {copy} {real}" for copy, real in zip(copies, (packages, scripts), strict=True))
    )
    make_venv("system", tmp_path / "venv", "--system-site-packages")

    def call_pip(command: str, *arguments: str | Path) -> None:
        done = run([*system, sys.executable, "-m", "pip", "--python", python, command, *arguments], env=PATH)
        assert done.code == 0, done.err

    wheels = lab.wheels("system", WRAPT)
    call_pip("install", "--break-system-packages", "--no-index", "--find-links", wheels, lab.wheel())

    for command in (python, tmp_path / "venv" / "bin" / "python"):
        report = look([*system, command], "--tree", tree, **PATH)
        assert report.patched
        assert report.ended.err == ""
        assert report.seen["package"] == str(packages / "sglang_dsv4_hotfix" / "__init__.py")

    call_pip("uninstall", "-y", "--break-system-packages", "sglang-dsv4-hotfix")
    assert not [path for copy in copies for path in files(copy) if "dsv4" in path]


def test_venv_with_system_site_packages(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    """The package in the environment itself, on top of a base that has none of it."""
    make_venv(name, tmp_path / "venv", "--system-site-packages")
    lab.install(name, tmp_path / "venv", "--force-reinstall", lab.wheel())

    report = look(tmp_path / "venv" / "bin" / "python", "--tree", tree)

    assert report.patched
    assert report.ended.err == ""


def uninstall(python: str | Path, *options: str, env: dict[str, str] | None = None) -> None:
    pip(python, "uninstall", "-y", *options, "sglang-dsv4-hotfix", env=env)


def test_uninstalling_leaves_nothing(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    """Also of what running it has written: bytecode, which pip did not compile here."""
    venv = tmp_path / "venv"
    make_venv(name, venv)
    lab.install(name, venv, WRAPT)
    run([venv / "bin" / "python", "-c", "import wrapt"])
    before = files(venv)

    lab.install(name, venv, "--no-compile", lab.wheel())
    python = venv / "bin" / "python"
    assert look(python, "--tree", tree).patched
    assert look(python, "--tree", tree, PYTHONPATH=pythonpath(python, tmp_path)).patched
    assert run([venv / "bin" / "sglang-dsv4-hotfix", "--version"]).code == 0
    added = {path for path in files(venv) - before if "wrapt" not in path}
    assert any(path.endswith(".pth") for path in added)
    assert any("hook.cpython" in path for path in added)
    uninstall(python)

    assert {path for path in files(venv) - before if "wrapt" not in path} == set()
    assert look(python, "--tree", tree).untouched


def test_upgrade_and_downgrade_in_place(lab: Lab, tree: Path, tmp_path: Path) -> None:
    name = interpreters.mine()
    venv = tmp_path / "venv"
    make_venv(name, venv)
    current = lab.wheel().name.split("-")[1]
    lists = []
    for version, wheel in ((current, lab.wheel()), (OTHER_VERSION, lab.wheel(OTHER_VERSION)), (current, lab.wheel())):
        lab.install(name, venv, "--upgrade", wheel)

        report = look(venv / "bin" / "python", "--tree", tree)

        assert report.patched
        assert report.ended.err == ""
        assert report.seen["status"]["package"] == version
        lists.append({path for path in files(venv) if "dsv4" in path})
    assert lists[0] == lists[2]
    assert {path.replace(OTHER_VERSION, current) for path in lists[1]} == lists[0]


def test_uv(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    command = uv(lab)
    venv = tmp_path / "venv"
    python = venv / "bin" / "python"
    wheels = lab.wheels(name, WRAPT)

    def call(*arguments: str | Path) -> None:
        done = subprocess.run(
            [command, *arguments, "--offline", "--no-config"],
            env={"HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache"), **PATH},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    call("venv", "--python", python_of(name), venv)
    call("pip", "install", "--python", python, "--no-index", "--find-links", wheels, WRAPT)
    run([python, "-c", "import wrapt"])
    before = files(venv)
    call("pip", "install", "--python", python, "--no-index", "--find-links", wheels, lab.wheel())

    report = look(python, "--tree", tree)
    assert report.patched
    assert report.ended.err == ""

    call("pip", "uninstall", "--python", python, "sglang-dsv4-hotfix")
    assert {path for path in files(venv) - before if "wrapt" not in path} == set()


@pytest.mark.parametrize("layout", ["flat", "src"])
def test_sglang_itself_is_editable(lab: Lab, tmp_path: Path, layout: str) -> None:
    """As in the official images: SGLang is found by setuptools' own finder, or by a path in a .pth file."""
    name = interpreters.mine()
    source = tmp_path / "sglang-source"
    standin_sglang.write(source / "src" if layout == "src" else source)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=61"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "sglang"\nversion = "0.5.11"\n'
        f'[tool.setuptools.packages.find]\nwhere = ["{"src" if layout == "src" else "."}"]\n',
        encoding="utf-8",
    )
    venv = tmp_path / "venv"
    make_venv(name, venv)
    lab.install(name, venv, lab.wheel())
    pip(venv / "bin" / "python", "install", "--no-deps", "-e", source)
    finders = "found['finders'] = [getattr(finder, '__module__', '') for finder in sys.meta_path]"

    report = look(venv / "bin" / "python", "--before", finders)

    assert any("editable" in finder for finder in report.seen["found"]["finders"]) == (layout == "flat")
    assert report.patched
    assert report.seen["status"]["sglang"]["conn"].startswith(str(source))
    assert report.ended.err == ""
