"""`NamedTuple` without `typing`, which alone takes a tenth of the time that `add` may take.

For a type checker it is `typing.NamedTuple`. At run time a class is made from its
annotations without compiling anything; `__new__` is compiled when the first instance is made,
since a short run of one verb makes instances of few of the classes that it imports.
(docs/adr/0009-light-records.md)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter

    class _Meta(type):
        def __new__(mcs, name, bases, space):
            if not bases:
                return super().__new__(mcs, name, (tuple,), space)
            fields = tuple(space.get("__annotations__", ()))
            space["_field_defaults"] = {f: space[f] for f in fields if f in space}
            space["_fields"] = space["__match_args__"] = fields
            space["__slots__"] = ()
            for place, field in enumerate(fields):
                space[field] = _tuplegetter(place, f"Field {place}")
            return super().__new__(mcs, name, bases, space)

    class NamedTuple(metaclass=_Meta):
        """A tuple whose places have names; see `typing.NamedTuple`."""

        __slots__ = ()

        def __new__(cls, /, *args, **kwargs):
            names = ", ".join(cls._fields)
            code = f"lambda _cls, {names}: _new(_cls, ({names},))"
            make = eval(code, {"__builtins__": {}, "_new": tuple.__new__})
            make.__name__ = "__new__"
            make.__defaults__ = tuple(cls._field_defaults.values()) or None
            cls.__new__ = make
            return make(cls, *args, **kwargs)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, /, **changes):
            made = tuple.__new__(type(self), map(changes.pop, self._fields, self))
            if changes:
                raise TypeError(f"unexpected field names: {', '.join(changes)}")
            return made

        def _asdict(self):
            return dict(zip(self._fields, self))  # noqa: B905 - as long as each other

        def __repr__(self):
            parts = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({parts})"

        def __getnewargs__(self):
            return tuple(self)
