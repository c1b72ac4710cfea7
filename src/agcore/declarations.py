"""Attributes by which a class declares itself, and which it may write as methods, too."""

from collections.abc import Callable
from inspect import iscoroutinefunction, signature
from types import FunctionType


def read_as_attributes(cls: type, *names: str, error: Callable[[str], Exception]) -> None:
    """Make properties of the methods of a class that have one of these names.

    Args:
        cls: the class that may define them.
        names: of attributes.
        error: makes the exception for a method that cannot be read as an attribute.
    """
    for name in names:
        method = vars(cls).get(name)
        if not isinstance(method, FunctionType):
            continue
        if iscoroutinefunction(method) or len(signature(method).parameters) != 1:
            where = f"{cls.__name__}.{name}"
            raise error(f"{where} is read as an attribute; write `def {name}(self)`, without async")
        setattr(cls, name, property(method))
