# SPDX-License-Identifier: Apache-2.0
"""Options of a script on the command line: ``--algorithm dapo --trainer.learning-rate 1e-4``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from m2flow.config import Config, Keys, Problem, explain, failure, option_paths, shape_of, suggest, value_of

C = TypeVar("C", bound=Config)


def parse(cls: type[C], arguments: Sequence[str]) -> C:
    """The Config that ``arguments`` describe: the class's defaults, with options given by their dotted path.

    ``--a.b value``, ``--a.b=value``, ``--flag`` and ``--no-flag`` are understood, with dashes or underscores. An option
    that holds a plug-in or a Config takes its id or its headline value. Lists are JSON, ``none`` is no value.

    Raises:
        ConfigError: lists every mistake in the arguments.
    """
    given, problems = _read(cls, arguments)
    try:
        config = cls.model_validate(_merged(_defaults(cls), given))
    except ValidationError as error:
        raise failure([*problems, *explain(error, cls, given)], what="the command line") from None
    if problems:
        raise failure(problems, what="the command line")
    config.check()
    return config


def _defaults(cls: type[Config]) -> dict[str, Any]:
    return {
        name: json.loads(json.dumps(field.get_default(call_default_factory=True), default=_plain))
        for name, field in cls.model_fields.items()
        if not field.is_required()
    }


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Config) else str(value)


def _read(cls: type[Config], arguments: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    given: dict[str, Any] = {}
    problems: list[Problem] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            problems.append(Problem((), f"'{argument}' is no option: options are written --name value"))
            continue
        name, equals, value = argument[2:].partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        elif not equals:
            name, value = (name[3:], "false") if name.startswith("no-") else (name, "true")
        _put(given, tuple(name.replace("-", "_").split(".")), _value(value))
    return given, problems + _unknown(cls, given)


def _value(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    return json.loads(text) if text[:1] in "[{" and text[-1:] in "]}" and _is_json(text) else text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return bool(text)


def _put(tree: dict[str, Any], path: Keys, value: Any) -> None:
    for key in path[:-1]:
        inner = tree.get(key)
        tree[key] = inner if isinstance(inner, dict) else ({} if inner is None else {"": inner})
        tree = tree[key]
    if isinstance(tree.get(path[-1]), dict) and not isinstance(value, dict):
        tree[path[-1]][""] = value
    else:
        tree[path[-1]] = value


def _unknown(cls: type[Config], given: Mapping[str, Any]) -> list[Problem]:
    """Names at the top that are no option; deeper ones are found when the Configs there are made."""
    unknown = [key for key in given if key not in cls.model_fields]
    problems = [Problem((key,), f"no such option: {_hint(cls, key)}") for key in unknown]
    for key in unknown:
        given.pop(key)  # type: ignore[attr-defined]
    return problems


def _hint(cls: type[Config], key: str) -> str:
    return suggest((key,), list(option_paths(cls)), show=lambda path: "--" + ".".join(path).replace("_", "-"))


def _merged(base: Any, given: Any) -> Any:
    """``given`` laid over ``base``; the key "" holds a plug-in's id or a headline value."""
    if not isinstance(given, Mapping):
        return _renamed(base, given)
    if "" in given:
        base = _renamed(base, given[""])
    if isinstance(base, str):
        base = {"name": base}
    own = dict(base) if isinstance(base, Mapping) else {}
    return {**own, **{key: _merged(own.get(key), value) for key, value in given.items() if key}}


def _renamed(base: Any, given: Any) -> Any:
    if isinstance(base, Mapping) and base.get("name") == given:
        return base
    if isinstance(base, Mapping) and "model" in base and isinstance(given, str):
        return {**base, "model": given}
    return given


def help_text(cls: type[Config], title: str) -> str:
    """All options, one a line, with type, default and meaning."""
    lines = [title, "", (cls.__doc__ or "").strip(), "", "options:"]
    for name, field in cls.model_fields.items():
        lines += _option_lines(name, field, cls)
    return "\n".join(lines)


def _option_lines(name: str, field: FieldInfo, cls: type[Config]) -> list[str]:
    default = value_of({}, name, field)
    shape = shape_of(field)
    inner = shape.config_class(default)
    label = f"--{name.replace('_', '-')}"
    shown = "" if inner is not None else f" [{_plain(default)}]"
    lines = [f"  {label}{shown}", f"      {field.description or ''}"]
    for key, sub in (inner.model_fields if inner is not None else {}).items():
        held = getattr(default, key) if isinstance(default, Config) else value_of(default, key, sub)
        lines.append(f"    {label}.{key.replace('_', '-')} [{_plain(held)}]  {sub.description or ''}")
    return lines
