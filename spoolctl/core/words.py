"""`Enum` without the weight: the standard one takes 1 ms to make the fifty words of the queue.

For a type checker it is `enum.Enum`. At run time only what fixed words need: members that are
each alone of their kind, found by value, in order; no aliases, no flags. Those of a class that
is a `str` too hash as their value does. (docs/adr/0009-light-records.md)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import Enum as Enum
else:

    def _repr(self):
        return f"<{self}: {self.value!r}>"

    def _str(self):
        return f"{type(self).__name__}.{self.name}"

    def _reduce(self):
        return type(self), (self.value,)

    class _Meta(type):
        def __new__(mcs, name, bases, space):
            given = {key: value for key, value in space.items() if key.isupper()}
            # In each class itself: those of `str` would come first.
            space.update(__repr__=_repr, __str__=_str, __reduce__=_reduce)
            cls = super().__new__(mcs, name, bases, space)
            cls._members = {}
            for key, value in given.items():
                member = str.__new__(cls, value) if str in bases else object.__new__(cls)
                member.name, member.value = key, value
                cls._members[value] = member
                type.__setattr__(cls, key, member)
            return cls

        def __call__(cls, value):
            try:
                return cls._members[value]
            except (KeyError, TypeError):
                raise ValueError(f"{value!r} is not a valid {cls.__name__}") from None

        def __getitem__(cls, name):
            return cls.__members__[name]

        @property
        def __members__(cls):
            return {member.name: member for member in cls._members.values()}

        def __iter__(cls):
            return iter(cls._members.values())

        def __len__(cls):
            return len(cls._members)

        def __setattr__(cls, name, value):
            if name.isupper():
                raise AttributeError(f"{cls.__name__}.{name} is fixed")
            super().__setattr__(name, value)

    class Enum(metaclass=_Meta):
        """Words of one kind; see `enum.Enum`."""
