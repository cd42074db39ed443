# SPDX-License-Identifier: Apache-2.0
"""What a role's method returns at once: a sequence of items that later calls consume."""

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from m2flow.errors import FlowError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Items(Protocol[T_co]):
    """A sequence, or what stands for one that is still being made: reading it waits."""

    def __iter__(self) -> Iterator[T_co]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class Stream(Generic[T]):
    """Items made by one call. Reading it waits for them; it can be read as often as needed.

    ``more`` makes further items the way these were made: it draws new prompts at the source and sends them through the
    same calls. That is how dynamic sampling replaces groups without a second flow.
    """

    def __init__(self, items: "Items[T]", *, origin: str, refill: "Callable[[int], Stream[T]] | None" = None) -> None:
        self.items = items
        """A sequence, or what stands for one that is still being made."""
        self._refill = refill
        self.origin = origin
        """What made it, for messages: ``reward.score``."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"<Stream of {len(self)} from {self.origin}>"

    def get(self) -> T:
        """The only item.

        Raises:
            FlowError: there is not exactly one.
        """
        if len(self.items) != 1:
            raise FlowError(
                f"{self.origin} made {len(self.items)} items, expected one: iterate over the stream instead"
            )
        return self.items[0]

    def more(self, num_items: int) -> "Stream[T]":
        """``num_items`` further items at the source of this stream, sent through the same calls.

        Raises:
            FlowError: nothing upstream can give more (the source was a plain list).
        """
        if self._refill is None:
            raise FlowError(
                f"{self.origin} cannot make more items: its source is not a data set of run.iterations; "
                "pass the prompts of the loop, or choose an algorithm that does not resample"
            )
        return self._refill(num_items)

    @property
    def is_complete(self) -> bool:
        """Whether all items are there."""
        return getattr(self.items, "is_complete", True)

    @property
    def can_grow(self) -> bool:
        """Whether ``more`` works."""
        return self._refill is not None
