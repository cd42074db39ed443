# SPDX-License-Identifier: Apache-2.0
"""The help of a script: every option of its Config, group by group, with type, default and choices."""

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from m2flow.cli.overrides import flag, overrides
from m2flow.config import Config, Keys, Shape, Variant, shape_of, value_of

WIDTH = 110
"""Columns that help takes at most."""
OPTION_WIDTH = 44
TYPES = {int: "int", float: "number", str: "text", Path: "path", bool: "true|false", type(None): "none", dict: "JSON"}


@dataclass(frozen=True)
class Row:
    """One option."""

    flag: str
    kind: str
    default: str | None
    """``None``: it has to be given."""
    text: str


@dataclass(frozen=True)
class Section:
    """The options of one Config."""

    title: str
    text: str
    rows: Sequence[Row]


def help_text(cls: type[Config], argv: Sequence[str] = (), *, title: str = "script.py", about: str = "") -> str:
    """The help as plain text; ``argv`` may choose plug-ins, whose options are then shown."""
    console = Console(file=StringIO(), width=WIDTH, color_system=None, force_terminal=False)
    console.print(help_view(cls, argv, title=title, about=about))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def help_view(cls: type[Config], argv: Sequence[str] = (), *, title: str, about: str = "") -> RenderableType:
    """The same for a terminal."""
    tree, _ = overrides(cls, argv)
    parts: list[RenderableType] = [
        Text.assemble(("usage: ", "bold"), f"{title} [--option value ...]"),
        *([Text(), Text(about)] if about else []),
    ]
    for section in sections(cls, tree):
        parts += [Text(), _heading(section), *([_table(section.rows)] if section.rows else [])]
    return Group(*parts, Text(), _general())


def sections(
    cls: type[Config], given: Any, *, path: Keys = (), title: str = "Options", text: str = ""
) -> Iterator[Section]:
    """The Config's own options, then each Config nested in it, in the order of the fields."""
    nested: list[Section] = []
    rows: list[Row] = []
    for name, field in cls.model_fields.items():
        shape, value = shape_of(field), value_of(given, name, field=field)
        here = (*path, name)
        if shape.nests and not shape.many:
            nested += _nested_sections(here, field, shape=shape, value=value)
        else:
            rows.append(_row(here, field, shape=shape, value=value))
            nested += _chosen_sections(here, shape, values=value or ()) if shape.many and shape.variant else []
    yield Section(title, text, rows)
    yield from nested


def _nested_sections(path: Keys, field: FieldInfo, *, shape: Shape, value: Any) -> list[Section]:
    cls = shape.config_class(value) or (None if shape.variant else shape.config)
    about = _sentence(field.description)
    if shape.variant:
        head = _choice_row(path, shape.variant, value=value)
        if cls is None:
            return [Section(".".join(path), about, [head])]
        title, rows = f"{'.'.join(path)}: {cls.owner.name}", [head]
    elif cls is None:
        return []
    else:
        title, rows = ".".join(path), _headline_rows(path, cls, value=value, shape=shape)
    own, *rest = sections(cls, value if not isinstance(value, str) else None, path=path, title=title, text=about)
    spelled_short = flag((*path, cls.headline)) if cls.headline else None
    kept = [row for row in own.rows if row.flag != spelled_short]
    return [Section(own.title, own.text, [*rows, *kept]), *rest]


def _chosen_sections(path: Keys, shape: Shape, *, values: Sequence[Any]) -> list[Section]:
    found: list[Section] = []
    for value in values:
        if cls := shape.config_class(value):
            name = cls.owner.name
            found += sections(
                cls, value, path=(*path, name), title=".".join((*path, name)), text=_sentence(cls.__doc__)
            )
    return found


def _choice_row(path: Keys, variant: Variant, *, value: Any) -> Row:
    cls = variant.config_class(value)
    names = variant.names()
    others = [name for name in names if cls is None or name != cls.owner.name]
    more = f" {flag(path)} {others[0]} --help shows the options of {others[0]}." if others else ""
    return Row(flag(path), "name", cls.owner.name if cls else "none", f"One of {', '.join(names)}.{more}")


def _headline_rows(path: Keys, cls: type[Config], *, value: Any, shape: Shape) -> list[Row]:
    if shape.optional:
        switch = f"{flag(path)} or any of its options turns it on, --no-{flag(path)[2:]} off."
        return [Row(flag(path), "", "off" if value is None else "on", switch)]
    if cls.headline is None:
        return []
    field = cls.model_fields[cls.headline]
    inner = shape_of(field)
    current = value_of(value, cls.headline, field=field)
    if inner.variant:
        return []
    return [_row(path, field, shape=inner, value=current)]


def _row(path: Keys, field: FieldInfo, *, shape: Shape, value: Any) -> Row:
    text = _sentence(field.description)
    if shape.variant:
        text += f" Any of {', '.join(shape.variant.names())}."
    required = field.is_required() and value is None
    name = flag(path)
    if field.annotation is bool:
        name = f"--[no-]{name[2:]}"
    return Row(name, _kind(field, shape), None if required else _shown(value), text)


def _kind(field: FieldInfo, shape: Shape) -> str:
    if field.annotation is bool:
        return ""
    if shape.variant:
        return "name ..."
    return " ".join([type_name(field.annotation), *_range(field)])


def type_name(annotation: Any) -> str:
    """A field's type in a few words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(args[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(arg) for arg in args))
    if origin is Literal:
        return "|".join(str(arg) for arg in args)
    if origin in (tuple, list, Sequence):
        return f"{type_name(args[0])} ..."
    if origin in (dict, Mapping):
        return "JSON"
    return TYPES.get(annotation, "JSON" if _is_config(annotation) else getattr(annotation, "__name__", "value"))


def _is_config(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Config)


def _range(field: FieldInfo) -> Iterator[str]:
    signs = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}
    for note in field.metadata:
        for kind, (sign, name) in signs.items():
            if isinstance(note, kind):
                yield f"{sign} {_number(getattr(note, name))}"


def _number(value: Any) -> str:
    exponent = value.bit_length() - 1 if isinstance(value, int) and value > 2**31 else 0
    return f"2^{exponent}" if exponent and value == 2**exponent else f"{value}"


def _shown(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):
        return " ".join(_element(element) for element in value) or "none"
    return repr(value) if value == "" else str(value)


def _element(value: Any) -> str:
    if isinstance(value, Config):
        return type(value).owner.name if type(value).owner else type(value).__name__
    return str(value["name"]) if isinstance(value, Mapping) and "name" in value else str(value)


def _sentence(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").replace("``", "").split())


def _heading(section: Section) -> RenderableType:
    return Text.assemble((section.title, "bold cyan"), f"  {section.text}")


def _table(rows: Sequence[Row]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=OPTION_WIDTH, overflow="fold")
    table.add_column(ratio=1)
    for row in rows:
        default = ("required", "bold red") if row.default is None else (f"[{row.default}]", "green")
        kind = Text(f" {row.kind}" if row.kind else "", style="dim")
        table.add_row(Text(row.flag, style="bold").append(kind), Text(row.text + " ").append(*default))
    return Padding(table, (0, 0, 0, 2))


def _general() -> RenderableType:
    lines = (
        ("--check", "Look at the options and stop: every mistake at once."),
        ("--help", "Show this. With an option that chooses a plug-in, its options are shown too."),
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=OPTION_WIDTH)
    table.add_column(ratio=1)
    for name, text in lines:
        table.add_row(Text(name, style="bold"), text)
    note = Text("Values in [brackets] are what the script uses. Lists take several values; none switches a value off.")
    return Group(Text("Always", style="bold cyan"), Padding(table, (0, 0, 0, 2)), Text(), note)
