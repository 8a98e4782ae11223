"""The number of pods of a job, as the labels of its pods name it. They may disagree, or name none."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Sequence


class LabelNumbers:
    """The numbers of pods that the labels of a job's pods name.

    Each pod may have its own number, so they are kept in order instead of looked through.
    """

    def __init__(self) -> None:
        self._pods: Counter[int | None] = Counter()
        self._ascending: list[int] = []

    @property
    def all(self) -> Collection[int | None]:
        """Each number that the labels say; None for labels without a number."""
        return self._pods.keys()

    @property
    def ascending(self) -> Sequence[int]:
        """In order, without the None of labels without a number."""
        return self._ascending

    @property
    def highest(self) -> int:
        """0 if no label says a number."""
        return self._ascending[-1] if self._ascending else 0

    @property
    def are_one(self) -> bool:
        """Whether no two labels differ, and all say a number."""
        return len(self._pods) <= 1 and None not in self._pods

    def add(self, number: int | None) -> None:
        """Count the label of a pod."""
        self._pods[number] += 1
        is_first = self._pods[number] == 1
        if number and is_first:
            insort(self._ascending, number)

    def set_to(self, number: int | None) -> None:
        """Have this number only, which an object says; none if the object was not seen."""
        self._pods.clear()
        self._ascending.clear()
        if number is not None:
            self.add(number)

    def remove(self, number: int | None) -> None:
        """Count the label of a pod no longer."""
        self._pods[number] -= 1
        if self._pods[number]:
            return
        del self._pods[number]
        if number:
            index = bisect_left(self._ascending, number)
            del self._ascending[index]
