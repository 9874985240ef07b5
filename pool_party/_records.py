"""`record(frozen=True)`: what `dataclasses.dataclass(frozen=True)` does, without the import of that.

It would take longer than all of ours together. Whoever has imported it finds our classes to be its own: `replace`,
`asdict`, `fields` and `is_dataclass` work.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as record

    __all__ = ["record"]
else:

    def record(*, frozen):
        """Completes a class whose annotations are its fields; its objects are compared by these, and do not change."""
        assert frozen, "classes that change are written out"
        return _complete

    def _complete(cls):
        names = tuple(cls.__annotations__)
        cls.__match_args__ = names
        cls.__init__ = _make_init(cls, names)
        cls.__repr__ = _repr
        cls.__eq__ = _eq
        cls.__hash__ = _hash
        cls.__setattr__ = cls.__delattr__ = _refuse
        cls.__dataclass_fields__ = _OfDataclass("__dataclass_fields__")
        cls.__dataclass_params__ = _OfDataclass("__dataclass_params__")
        return cls

    def _make_init(cls, names):
        """A real function, so that calls are checked as any other's and `help` shows the arguments."""
        defaults = {name: vars(cls)[name] for name in names if name in vars(cls)}
        parameters = ", ".join(f"{name}=defaults[{name!r}]" if name in defaults else name for name in names)
        values = ", ".join(f"{name}={name}" for name in names)
        made = {}
        exec(f"def __init__(self, {parameters}): self.__dict__.update({values})", {"defaults": defaults}, made)
        init = made["__init__"]
        init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
        init.__annotations__ = {**cls.__annotations__, "return": None}
        return init

    def _values(self):
        return tuple([getattr(self, name) for name in self.__match_args__])

    def _repr(self):
        values = zip(self.__match_args__, _values(self), strict=True)
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in values)})"

    def _eq(self, other):
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def _hash(self):
        return hash(_values(self))

    def _refuse(self, name, *value):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")

    class _OfDataclass:
        """An attribute that `dataclasses` gives its classes, made when it is looked at."""

        def __init__(self, name):
            self._name = name

        def __get__(self, instance, owner):
            from dataclasses import field, make_dataclass

            home = next(cls for cls in owner.__mro__ if vars(cls).get(self._name) is self)
            fields = [
                (name, kind, field(default=vars(home)[name])) if name in vars(home) else (name, kind)
                for name, kind in home.__annotations__.items()
            ]
            value = getattr(make_dataclass(home.__name__, fields, frozen=True), self._name)
            setattr(home, self._name, value)
            return value
