"""The members of a mapping (generators, backends, detectors …): shipped and installed ones.

A package adds a member by an entry point, without a change here:

    [project.entry-points."rlhf_pipeline.completions"]
    my_server = "my_package.backend:MyServer"
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from rlhf_pipeline.core.errors import ConfigurationError

T = TypeVar("T")
P = TypeVar("P", bound=BaseModel)


class UnknownMember(ConfigurationError, KeyError):
    """No member has this name; the message lists the known ones."""

    __str__ = Exception.__str__  # KeyError would quote the message


class NoParams(BaseModel):
    """The `Params` of a member without parameters."""

    model_config = ConfigDict(extra="forbid")


class Members(Mapping[str, T], Generic[T]):
    """Members by name: the shipped ones in their order, then installed ones by name.

    Reads like a dict. Names are known without an import; a package is imported when its member is
    first read. Raises UnknownMember, a ConfigurationError and KeyError, for an unknown name, and
    ConfigurationError for two members of one name and for a member that cannot be imported, naming
    the package and the fix.
    """

    def __init__(
        self,
        folder: str,
        shipped: Mapping[str, T],
        find: Callable[[str], Iterable[EntryPoint]] | None = None,
    ) -> None:
        self._group = f"rlhf_pipeline.{folder}"
        self._shipped = shipped
        self._find = find or _find_entry_points
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._shipped:
            return self._shipped[name]
        if name not in self._installed:
            raise UnknownMember(f"No {name!r} in {self._group}. Known: {', '.join(self)}.")
        if name not in self._loaded:
            self._loaded[name] = self._load(self._installed[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._shipped
        yield from self._installed

    def __len__(self) -> int:
        return len(self._shipped) + len(self._installed)

    def __repr__(self) -> str:
        return f"Members({self._group}: {', '.join(self)})"

    def params(self, *common: type[BaseModel]) -> tuple[type[BaseModel], ...]:
        """Base classes of a model that has the fields of `common` and of every member's `Params`.

            class DriftParams(*DETECTORS.params(ConfirmationParams)): ...

        Its fields are in this order: those of `common`, then those of the members in their order.
        It reads every member, so it belongs in a module that no member imports. Raises
        ConfigurationError where a member has no `Params`, or where two classes define a field of
        one name differently.
        """
        first_owners: dict[str, tuple[str, FieldInfo]] = {}
        owners = {kind.__name__: kind for kind in common} | {
            f"{name!r} of {self._group}": self._params_of(name) for name in self
        }
        for owner, kind in owners.items():
            for name, field in kind.model_fields.items():
                first, before = first_owners.setdefault(name, (owner, field))
                if repr(before) != repr(field):
                    raise ConfigurationError(
                        f"{first} and {owner} both have a parameter {name!r}, but not the same "
                        f"one. Rename it in one of them, for example with the member's name in "
                        "front."
                    )
        # pydantic orders fields from the last base class to the first
        members = [kind for kind in owners.values() if kind not in common]
        return (*reversed(dict.fromkeys(members)), *common)

    def _params_of(self, name: str) -> type[BaseModel]:
        member: Any = self[name]
        try:
            params: type[BaseModel] = member.Params
        except AttributeError as cause:
            raise ConfigurationError(
                f"{name!r} of {self._group} names no parameters. Give {member.__name__} an "
                "attribute `Params`: a pydantic model, or rlhf_pipeline.core.plugins.NoParams."
            ) from cause
        return params

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        installed: dict[str, EntryPoint] = {}
        for point in sorted(self._find(self._group), key=lambda p: p.name):
            if point.name in self._shipped or point.name in installed:
                raise ConfigurationError(
                    f"{_package_name(point)} registers {point.name!r} in {self._group}, but that "
                    "name is taken. Rename it there or uninstall the package."
                )
            installed[point.name] = point
        return installed

    def _load(self, point: EntryPoint) -> T:
        try:
            member: T = point.load()
        except (ImportError, AttributeError) as cause:
            raise ConfigurationError(
                f"{_package_name(point)} registers {point.name!r} in {self._group}, but "
                f"{point.value} cannot be imported ({cause}). Repair or uninstall that package."
            ) from cause
        return member


def select_params(kind: type[P], params: BaseModel) -> P:
    """The fields of `kind` out of a larger model; defaults for those it lacks."""
    return kind.model_validate(params.model_dump(include=set(kind.model_fields)))


def _find_entry_points(group: str) -> Iterable[EntryPoint]:
    return entry_points(group=group)


def _package_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "An unnamed package"
