# SPDX-License-Identifier: Apache-2.0
"""Plug-ins: a file in a directory is one, and mistakes in choosing are explained."""

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m2flow import registry
from m2flow.config import Config
from m2flow.data.sources.addition import Addition
from m2flow.data.sources.jsonl import Jsonl
from m2flow.errors import ConfigError
from m2flow.registry import Choice, Plugin, build

PLUGIN = '''
from m2flow import config
from m2flow.registry import Plugin

class {name}(Plugin):
    """A shape."""
    class Config(config.Config):
        """Its options."""
        size: int = 1
    def __init__(self, config):
        self.config = config
'''


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of plug-ins of a kind of its own."""
    package = tmp_path / "drawn_shapes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "base.py").write_text("")
    (package / "_draft.py").write_text("raise RuntimeError('never imported')")
    (package / "circle.py").write_text(PLUGIN.format(name="Circle"))
    (package / "support").mkdir()
    (package / "support" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry.PACKAGES, "shapes", "drawn_shapes")
    yield package
    for name in [name for name in sys.modules if name.startswith("drawn_shapes")]:
        del sys.modules[name]


def test_every_file_but_base_is_a_plugin(shapes: Path):
    assert registry.names("shapes") == ["circle"]


def test_a_file_dropped_in_while_running_is_found(shapes: Path):
    assert registry.names("shapes") == ["circle"]
    (shapes / "square.py").write_text(PLUGIN.format(name="Square"))
    assert registry.names("shapes") == ["circle", "square"]
    assert registry.load("shapes", "square").name == "square"


def test_an_unknown_name_is_refused_with_the_nearest(shapes: Path):
    with pytest.raises(ConfigError, match="unknown shape 'circel': did you mean 'circle'"):
        registry.load("shapes", "circel")
    with pytest.raises(ConfigError, match="no kind of plug-in 'shpes': did you mean 'shapes'"):
        registry.names("shpes")


def test_a_file_with_two_public_classes_is_refused(shapes: Path):
    (shapes / "twins.py").write_text(PLUGIN.format(name="One") + PLUGIN.format(name="Two"))
    with pytest.raises(ConfigError, match="must define one public plug-in class; found: One, Two"):
        registry.load("shapes", "twins")


def test_a_plugin_whose_package_is_missing_says_which(shapes: Path):
    (shapes / "heavy.py").write_text("import package_that_nobody_has\n")
    with pytest.raises(ConfigError, match="shape 'heavy' needs the package 'package_that_nobody_has'"):
        registry.load("shapes", "heavy")


def test_an_option_called_name_is_refused():
    with pytest.raises(ConfigError, match="has a field 'name'"):

        class Named(Plugin):
            class Config(Config):
                name: str = ""


def test_a_plugin_that_inherits_its_options_is_still_built_itself():
    class Larger(Addition):
        """Another class, no options of its own."""

    config = Larger.Config(digits=1)
    assert type(build(config)) is Larger
    assert Addition.Config.owner is Addition


class Picks(Config):
    """One source, and any number of them."""

    source: Choice["sources"] | None = None  # type: ignore[valid-type]
    sources: tuple[Choice["sources"], ...] = ()  # type: ignore[valid-type]


def picks(**values: Any) -> Any:
    return Picks(**values)


def test_a_choice_takes_an_id_a_mapping_or_a_config():
    expected = Addition.Config(digits=1)
    assert picks(source={"name": "addition", "digits": 1}).source == expected
    assert picks(source=expected).source == expected
    assert picks(source="addition").source == Addition.Config()
    assert picks(sources=("addition", {"name": "jsonl", "path": "x"})).sources[1] == Jsonl.Config(path=Path("x"))


def test_choices_keep_their_names_in_json():
    chosen = picks(source={"name": "jsonl", "path": "x"}, sources=("addition",))
    saved = chosen.to_dict()
    assert saved["source"]["name"] == "jsonl" and saved["sources"][0]["name"] == "addition"
    assert Picks.from_dict(saved) == chosen


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("aditon", "source: unknown source 'aditon': did you mean 'addition'?"),
        (3, "source: got 3 (int), expected the name of one of the sources (addition, "),
        ({"digits": 1}, "expected the name of one of the sources"),
        ({"name": "addition", "digit": 1}, "source.digit: no such option; did you mean source.digits?"),
        ({"name": "addition", "digits": 9}, "source.digits: got 9, expected at most 3"),
        (Config(), "source: got a Config, which belongs to no plug-in; expected one of the sources"),
    ],
)
def test_a_wrong_choice_is_explained(given: Any, message: str):
    with pytest.raises(ConfigError) as caught:
        picks(source=given)
    assert message in str(caught.value)


def test_a_plugin_of_another_kind_is_refused():
    class Algorithms(Config):
        algorithm: Choice["algorithms"]  # type: ignore[valid-type]

    with pytest.raises(
        ConfigError, match="got 'addition', which is one of the sources; expected one of the algorithms"
    ):
        Algorithms(algorithm=Addition.Config())  # pyright: ignore[reportArgumentType]


class Foreign(Plugin):
    """A plug-in of somebody else's package."""

    class Config(Config):
        """No options."""


def test_a_package_of_other_people_adds_a_plugin_by_entry_point(monkeypatch: pytest.MonkeyPatch):
    points = [
        importlib.metadata.EntryPoint("theirs", f"{__name__}:Foreign", "m2flow.sources"),
        importlib.metadata.EntryPoint("broken", f"{__name__}:PLUGIN", "m2flow.sources"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [p for p in points if p.group == group])
    assert "theirs" in registry.names("sources")
    assert picks(source="theirs").to_dict()["source"] == {"name": "theirs"}
    with pytest.raises(ConfigError, match="is no m2flow"):
        registry.load("sources", "broken")
