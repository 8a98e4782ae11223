"""The slots of an object's class, where its attributes are kept in place of a dictionary."""

_SLOTS: dict[type, tuple[str, ...]] = {}


def slots_of(kind: type) -> tuple[str, ...]:
    """Names of the slots of a class, with those of its bases."""
    if kind not in _SLOTS:
        _SLOTS[kind] = tuple(_names(kind))
    return _SLOTS[kind]


def _names(kind: type) -> list[str]:
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names.extend((slots,) if isinstance(slots, str) else slots)
    return [name for name in names if name not in {"__dict__", "__weakref__"}]
