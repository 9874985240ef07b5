"""cloudpickle's rules, for what `main_module` has none of its own. Importing cloudpickle takes some 40 ms."""

import io
import types
from typing import Any

from cloudpickle import cloudpickle

from pool_party.wire.namespace import MODULES, make_class, new_class, set_class_state


def _with_slots(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Put the slots into the arguments of a class; cloudpickle 3.1 sets them later, as an ordinary attribute."""
    maker, (metaclass, name, bases, members, *rest), (state, slotstate), *others = reduced
    members = {**members, "__slots__": cls.__dict__["__slots__"]}
    made_by_type = {"__slots__", "__slotnames__"}
    state = {
        key: value
        for key, value in state.items()
        if key not in made_by_type and not isinstance(value, types.MemberDescriptorType)
    }
    return maker, (metaclass, name, bases, members, *rest), (state, slotstate), *others


def _with_real_bases(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Restore the actual base of a typed named tuple; cloudpickle uses the bases in its source, which differ."""
    maker, (metaclass, name, bases, *rest), *others = reduced
    if cls.__bases__ == (tuple,):
        bases = cls.__bases__
    return maker, (metaclass, name, bases, *rest), *others


def reduce_class(cls: type) -> tuple[Any, ...]:
    reduced: tuple[Any, ...] = cloudpickle._dynamic_class_reduce(cls)
    if reduced[0] is not cloudpickle._make_skeleton_class:
        return reduced
    reduced = _with_real_bases(cls, reduced)
    if cls.__module__ in MODULES:
        _, (*_, members, _, _), (state, _), *_ = reduced
        members["__module__"] = state["__module__"] = "__main__"  # the same in every process
    return _with_slots(cls, reduced) if "__slots__" in cls.__dict__ else reduced


def reduce_definition(name: str, cls: type) -> tuple[Any, ...]:
    """Reduce a class of `__main__` to a call of `make_class`."""
    maker, args, *others, setter = reduce_class(cls)
    *args, _, extra = args  # cloudpickle's identity of the class, which our token replaces
    if maker is cloudpickle._make_skeleton_class:
        return make_class, (name, new_class, *args), *others, set_class_state
    return make_class, (name, maker, *args, None, extra), *others, setter


class Reducer:
    """Reduces functions and classes for one pickle. Functions with the same globals share them in the receiver, too."""

    def __init__(self) -> None:
        self._pickler = cloudpickle.Pickler(io.BytesIO())  # it never writes; it retains the globals

    def reduce(self, cls: type) -> Any:
        """Do what `reducer_override` does for a class."""
        reduced = self._pickler.reducer_override(cls)
        return reduce_class(cls) if isinstance(reduced, tuple) and len(reduced) == 6 else reduced

    def reduce_function(self, function: types.FunctionType) -> tuple[Any, ...]:
        """Reduce a function that receivers cannot import."""
        reduced: tuple[Any, ...] = self._pickler._dynamic_function_reduce(function)
        return reduced
