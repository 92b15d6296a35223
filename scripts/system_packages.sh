#!/bin/sh
# system_packages.sh PYTHON
# Sees to what pip cannot install: the shared libraries that Mooncake's engine links to, and ensurepip, which Debian and
# Ubuntu keep in a package of its own. Installs only what is missing, and only where it may without asking.
set -eu
python=${1:?usage: system_packages.sh PYTHON}

if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'; then
    echo "$python is missing or not a Python 3.10 to 3.13; name one with: make PYTHON=..." >&2
    exit 1
fi

# By loading and importing, not by asking dpkg: what counts is whether this interpreter finds them.
missing=$("$python" - <<'EOF'
import ctypes
import importlib.util
import sys

packages = []
for library, package in (("libibverbs.so.1", "libibverbs1"), ("librdmacm.so.1", "librdmacm1"), ("libnuma.so.1", "libnuma1")):
    try:
        ctypes.CDLL(library)
    except OSError:
        packages.append(package)
if importlib.util.find_spec("ensurepip") is None:
    packages.append(f"python{sys.version_info.major}.{sys.version_info.minor}-venv")
print(*packages)
EOF
)
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "Missing, by their Debian names: $missing. There is no apt-get here; please install them and run make again." >&2
    exit 1
elif [ "$(id -u)" -eq 0 ]; then
    as_root=
elif sudo -n true 2>/dev/null; then
    as_root=sudo
else
    echo "Missing: $missing. Please run: sudo apt-get install $missing" >&2
    exit 1
fi

echo "Installing $missing"
$as_root apt-get update -qq
# shellcheck disable=SC2086 # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
