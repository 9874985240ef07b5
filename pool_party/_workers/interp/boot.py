"""The first steps of an interpreter: it loads our modules from code objects of the parent, without searching for files.

This module, too, arrives as bare code, so it imports only modules that every interpreter starts with.
"""

import marshal
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import ExtensionFileLoader, SourceFileLoader, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def load(modules: "Iterable[tuple[str, str, bytes | None]]", frozen: "tuple[bytes, tuple[Any, ...]] | None") -> None:
    """Create modules as if imported.

    modules: each entry is a name, a file, and marshalled code (None for an extension module).
    frozen: the code of `pool_party._workers.interp.frozen`, and the arguments of its `install`.
    """
    if frozen is not None:
        names: dict[str, Any] = {"__name__": "pool_party._workers.interp.frozen"}
        exec(marshal.loads(frozen[0]), names)
        names["install"](*frozen[1])
    for name, file, code in modules:
        loader = (ExtensionFileLoader if code is None else SourceFileLoader)(name, file)
        spec = spec_from_file_location(name, file, loader=loader)
        assert spec is not None, "it has a loader"
        module = sys.modules[name] = module_from_spec(spec)
        if code is None:
            loader.exec_module(module)
        else:
            exec(marshal.loads(code), module.__dict__)
        package, _, own_name = name.rpartition(".")
        if package:
            setattr(sys.modules[package], own_name, module)
