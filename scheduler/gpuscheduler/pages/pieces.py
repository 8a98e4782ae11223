"""A large page in pieces, which the connections that it goes to share."""

PIECE_BYTES = 64 * 1024


class Pieces:
    """Collects the parts of a page."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._piece = bytearray()

    def add(self, part: bytes) -> None:
        """Append a part."""
        self._piece += part
        if len(self._piece) >= PIECE_BYTES:
            self._pieces.append(bytes(self._piece))
            self._piece.clear()

    def all(self) -> tuple[bytes, ...]:
        """The page."""
        return (*self._pieces, bytes(self._piece))
