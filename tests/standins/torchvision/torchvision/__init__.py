"""Stand-in for torchvision: every name imports, nothing works. See the pyproject.toml beside this package for why.

Any submodule can be imported, and any attribute of one is an empty class, made when it is asked for. The one exception
is `InterpolationMode`, a real enum: transformers and SGLang build tables from its members while they are imported.
"""

import enum
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0.28.0+standin"


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _Submodule(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = InterpolationMode if name == "InterpolationMode" else type(name, (), {})
        setattr(self, name, value)
        return value


class _AnySubmodule(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_AnySubmodule())


def __getattr__(name: str) -> ModuleType:
    if name.startswith("__"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")
