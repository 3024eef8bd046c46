"""Members of a folder that other packages bring, by entry point. Knows packaging metadata; knows no
folder and no protocol.

A package adds its own generator, backend, detector, … to `rlhf_pipeline.<folder>` without a change
here:

    [project.entry-points."rlhf_pipeline.completions"]
    my_server = "my_package.backend:MyServer"
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from rlhf_pipeline.errors import ConfigurationError

T = TypeVar("T")


class Members(Mapping[str, T], Generic[T]):
    """What a folder offers, by name: its own members in their order, then those of installed
    packages by name.

    Reads like a dict. Packages are loaded when the mapping is first read, not when it is made: by
    then all of this library can be imported by them. Raises ConfigurationError for two members of
    one name and for a member that cannot be imported, naming the package and the cure.
    """

    def __init__(
        self,
        folder: str,
        own: Mapping[str, T],
        found: Callable[[str], Iterable[EntryPoint]] | None = None,
    ) -> None:
        self._group = f"rlhf_pipeline.{folder}"
        self._own = own
        self._found = found or _entry_points

    def __getitem__(self, name: str) -> T:
        return self._own[name] if name in self._own else self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"Members({self._group}: {', '.join(self)})"

    @cached_property
    def _members(self) -> dict[str, T]:
        members = dict(self._own)
        for point in sorted(self._found(self._group), key=lambda p: p.name):
            if point.name in members:
                raise ConfigurationError(
                    f"{_package_name(point)} registers {point.name!r} in {self._group}, a name "
                    "that is taken. Rename it there or uninstall it."
                )
            members[point.name] = self._load(point)
        return members

    def _load(self, point: EntryPoint) -> T:
        try:
            member: T = point.load()
        except (ImportError, AttributeError) as cause:
            raise ConfigurationError(
                f"{_package_name(point)} registers {point.name!r} in {self._group}, but "
                f"{point.value} cannot be imported ({cause}). Repair or uninstall that package."
            ) from cause
        return member


def _entry_points(group: str) -> Iterable[EntryPoint]:
    return entry_points(group=group)


def _package_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "An unnamed package"
