"""``check --pid``: on real child processes, and on /proc entries of kinds that this machine does not have at will."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from installations import TOGGLE, Made, check, python_of

from sglang_dsv4_hotfix.check import process

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(made: Made) -> Iterator[Start]:
    """Starts the virtual environment's Python with some code, and returns once that has run."""
    children: list[subprocess.Popen[str]] = []

    def run(code: str, *options: str, **env: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [
                python_of(made.venv()),
                *options,
                "-c",
                f"{code}\nprint('ready', flush=True)\nimport sys; sys.stdin.read()",
            ],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield run
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def load_engine(tmp_path: Path) -> str:
    """Code that maps a file where Mooncake's engine would be: all that can be seen of it from outside."""
    engine = tmp_path / "mooncake" / "engine.so"
    engine.parent.mkdir()
    engine.write_bytes(bytes(4096))
    return (
        f"import mmap; file = open({str(engine)!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
    )


def test_with_toggle_wrapt_and_mooncake(made: Made, start: Start, load_engine: str) -> None:
    child = start(f"{load_engine}import wrapt", **{TOGGLE: "1"})

    checked = check(python_of(made.venv()), "--json", "--pid", str(child.pid))

    assert checked.code == 0
    found = checked.data
    assert found["pid"] == child.pid
    assert found["toggle"]["value"] == "1"
    assert found["toggle"]["from_pid"] == child.pid
    assert "/wrapt/" in found["libraries"]["wrapt"]
    assert any("another package" in limit for limit in found["cannot_know"])
    assert any("pure Python" in limit for limit in found["cannot_know"])
    assert "the hotfix is in. The proof" in found["conclusion"]


def test_with_toggle_and_wrapt(made: Made, start: Start) -> None:
    """A server that is starting, or a process that has its own use for wrapt."""
    child = start("import wrapt", **{TOGGLE: "1"})

    checked = check(python_of(made.venv()), "--json", "--pid", str(child.pid))

    assert checked.code == 2
    assert checked.data["conclusion"].startswith("Can't tell yet: the toggle is on and wrapt is loaded")


def test_without_toggle(made: Made, start: Start) -> None:
    child = start("import wrapt")

    checked = check(python_of(made.venv()), "--json", "--pid", str(child.pid))

    assert checked.code == 1
    assert checked.data["toggle"]["value"] is None
    assert "SGLANG_DSV4_HOTFIX was not set where it was started" in checked.data["conclusion"]


def test_with_another_toggle(made: Made, start: Start) -> None:
    child = start("", **{TOGGLE: "maybe"})

    checked = check(python_of(made.venv()), "--json", "--pid", str(child.pid))

    assert checked.code == 1
    assert "SGLANG_DSV4_HOTFIX was 'maybe' (not understood) where it" in checked.data["conclusion"]


def test_before_conn_is_imported(made: Made, start: Start) -> None:
    child = start("", "-E", "-Ws", "-s", **{TOGGLE: "1"})

    checked = check(python_of(made.venv()), "--json", "--pid", str(child.pid))

    assert checked.code == 2
    assert checked.data["libraries"] == {}
    assert checked.data["flags"][0] == "-E"
    assert "-s" in checked.data["flags"]
    assert "has not imported conn.py" in checked.data["conclusion"]


def test_a_real_import_of_conn(made: Made, start: Start, editable_sglang: Path) -> None:
    """What the conclusion rests on: with the toggle on, the import of conn.py is what loads wrapt."""
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(editable_sglang)!r})\n"
        "try:\n    import sglang.srt.disaggregation.mooncake.conn\nexcept ImportError: pass\n"
    )
    # The copy lacks most of SGLang; the hook is registered before the module is executed.
    child, other = start(code, **{TOGGLE: "1"}), start(code)

    checked = check(python_of(made.venv()), "--json", "--pid", str(child.pid))
    unset = check(python_of(made.venv()), "--json", "--pid", str(other.pid))

    assert "/wrapt/" in checked.data["libraries"]["wrapt"]
    assert unset.data["libraries"] == {}


def test_text(made: Made, start: Start, load_engine: str) -> None:
    child = start(f"{load_engine}import wrapt", **{TOGGLE: "1"})

    checked = check(python_of(made.venv()), "--pid", str(child.pid))

    lines = checked.out.splitlines()
    assert lines[0].startswith(f"Process     {child.pid}: ")
    assert "Toggle      on: SGLANG_DSV4_HOTFIX was '1'" in lines
    assert any(line.startswith("Verdict: The toggle is on, wrapt and Mooncake's engine are loaded") for line in lines)
    assert all(len(line) <= 100 or len(line.split()) <= 3 for line in lines)


def test_no_such_process(made: Made, start: Start) -> None:
    child = start("")
    child.kill()
    child.wait()

    text = check(python_of(made.venv()), "--pid", str(child.pid))
    as_json = check(python_of(made.venv()), "--json", "--pid", str(child.pid))

    assert text.code == as_json.code == 2
    assert text.out == ""
    assert text.err == f"sglang-dsv4-hotfix: there is no process {child.pid} here, or it has just ended\n"
    assert as_json.data["problem"] == f"there is no process {child.pid} here, or it has just ended"


def test_zombie(made: Made, start: Start) -> None:
    child = start("")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    checked = check(python_of(made.venv()), "--pid", str(child.pid))

    assert checked.code == 2
    assert checked.err.count("\n") == 1
    assert "has ended and waits for its parent to notice" in checked.err


# Entries of /proc that are made up


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(process, "_PROC", tmp_path)

    def write(
        pid: int,
        parent: int = 0,
        environ: bytes = b"",
        cmdline: bytes = b"python\0",
        maps: str = "",
        exe: str = "/python",
    ) -> int:
        directory = tmp_path / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "environ").write_bytes(environ)
        (directory / "cmdline").write_bytes(cmdline)
        (directory / "maps").write_text(maps)
        (directory / "stat").write_text(f"{pid} (py) thon) S {parent} 1 1 0")
        (directory / "exe").symlink_to(exe)
        for number, target in enumerate(("/dev/null", "/logs/out", "/logs/out")):
            (directory / "fd" / str(number)).symlink_to(target)
        return pid

    return write


def mapped(path: str) -> str:
    return f"7f0000000000-7f0000001000 r-xp 00000000 00:21 1234                       {path}\n"


WRAPT = mapped("/venv/lib/python3.12/site-packages/wrapt/_wrappers.cpython-312-x86_64-linux-gnu.so")
MOONCAKE = mapped("/venv/lib/python3.12/site-packages/mooncake/engine.cpython-312-x86_64-linux-gnu.so")
ON = b"PATH=/bin\0SGLANG_DSV4_HOTFIX=1\0"


def test_title_over_the_environment(proc: Callable[..., int]) -> None:
    """What setproctitle leaves: SGLang's schedulers. The server that starts them hands on its environment."""
    server = proc(10, parent=1, environ=ON)
    scheduler = proc(
        11, parent=server, environ=b"\0" * 99, cmdline=b"sglang::scheduler_TP0\0\0\0", maps=WRAPT + MOONCAKE
    )

    found = process.look(scheduler)

    assert found.ancestor == server
    assert found.toggle == "1"
    assert found.exit_code == 0
    assert any("title of its own" in limit and str(server) in limit for limit in found.cannot_know())
    assert found.command == ["sglang::scheduler_TP0"]
    assert found.output == ["/logs/out"]


def test_title_and_a_shell_above(proc: Callable[..., int]) -> None:
    """A shell may have set the variable for this one command: its own environment tells nothing."""
    shell = proc(10, environ=b"PATH=/bin\0", exe="/bin/sh")

    found = process.look(proc(11, parent=shell, environ=b"\0" * 99, maps=WRAPT))

    assert found.environment is None
    assert found.exit_code == 2
    assert "has written its title over its environment" in found.conclusion()
    assert found.toggle_row() == "not known"
    assert found.data()["toggle"] is None


def test_title_and_somebody_elses_process_above(proc: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler whose launcher is gone has process 1 above it, which may not be looked into."""
    first = proc(1)
    scheduler = proc(11, parent=first, environ=b"\0" * 99, maps=WRAPT + MOONCAKE)
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.parts[-2:] == ("1", "environ"):
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)

    assert "has written its title over its environment" in process.look(scheduler).conclusion()


def test_no_python(proc: Callable[..., int]) -> None:
    found = process.look(proc(11, environ=b"PATH=/bin\0", exe="/bin/bash"))

    assert found.exit_code == 2
    assert found.conclusion() == "Can't tell: /bin/bash is no Python. Look at the scheduler processes of SGLang."


def test_some_of_the_fixes(proc: Callable[..., int]) -> None:
    found = process.look(proc(11, environ=b"SGLANG_DSV4_HOTFIX=stride, status\0", maps=WRAPT + MOONCAKE))

    assert found.exit_code == 0
    assert "the hotfix is in, and only stride, status of it. The proof" in found.conclusion()


def test_without_site(proc: Callable[..., int]) -> None:
    found = process.look(proc(11, environ=ON, cmdline=b"python\0-S\0serve.py\0", maps=WRAPT + MOONCAKE))

    assert found.exit_code == 2
    assert "was started with -S" in found.conclusion()


def test_transfers_unpatched(proc: Callable[..., int]) -> None:
    found = process.look(proc(11, environ=ON, maps=MOONCAKE))

    assert found.exit_code == 1
    assert "the hotfix has not acted" in found.conclusion()


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("python -m sglang.launch_server -S", []),
        ("python -I -m sglang.launch_server", ["-I"]),
        ("python -SEm sglang.launch_server", ["-S", "-E"]),
        ("python -X utf8 -W ignore -s serve.py", ["-s"]),
        ("python -c -S", []),
        ("sglang::scheduler", []),
    ],
)
def test_flags(proc: Callable[..., int], command: str, flags: list[str]) -> None:
    found = process.look(proc(11, environ=ON, cmdline=command.replace(" ", "\0").encode() + b"\0"))

    assert found.flags == flags


def test_somebody_elses(
    proc: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = proc(11, environ=ON)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)

    assert process.main(pid, as_json=False) == 2
    assert capsys.readouterr().err == (
        "sglang-dsv4-hotfix: process 11 belongs to somebody else: run this as the same user, or as root\n"
    )
    assert process.main(pid, as_json=True) == 2
    assert json.loads(capsys.readouterr().out)["problem"].startswith("process 11 belongs to somebody else")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become somebody else")
def test_somebody_elses_for_real() -> None:
    """A process of another user, as the kernel refuses it: the child that asks is nobody, and asks for this one."""
    code = (
        "import os\n"
        "from sglang_dsv4_hotfix.check import process\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"raise SystemExit(process.main({os.getpid()}, False))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(process.__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 2, done.stderr
    assert "belongs to somebody else" in done.stderr
