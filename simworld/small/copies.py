"""Copies of a core, so that each of the messages that may come next comes to one of its own.

The product's values are frozen, so copies share them. What changes is copied: containers, arrays, and objects that
keep something. A copy costs a fraction of `copy.deepcopy`, which also goes through every frozen value.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from itertools import count
from threading import Condition, Event, Lock, RLock
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np

from simworld.small.slots import slots_of

_SHARED = (
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    frozenset,
    type,
    Enum,
    BuiltinFunctionType,
    ModuleType,
    np.generic,
    np.dtype,
    # No thread waits in a search, and no lock is held while a core is copied.
    Condition,
    Event,
    type(Lock()),
    type(RLock()),
)


def copied(root: Any) -> Any:  # noqa: ANN401 (whatever a core keeps)
    """A copy that changes alone."""
    return _Copying().copy(root)


class _Copying:
    """One copy. What is reached twice is copied once."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:  # noqa: ANN401
        kind = type(value)
        if kind in _IS_SHARED:
            if _IS_SHARED[kind]:
                return value
        else:
            _IS_SHARED[kind] = _is_shared(kind)
            return self.copy(value)
        known = self._copies.get(id(value))
        if known is not None:
            return known
        how = _HOW.get(kind, _Copying._object)
        return how(self, value)

    def _keep(self, value: Any, made: Any) -> Any:  # noqa: ANN401
        self._copies[id(value)] = made
        return made

    def _tuple(self, value: Any) -> Any:  # noqa: ANN401
        items = [self.copy(item) for item in value]
        if all(item is old for item, old in zip(items, value, strict=True)):
            return value
        return self._keep(value, tuple(items))

    def _list(self, value: Any) -> Any:  # noqa: ANN401
        made: list[Any] = self._keep(value, [])
        made.extend(map(self.copy, value))
        return made

    def _deque(self, value: Any) -> Any:  # noqa: ANN401
        made: deque[Any] = self._keep(value, deque(maxlen=value.maxlen))
        made.extend(map(self.copy, value))
        return made

    def _set(self, value: Any) -> Any:  # noqa: ANN401
        return self._keep(value, set(map(self.copy, value)))

    def _dict(self, value: Any) -> Any:  # noqa: ANN401
        made: Any = type(value)()
        if isinstance(value, defaultdict):
            made.default_factory = self.copy(value.default_factory)
        self._keep(value, made)
        copy = self.copy
        for key, item in value.items():
            made[copy(key)] = copy(item)
        return made

    def _array(self, value: Any) -> Any:  # noqa: ANN401
        return self._keep(value, value.copy())

    def _count(self, value: Any) -> Any:  # noqa: ANN401
        """Its next number is only in its text, as `itertools` gives no other way to look at it."""
        following = repr(value).removeprefix("count(").removesuffix(")")
        return self._keep(value, count(int(following)))

    def _method(self, value: Any) -> Any:  # noqa: ANN401
        owner = self.copy(value.__self__)
        return value if owner is value.__self__ else self._keep(value, MethodType(value.__func__, owner))

    def _partial(self, value: Any) -> Any:  # noqa: ANN401
        function = self.copy(value.func)
        arguments = map(self.copy, value.args)
        return self._keep(value, partial(function, *arguments, **value.keywords))

    def _function(self, value: Any) -> Any:  # noqa: ANN401
        """A function that remembers objects of the core must remember those of the copy."""
        cells = value.__closure__
        if not cells:
            return value
        for cell in cells:
            if self.copy(cell.cell_contents) is not cell.cell_contents:
                break
        else:
            return value
        raise TypeError(f"{value.__qualname__} remembers a part of the core, which a copy cannot replace")

    def _object(self, value: Any) -> Any:  # noqa: ANN401
        kind = type(value)
        made = self._keep(value, object.__new__(kind))
        copy = self.copy
        for name in slots_of(kind):
            if hasattr(value, name):
                object.__setattr__(made, name, copy(getattr(value, name)))
        attributes = getattr(value, "__dict__", None)
        if attributes:
            own = made.__dict__
            for name, item in attributes.items():
                own[name] = copy(item)
        return made


_HOW: dict[type, Callable[[_Copying, Any], Any]] = {
    tuple: _Copying._tuple,  # noqa: SLF001 (of this module)
    list: _Copying._list,  # noqa: SLF001
    deque: _Copying._deque,  # noqa: SLF001
    set: _Copying._set,  # noqa: SLF001
    dict: _Copying._dict,  # noqa: SLF001
    OrderedDict: _Copying._dict,  # noqa: SLF001
    defaultdict: _Copying._dict,  # noqa: SLF001
    Counter: _Copying._dict,  # noqa: SLF001
    np.ndarray: _Copying._array,  # noqa: SLF001
    count: _Copying._count,  # noqa: SLF001
    MethodType: _Copying._method,  # noqa: SLF001
    partial: _Copying._partial,  # noqa: SLF001
    FunctionType: _Copying._function,  # noqa: SLF001
}
_IS_SHARED: dict[type, bool] = {}
"""Whether copies share the values of a type, for the types that were met."""


def _is_shared(kind: type) -> bool:
    if issubclass(kind, (*_SHARED, MappingProxyType)):
        return True
    if is_dataclass(kind):
        return bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    # A named tuple.
    return issubclass(kind, tuple) and hasattr(kind, "_fields")
