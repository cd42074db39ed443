# SPDX-License-Identifier: Apache-2.0
"""Plug-ins: one file each, found by listing a directory; the file name is the plug-in's id.

``names("algorithms")`` lists what is there, ``load("algorithms", "grpo")`` imports one file and returns its class,
``Choice["algorithms"]`` is the type of a configuration field that picks one. Packages of other people add theirs
through the entry-point group ``m2flow.<kind>``.
"""

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
from types import ModuleType
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, SerializeAsAny

from m2flow.config import Config
from m2flow.errors import ConfigError

PACKAGES = {
    "algorithms": "m2flow.algorithms",
    "engines": "m2flow.engines",
    "loggers": "m2flow.observe.loggers",
    "policies": "m2flow.policies",
    "rewards": "m2flow.rewards",
    "trainers": "m2flow.trainers",
}
"""The package that holds the files of each kind of plug-in."""


class Plugin:
    """Base of every plug-in class: it nests one ``Config``, whose ``owner`` is the class itself."""

    Config: ClassVar[type[Config]]
    name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__module__.rpartition(".")[2]
        if "Config" in cls.__dict__:
            cls.Config.owner = cls


def _files(kind: str) -> list[str]:
    package = importlib.import_module(PACKAGES[kind])
    return [m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg and m.name != "base"]


def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=f"m2flow.{kind}")}


def names(kind: str) -> list[str]:
    """Ids of all plug-ins of ``kind``, sorted; nothing is imported but the package that holds them."""
    return sorted({*_files(kind), *_entry_points(kind)})


def nearest(name: str, known: list[str]) -> str:
    """A sentence that names the closest of ``known``, or lists them all."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"choose one of: {', '.join(known)}"


def load(kind: str, name: str) -> type[Plugin]:
    """The class of plug-in ``name``.

    Raises:
        ConfigError: no such plug-in (the nearest name is given), or its file has not exactly one public class.
    """
    if name in _files(kind):
        return _only_class(importlib.import_module(f"{PACKAGES[kind]}.{name}"))
    if name in (points := _entry_points(kind)):
        return points[name].load()
    raise ConfigError(f"unknown {kind[:-1]} '{name}': {nearest(name, names(kind))}")


def _only_class(module: ModuleType) -> type[Plugin]:
    public = [
        item
        for key, item in vars(module).items()
        if inspect.isclass(item)
        and issubclass(item, Plugin)
        and item.__module__ == module.__name__
        and not key.startswith("_")
    ]
    if len(public) != 1:
        found = ", ".join(item.__name__ for item in public) or "none"
        raise ConfigError(f"{module.__name__} must define one public plug-in class; found: {found}")
    return public[0]


def build(config: Config, *args: Any) -> Any:
    """The plug-in that ``config`` belongs to, made from it: ``build(Grpo.Config())`` is ``Grpo(Grpo.Config())``."""
    return type(config).owner(config, *args)


def choose(kind: str, given: Any) -> Any:
    """``given`` as a plug-in's Config: an id, a mapping with ``name`` and options, or a Config already."""
    if isinstance(given, Config) or given is None:
        return given
    options = {"name": given} if isinstance(given, str) else dict(given)
    try:
        owner = load(kind, options.pop("name", ""))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return owner.Config.model_validate(options)


class Choice:
    """``Choice["algorithms"]``: the type of a field that holds the Config of one plug-in of that kind.

    The field takes an id (``"dapo"``), an id with options (``{"name": "dapo", "clip_high": 0.3}``) or a Config.
    """

    def __class_getitem__(cls, kind: str) -> Any:
        return Annotated[SerializeAsAny[Config], BeforeValidator(lambda given: choose(kind, given)), Choice(kind)]

    def __init__(self, kind: str) -> None:
        self.kind = kind


AlgorithmConfig = Choice["algorithms"]
EngineConfig = Choice["engines"]
TrainerConfig = Choice["trainers"]
