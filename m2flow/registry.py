# SPDX-License-Identifier: Apache-2.0
"""Plug-ins: one file each, found by listing a directory; the file name is the plug-in's id.

``names("algorithms")`` lists what is there, ``load("algorithms", "grpo")`` imports one file and returns its class,
``Choice["algorithms"]`` is the type of a configuration field that picks one. Packages of other people add theirs
through the entry-point group ``m2flow.<kind>``.
"""

import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, PlainSerializer

from m2flow.config import Config, Variant, nearest
from m2flow.errors import ConfigError

PACKAGES = {
    "algorithms": "m2flow.algorithms",
    "engines": "m2flow.engines",
    "envs": "m2flow.envs",
    "loggers": "m2flow.observe.loggers",
    "policies": "m2flow.policies",
    "rewards": "m2flow.rewards",
    "sources": "m2flow.data.sources",
    "trainers": "m2flow.trainers",
}
"""The package that holds the files of each kind of plug-in."""


AnyConfig = Config
"""Config under a name that a plug-in's own Config does not hide."""


class Plugin:
    """Base of every plug-in class: it nests one ``Config``, whose ``owner`` is the class itself.

    A subclass that nests none gets its own copy of the one it inherits.
    """

    Config: ClassVar[type[AnyConfig]]
    name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__module__.rpartition(".")[2]
        own = cls.__dict__.get("Config")
        inherited = getattr(cls, "Config", None)
        if own is None and inherited is not None:
            own = type(inherited)("Config", (inherited,), {"__module__": cls.__module__, "__doc__": inherited.__doc__})
            cls.Config = own
        if own is not None:
            _require_no_name(cls, own)
            own.owner = cls


def _require_no_name(cls: type[Plugin], config: type[Config]) -> None:
    if "name" in config.model_fields:
        raise ConfigError(
            f"{cls.__qualname__}.Config has a field 'name', where the plug-in's id stands: call it something else"
        )


def _files(kind: str) -> list[str]:
    if kind not in PACKAGES:
        raise ConfigError(f"there is no kind of plug-in '{kind}': {nearest(kind, PACKAGES)}")
    package = importlib.import_module(PACKAGES[kind])
    found = pkgutil.iter_modules(package.__path__)
    return [m.name for m in found if not m.ispkg and m.name != "base" and not m.name.startswith("_")]


def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=f"m2flow.{kind}")}


def names(kind: str) -> list[str]:
    """Ids of all plug-ins of ``kind``, sorted; nothing is imported but the package that holds them."""
    return sorted({*_files(kind), *_entry_points(kind)})


def load(kind: str, name: str) -> type[Plugin]:
    """The class of plug-in ``name``.

    Raises:
        ConfigError: no such plug-in (the nearest name is given), its file has not exactly one public class, or it
            needs a package that is not installed.
    """
    if name in _files(kind):
        return _only_class(_module(kind, name))
    if name in (points := _entry_points(kind)):
        return _foreign(kind, points[name])
    raise ConfigError(f"unknown {kind[:-1]} '{name}': {nearest(name, names(kind))}")


def _module(kind: str, name: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(f"{PACKAGES[kind]}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "m2flow":
            raise
        raise ConfigError(
            f"{kind[:-1]} '{name}' needs the package '{error.name}', which is not installed: install it or take another"
        ) from error


def _foreign(kind: str, point: importlib.metadata.EntryPoint) -> type[Plugin]:
    found = point.load()
    if not (inspect.isclass(found) and issubclass(found, Plugin)):
        raise ConfigError(
            f"entry point '{point.name}' of m2flow.{kind} is {point.value}, which is no m2flow.registry.Plugin class: "
            "mend or remove the package that declares it"
        )
    found.name = point.name
    return found


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


def build(config: Any, *args: Any, **options: Any) -> Any:
    """The plug-in that ``config`` belongs to, made from it: ``build(Grpo.Config())`` is ``Grpo(Grpo.Config())``."""
    return type(config).owner(config, *args, **options)


def choose(kind: str, given: Any) -> Any:
    """``given`` as a plug-in's Config: an id, a mapping with ``name`` and options, or a Config already.

    Raises:
        ValueError: no such plug-in, or one of another kind (pydantic makes it one of the mistakes that it reports).
    """
    if given is None:
        return None
    if isinstance(given, Config):
        _require_kind(kind, given)
        return given
    options = _options(kind, given)
    return _plugin(kind, options.pop("name")).Config.model_validate(options)


def _options(kind: str, given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        return dict(given)
    raise ValueError(
        f"got {given!r} ({type(given).__name__}), expected the name of one of the {kind} ({', '.join(names(kind))}), "
        "or a mapping with 'name' and its options"
    )


def _plugin(kind: str, name: str) -> type[Plugin]:
    try:
        return load(kind, name)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _require_kind(kind: str, config: Config) -> None:
    owner = type(config).owner
    if owner is None:
        raise ValueError(f"got a {type(config).__qualname__}, which belongs to no plug-in; expected one of the {kind}")
    homes = [other for other, package in PACKAGES.items() if owner.__module__.startswith(f"{package}.")]
    if homes and kind not in homes:
        raise ValueError(f"got '{owner.name}', which is one of the {homes[0]}; expected one of the {kind}")


def _dump(config: Config | None) -> dict[str, Any] | None:
    return None if config is None else {"name": type(config).owner.name, **config.model_dump(mode="json")}


class Choice(Variant):
    """``Choice["algorithms"]``: the type of a field that holds the Config of one plug-in of that kind.

    The field takes an id (``"dapo"``), an id with options (``{"name": "dapo", "clip_high": 0.3}``) or a Config.
    """

    def __class_getitem__(cls, kind: str) -> Any:
        return Annotated[Config, BeforeValidator(lambda given: choose(kind, given)), PlainSerializer(_dump), cls(kind)]

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def names(self) -> list[str]:
        """Ids of the plug-ins of this kind."""
        return names(self.kind)

    def config_class(self, given: Any) -> type[Config] | None:
        """The Config class of the plug-in that ``given`` picks; ``None`` where it picks none."""
        if isinstance(given, Config):
            return type(given)
        try:
            return load(self.kind, _options(self.kind, given)["name"]).Config
        except (ConfigError, ValueError):
            return None


if TYPE_CHECKING:
    # To a type checker a choice is anything that names a plug-in: an id, an id with options, or its Config.
    AlgorithmConfig = EngineConfig = EnvConfig = LoggerConfig = PolicyConfig = SourceConfig = TrainerConfig = Any
else:
    AlgorithmConfig = Choice["algorithms"]
    EngineConfig = Choice["engines"]
    EnvConfig = Choice["envs"]
    LoggerConfig = Choice["loggers"]
    PolicyConfig = Choice["policies"]
    SourceConfig = Choice["sources"]
    TrainerConfig = Choice["trainers"]
