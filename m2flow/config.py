# SPDX-License-Identifier: Apache-2.0
"""Typed configuration: one frozen ``Config`` per class, unknown keys rejected, every mistake reported at once."""

import difflib
import json
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from m2flow.errors import ConfigError

Keys = tuple[str, ...]
"""The way to an option through nested Configs."""


class Config(BaseModel):
    """Base of every configuration. Instances are immutable; a field's docstring is its help text.

    Raises:
        ConfigError: on construction; its message lists all mistakes, not only the first.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
    owner: ClassVar[Any] = None
    """The plug-in class that nests this Config, where there is one."""
    headline: ClassVar[str | None] = None
    """The field that a bare value stands for: with ``headline = "model"``, ``"tiny"`` means ``{"model": "tiny"}``."""

    # Hidden from type checkers, which then check constructor arguments against the fields.
    if not TYPE_CHECKING:

        def __init__(self, /, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise failure(explain(error, type(self), given=data), what=type(self).__qualname__) from None

        # Nested Configs are built by pydantic itself, so that their mistakes join those of the outer one.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="before")
    @classmethod
    def _accept_headline(cls, given: Any) -> Any:
        if cls.headline is not None and isinstance(given, str | int | float | Path):
            return {cls.headline: given}
        return given

    def problems(self) -> list[str]:
        """What is wrong with the values taken together (divisibility, memory, files that are missing).

        Override it for checks that need no model. Nested Configs are asked in turn, so look at your own fields only.
        """
        return []

    def check(self) -> None:
        """Ask this Config and all nested ones for their ``problems``.

        Raises:
            ConfigError: lists them all.
        """
        found = list(_problems(self, ()))
        if found:
            raise failure(found, what=type(self).__qualname__)

    def to_dict(self) -> dict[str, Any]:
        """JSON values only; plug-ins keep their ``name``. ``from_dict`` gives an equal Config."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """The Config that ``to_dict`` described.

        Raises:
            ConfigError: lists all mistakes.
        """
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            raise failure(explain(error, cls, given=given), what=cls.__qualname__) from None

    def save(self, path: Path) -> None:
        """Write ``to_dict`` as a JSON file."""
        path.write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            ConfigError: the file is missing, is no JSON object, or has mistakes.
        """
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read the configuration {path}: {error}; expected a JSON file") from None
        if not isinstance(given, dict):
            raise ConfigError(f"{path} holds a {type(given).__name__}, expected a JSON object of options")
        return cls.from_dict(given)


class Variant(ABC):
    """Annotates a field whose Config class depends on the value: a choice of plug-in."""

    @abstractmethod
    def names(self) -> list[str]:
        """What can be chosen."""

    @abstractmethod
    def config_class(self, given: Any) -> type[Config] | None:
        """The Config class of a name, a mapping with ``name``, or a Config; ``None`` where there is no such thing."""


@dataclass(frozen=True)
class Shape:
    """What a field may hold, as far as nesting goes."""

    config: type[Config] | None = None
    variant: Variant | None = None
    many: bool = False
    """A list or tuple of values."""
    optional: bool = False
    """None is allowed."""

    @property
    def nests(self) -> bool:
        """Whether the field holds a Config, or several."""
        return self.config is not None

    def config_class(self, given: Any) -> type[Config] | None:
        """The Config class that ``given`` is to become, one element of it where there are many."""
        return self.variant.config_class(given) if self.variant else self.config


def shape_of(field: FieldInfo) -> Shape:
    """The shape of a Config's field."""
    shape = _shape(field.annotation)
    variants = [note for note in field.metadata if isinstance(note, Variant)]
    return replace(shape, variant=variants[0]) if variants else shape


def _shape(annotation: Any) -> Shape:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        variants = [note for note in args[1:] if isinstance(note, Variant)]
        return replace(_shape(args[0]), variant=variants[0]) if variants else _shape(args[0])
    if origin in (Union, types.UnionType):
        members = [_shape(arg) for arg in args if arg is not type(None)]
        nesting = [member for member in members if member.nests or member.many]
        return replace((nesting or [Shape()])[0], optional=len(members) < len(args))
    if origin in (tuple, list, Sequence):
        return replace(_shape(args[0]), many=True)
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return Shape(config=annotation)
    return Shape(many=annotation in (tuple, list), optional=annotation is type(None))


def value_of(given: Any, name: str, *, field: FieldInfo) -> Any:
    """Field ``name`` of a Config or mapping; its default where ``given`` does not say."""
    if isinstance(given, Config):
        return getattr(given, name)
    if isinstance(given, Mapping) and name in given:
        return given[name]
    default = field.get_default(call_default_factory=True, validated_data={})
    return None if default is PydanticUndefined else default


def option_paths(cls: type[Config], given: Any = None, *, prefix: Keys = ()) -> Iterator[Keys]:
    """Paths of all options of ``cls`` and of the Configs nested in it, with the plug-ins that ``given`` picks."""
    for name, field in cls.model_fields.items():
        path = (*prefix, name)
        yield path
        shape, value = shape_of(field), value_of(given, name, field=field)
        if shape.many and shape.variant:
            held = [(element, shape.config_class(element)) for element in value or ()]
            inner = [(nested, element, (*path, nested.owner.name)) for element, nested in held if nested]
        else:
            nested = None if shape.many else shape.config_class(value)
            inner = [(nested, value, path)] if nested else []
        for nested, element, place in inner:
            yield from option_paths(nested, element, prefix=place)


@dataclass(frozen=True)
class Problem:
    """One mistake, and the path of the option that it is in (empty: the Config as a whole)."""

    path: Keys
    text: str


def failure(problems: Sequence[Problem], *, what: str) -> ConfigError:
    """An error that lists ``problems``, one a line."""
    lines = [f"  {'.'.join(p.path)}: {p.text}" if p.path else f"  {p.text}" for p in problems]
    return ConfigError("\n".join([f"{counted(len(lines), 'mistake')} in {what}:", *lines]))


def counted(number: int, noun: str) -> str:
    """``1 mistake``, ``2 mistakes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _problems(config: Config, prefix: Keys) -> Iterator[Problem]:
    for text in config.problems():
        yield Problem(prefix, text)
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from _problems(value, (*prefix, name))
        for index, element in enumerate(value if isinstance(value, tuple | list) else ()):
            if isinstance(element, Config):
                yield from _problems(element, (*prefix, f"{name}[{index}]"))


def all_problems(config: Config) -> list[Problem]:
    """The ``problems`` of ``config`` and of all Configs nested in it."""
    return list(_problems(config, ()))


EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "a mapping of options",
    "model_type": "a mapping of options",
    "multiple_of": "a multiple of {multiple_of}",
    "none_required": "none",
    "path_type": "a path",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "at least {min_length} characters",
    "string_type": "text",
    "too_long": "at most {max_length} values",
    "too_short": "at least {min_length} values",
    "tuple_type": "a list",
}
"""What each of pydantic's error types wanted, in words."""


def explain(error: ValidationError, cls: type[Config], *, given: Any) -> list[Problem]:
    """What ``error`` says about building ``cls`` from ``given``, one problem an option."""
    found: dict[Keys, list[ErrorDetails]] = {}
    beside: dict[Keys, type[Config]] = {}
    for details in error.errors(include_url=False):
        path, home = _option_path(details, cls, given=given)
        found.setdefault(path, []).append(details)
        beside[path] = home
    known = list(option_paths(cls, given))
    return [
        Problem(path, _text(path, group, known=[*known, *((*path[:-1], name) for name in beside[path].model_fields)]))
        for path, group in found.items()
    ]


def _option_path(details: ErrorDetails, cls: type[Config], *, given: Any) -> tuple[Keys, type[Config]]:
    """The option that is wrong, and the Config that it is in.

    The members of a union that pydantic tried, which it appends as if they were keys, are left out.
    """
    path: list[str] = []
    home = cls
    inner: type[Config] | None = cls
    value, shape = given, Shape(config=cls)
    for part in details["loc"]:
        if isinstance(part, int):
            if path:
                path[-1] += f"[{part}]"
            value = value[part] if isinstance(value, Sequence) and part < len(value) else None
            inner = shape.config_class(value)
            continue
        if inner is None:
            break
        path.append(part)
        home = inner
        field = inner.model_fields.get(part)
        if field is None:
            break
        shape, value = shape_of(field), value_of(value, part, field=field)
        inner = None if shape.many else shape.config_class(value)
    return tuple(path), home


def _text(path: Keys, group: Sequence[ErrorDetails], *, known: Sequence[Keys]) -> str:
    first = group[0]
    if first["type"] == "extra_forbidden":
        return f"no such option; {suggest(path, known)}"
    if first["type"] == "missing":
        return "required, and not given"
    if first["type"] in ("value_error", "assertion_error"):
        return str(first["ctx"]["error"]) if "ctx" in first else first["msg"]
    wanted = dict.fromkeys(EXPECTED.get(d["type"], d["msg"]).format_map(_whole(d.get("ctx", {}))) for d in group)
    got = first["input"]
    kind = "" if got is None or isinstance(got, str | int | float) else f" ({type(got).__name__})"
    return f"got {got!r}{kind}, expected {' or '.join(wanted)}"


def _whole(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Limits as a person writes them: 0, not 0.0."""
    return {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in limits.items()}


def suggest(path: Keys, known: Sequence[Keys], *, show: Callable[[Keys], str] = ".".join) -> str:
    """A sentence that names the option most like ``path``, wherever it is nested; else those beside it."""
    if (best := _closest(path, known)) is not None:
        return f"did you mean {show(best)}?"
    beside = dict.fromkeys(show(option) for option in known if option[:-1] == path[:-1])
    return f"the options here are {', '.join(beside)}" if beside else "there are no options here"


def _closest(path: Keys, known: Sequence[Keys]) -> Keys | None:
    whole = {".".join(option): option for option in known}
    leaves: dict[str, Keys] = {}
    for option in known:
        leaves.setdefault(option[-1], option)
    for names, wanted, cutoff in ((whole, ".".join(path), 0.8), (leaves, path[-1], 0.75), (whole, ".".join(path), 0.6)):
        if close := difflib.get_close_matches(wanted, names, n=1, cutoff=cutoff):
            return names[close[0]]
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the closest of ``known``, or lists them all."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"choose one of: {', '.join(known)}" if known else "there are none"
