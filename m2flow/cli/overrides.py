# SPDX-License-Identifier: Apache-2.0
"""Command-line options as a Config: ``--algorithm dapo --algorithm.clip-high 0.3 --model smollm2``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from m2flow.config import (
    Config,
    Keys,
    Problem,
    Shape,
    Variant,
    all_problems,
    counted,
    explain,
    option_paths,
    shape_of,
    suggest,
    value_of,
)
from m2flow.errors import ConfigError

C = TypeVar("C", bound=Config)
NONE = ("none", "None", "null")


@dataclass(frozen=True)
class Given:
    """One option as it stands on the command line."""

    path: Keys
    values: tuple[str, ...]
    negated: bool = False
    """Written as ``--no-...``."""


class Mistake(ValueError):
    """What is wrong with one option."""


def flag(path: Keys) -> str:
    """An option as it is typed: ``--algorithm.clip-high``."""
    return "--" + ".".join(path).replace("_", "-")


def parse(cls: type[C], argv: Sequence[str], *, start: Mapping[str, Any] | None = None) -> C:
    """The Config of class ``cls`` with the options in ``argv`` in place of those in ``start``, or else its defaults.

    Raises:
        ConfigError: lists all mistakes: unknown options with the nearest name, wrong types, values out of range,
        unknown
            plug-ins, and the ``problems`` of the values taken together.
    """
    tree, problems = overrides(cls, argv, start=start)
    config: C | None = None
    try:
        config = cls.model_validate(tree)
    except ValidationError as error:
        wrong = explain(error, cls, given=tree)
        problems += [*wrong, *_problems_of_the_rest(cls, tree, wrong=wrong)]
    else:
        problems += all_problems(config)
    if problems or config is None:
        raise ConfigError("\n".join([f"{counted(len(problems), 'mistake')} in the options:", *_lines(problems)]))
    return config


def _lines(problems: Sequence[Problem]) -> Iterator[str]:
    for problem in problems:
        yield f"  {flag(problem.path)}: {problem.text}" if problem.path else f"  {problem.text}"


def _problems_of_the_rest(cls: type[Config], tree: Mapping[str, Any], *, wrong: Sequence[Problem]) -> list[Problem]:
    """What is wrong with the values taken together, with defaults in place of those that are wrong in themselves."""
    paths = [problem.path for problem in wrong]
    while any(paths):
        for path in paths:
            tree = _without(tree, path)
        try:
            return all_problems(cls.model_validate(tree))
        except ValidationError:
            # Something required is missing: leave out the group that it is missing in.
            paths = [path[:-1] for path in paths]
    return []


def _without(tree: Mapping[str, Any], path: Keys) -> dict[str, Any]:
    name = path[0].partition("[")[0] if path else ""
    inner = tree.get(name)
    if len(path) > 1 and isinstance(inner, Mapping):
        return {**tree, name: _without(inner, path[1:])}
    return {key: value for key, value in tree.items() if key != name}


def overrides(
    cls: type[Config], argv: Sequence[str], *, start: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """``start`` with what ``argv`` sets, as nested mappings for ``cls``, and what could not be placed."""
    given, problems = _read(argv)
    tree: dict[str, Any] = dict(start or {})
    seen: set[Keys] = set()
    # A plug-in is chosen before its options are looked at, in whichever order they stand.
    for option in sorted(given, key=lambda option: len(option.path)):
        try:
            where = _place(tree, cls, option=option)
            if where in seen:
                raise Mistake("given twice: give it once")
            seen.add(where)
        except Mistake as mistake:
            problems.append(Problem(option.path, str(mistake)))
        except _Unknown as unknown:
            problems.append(Problem(option.path, unknown.text(list(option_paths(cls, tree)))))
        except _Undecided:
            continue
    return tree, problems


class _Unknown(Exception):
    """No such option; ``elsewhere`` are plug-ins that do have it."""

    def __init__(self, path: Keys, elsewhere: Sequence[str] = ()) -> None:
        super().__init__(path)
        self.path, self.elsewhere = path, elsewhere

    def text(self, known: Sequence[Keys]) -> str:
        """With the nearest option, and who has it."""
        if not self.elsewhere:
            return f"no such option; {suggest(self.path, known, show=flag)}"
        chosen = flag(self.path[:-1])
        return (
            f"not an option of what {chosen} picks, but of {' and '.join(self.elsewhere)}: {chosen} {self.elsewhere[0]}"
        )


class _Undecided(Exception):
    """The option belongs to a plug-in that does not exist, which is a mistake of its own."""


def _read(argv: Sequence[str]) -> tuple[list[Given], list[Problem]]:
    options: list[Given] = []
    problems: list[Problem] = []
    for token in argv:
        if token.startswith("--") and len(token) > 2:
            name, equals, value = token[2:].partition("=")
            options.append(Given(tuple(name.replace("-", "_").split(".")), (value,) if equals else ()))
        elif options:
            options[-1] = replace(options[-1], values=(*options[-1].values, token))
        else:
            problems.append(Problem((), f"got '{token}', expected an option such as --name value"))
    return options, problems


def _place(node: dict[str, Any], cls: type[Config], *, option: Given, depth: int = 0, variant: Any = None) -> Keys:
    """Put ``option`` where it belongs below ``node``; return its path in full."""
    name = option.path[depth]
    if name not in cls.model_fields:
        if not _negates(name, cls):
            raise _Unknown(option.path, _having(name, variant))
        name = name.removeprefix("no_")
        option = replace(option, negated=True, path=(*option.path[:depth], name, *option.path[depth + 1 :]))
    field = cls.model_fields[name]
    shape, current = shape_of(field), value_of(node, name, field=field)
    path = (*option.path[:depth], name)
    if depth + 1 == len(option.path):
        node[name] = _value(option, field, shape=shape, current=current)
        return path
    if not shape.nests:
        raise Mistake(f"{flag(path)} has no options of its own: give it a value")
    if shape.many:
        return _place_in_element(node, name, option=option, shape=shape, current=current, depth=depth + 1)
    node[name] = inner = tree_of(current, shape)
    return _place(inner, _class(shape, inner, path=path), option=option, depth=depth + 1, variant=shape.variant)


def _place_in_element(
    node: dict[str, Any], name: str, *, option: Given, shape: Shape, current: Any, depth: int
) -> Keys:
    path, plugin = option.path[:depth], option.path[depth]
    elements = [tree_of(element, shape) for element in current or ()]
    if shape.variant is None:
        raise Mistake(f"{flag(path)} is a list: give it whole, as JSON")
    chosen = [element["name"] for element in elements]
    if plugin not in chosen or depth + 1 == len(option.path):
        raise Mistake(f"{flag(path)} picks {', '.join(chosen) or 'nothing'}: add {plugin} to it to set its options")
    node[name] = elements
    inner = elements[chosen.index(plugin)]
    return _place(inner, _class(shape, inner, path=path), option=option, depth=depth + 1, variant=shape.variant)


def _class(shape: Shape, inner: Mapping[str, Any], *, path: Keys) -> type[Config]:
    cls = shape.config_class(inner)
    if cls is None and "name" not in inner:
        raise Mistake(f"nothing is chosen: choose one with {flag(path)}")
    if cls is None:
        raise _Undecided
    return cls


def _negates(name: str, cls: type[Config]) -> bool:
    return name.startswith("no_") and name.removeprefix("no_") in cls.model_fields


def _having(name: str, variant: Variant | None) -> list[str]:
    """Plug-ins of the same kind with an option of this name."""
    classes = {plugin: variant.config_class(plugin) for plugin in variant.names()} if variant else {}
    return [plugin for plugin, cls in classes.items() if cls is not None and name in cls.model_fields]


def tree_of(value: Any, shape: Shape) -> dict[str, Any]:
    """A nested Config, in whichever form a script may write it, as a mapping that can be changed."""
    if isinstance(value, Config):
        name = {"name": type(value).owner.name} if shape.variant else {}
        return {**name, **{key: getattr(value, key) for key in type(value).model_fields}}
    if isinstance(value, Mapping):
        return dict(value)
    if value is None:
        return {}
    if shape.variant:
        return {"name": value}
    headline = shape.config.headline if shape.config else None
    return {headline or "": value}


def _value(option: Given, field: FieldInfo, *, shape: Shape, current: Any) -> Any:
    if option.negated or not option.values:
        return _bare(option, field, shape=shape, current=current)
    if shape.many:
        return _many(option, field, shape=shape, current=current)
    text, *more = option.values
    if more:
        raise Mistake(f"got {len(option.values)} values, expected one: put quotes around a text with spaces")
    if text in NONE and shape.optional:
        return None
    if shape.nests:
        return _nested(text, shape, current=current, path=option.path)
    return _scalar(text, field.annotation)


def _bare(option: Given, field: FieldInfo, *, shape: Shape, current: Any) -> Any:
    """The option alone, or ``--no-`` before it: on and off."""
    if option.values:
        raise Mistake("takes no value after --no-")
    if field.annotation is bool:
        return not option.negated
    if option.negated and shape.many:
        return ()
    if shape.optional and (option.negated or (shape.nests and not shape.variant)):
        return None if option.negated else tree_of(current, shape)
    raise Mistake("cannot be turned off: give it another value" if option.negated else "needs a value")


def _nested(text: str, shape: Shape, *, current: Any, path: Keys) -> Any:
    if text.startswith("{"):
        return _json(text)
    inner = tree_of(current, shape)
    if shape.variant:
        # Choosing what is chosen already keeps the options that the script gives it.
        return inner if inner.get("name") == text else {"name": text}
    if shape.config is None or shape.config.headline is None:
        raise Mistake(f"got {text!r}, but it is a group of options: {_some_options(shape, path)}")
    return {**inner, shape.config.headline: _scalar(text, shape.config.model_fields[shape.config.headline].annotation)}


def _some_options(shape: Shape, path: Keys) -> str:
    names = list(shape.config.model_fields) if shape.config else []
    return ", ".join(flag((*path, name)) for name in names[:4]) + (", ..." if len(names) > 4 else "")


def _many(option: Given, field: FieldInfo, *, shape: Shape, current: Any) -> Any:
    values = option.values
    if len(values) == 1 and values[0].startswith("["):
        return _json(values[0])
    if len(values) == 1 and values[0] in NONE:
        return None if shape.optional else ()
    if not _holds_text(field.annotation) or shape.variant:
        values = tuple(part for value in values for part in value.split(",") if part)
    if not shape.variant:
        return values
    before = {element["name"]: element for element in (tree_of(element, shape) for element in current or ())}
    return [before.get(value, value) for value in values]


def _holds_text(annotation: Any) -> bool:
    return annotation is str or any(_holds_text(arg) for arg in get_args(annotation))


def _scalar(text: str, annotation: Any) -> Any:
    """``text`` itself (pydantic reads numbers and the like out of it), unless only JSON or a literal can say it."""
    if _holds_mapping(annotation) and text.startswith("{"):
        return _json(text)
    literals = {str(literal): literal for literal in _literals(annotation)}
    return literals.get(text, text)


def _holds_mapping(annotation: Any) -> bool:
    return (get_origin(annotation) or annotation) in (dict, Mapping) or any(map(_holds_mapping, get_args(annotation)))


def _literals(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for arg in get_args(annotation):
            yield from _literals(arg)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Mistake(f"got {text!r}, expected JSON ({error.msg}, column {error.colno})") from None
