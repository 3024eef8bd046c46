"""Parses JSON and YAML strictly: refuses duplicate keys, and numbers that would change silently."""

import json
import math
import re
from collections.abc import Hashable
from typing import Any

import yaml


class DocumentError(ValueError):
    """A document that the standard parser would accept but alter silently. The message has a cure
    and no final full stop.
    """


def _build_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DocumentError(f"key {twice[0]!r} occurs twice in one object. Keep one of them")
    return mapping


def _refuse_constant(name: str) -> float:
    raise DocumentError(f"{name} is not a finite number. Write one below 1.8e308, or null")


def _parse_float(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_build_mapping, parse_float=_parse_float, parse_constant=_refuse_constant
)
_DECODER_OF_ANY_NUMBER = json.JSONDecoder(object_pairs_hook=_build_mapping)


def parse_json(text: str, *, is_finite: bool = True) -> Any:
    """The value of a JSON document. NaN and infinity are accepted only if `is_finite` is False.

    Raises ValueError for broken JSON; DocumentError for duplicate keys, NaN, Infinity and numbers
    such as 1e400.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
    return (_DECODER if is_finite else _DECODER_OF_ANY_NUMBER).decode(text)


def parse_json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and the index of its end. Raises ValueError as
    `parse_json` does.
    """
    return _DECODER.raw_decode(text, start)


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[Any] = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in names:
                raise yaml.constructor.ConstructorError(
                    "while constructing a mapping",
                    node.start_mark,
                    f"found duplicate key {key.value!r}",
                    key.start_mark,
                )
            if name is not None and key.tag != "tag:yaml.org,2002:merge":
                names.add(name)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> float:
        if _AMBIGUOUS_NUMBER.match(node.value):
            raise yaml.constructor.ConstructorError(
                problem="found a number with a leading zero or a colon, which YAML reads in base "
                "8, 16 or 60",
                problem_mark=node.start_mark,
            )
        kind = node.tag.rpartition(":")[2]
        value: float = getattr(self, f"construct_yaml_{kind}")(node)
        return value

    def construct_date(self, node: yaml.ScalarNode) -> Any:
        try:
            return self.construct_yaml_timestamp(node)
        except ValueError:
            raise yaml.constructor.ConstructorError(
                problem="found a date that is not in the calendar", problem_mark=node.start_mark
            ) from None


# 010 is 8 in YAML 1.1, 1:30 is 90, 0x10 is 16
_AMBIGUOUS_NUMBER = re.compile(r"[-+]?0[\d_xb]|.*:", re.IGNORECASE)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_date)


def parse_yaml(text: str) -> Any:
    """The value of a YAML document. Raises yaml.YAMLError, with the line, for broken YAML,
    duplicate keys, numbers such as 010 and 1:30, and impossible dates.

    >>> parse_yaml("a: 1")
    {'a': 1}
    """
    return yaml.load(text, _Loader)
