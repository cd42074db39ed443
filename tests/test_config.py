# SPDX-License-Identifier: Apache-2.0
"""Configuration: mistakes are all reported at once, with the nearest name; JSON round trips."""

import json
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from m2flow.config import Config, shape_of, suggest
from m2flow.errors import ConfigError


class Adapter(Config):
    """Innermost."""

    rank: int = Field(default=8, gt=0)
    alpha: float = 16.0


class Model(Config):
    """In the middle, with a headline."""

    headline = "model"

    model: str = "tiny"
    dtype: Literal["float32", "bfloat16"] = "float32"
    adapter: Adapter | None = None

    def problems(self) -> list[str]:
        """A rule between fields."""
        wrong = self.adapter is not None and self.dtype == "bfloat16"
        return ["adapters need float32"] if wrong else []


class Settings(Config):
    """Outermost."""

    batch: int = 8
    groups: int = 4
    rate: float = Field(default=1e-3, ge=0, lt=1)
    limit: int | float | None = None
    stop: tuple[str, ...] = ()
    model: Model = Model()
    adapters: tuple[Adapter, ...] = ()
    path: Path | None = None

    def problems(self) -> list[str]:
        """Divisibility."""
        return [] if self.batch % self.groups == 0 else [f"batch={self.batch} is no multiple of groups={self.groups}"]


def mistakes(**values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)  # type: ignore[arg-type]
    return str(caught.value)


def test_an_unknown_key_is_refused_with_the_nearest_name_at_every_depth():
    assert "bach: no such option; did you mean batch?" in mistakes(bach=3)
    assert "model.dtyp: no such option; did you mean model.dtype?" in mistakes(model={"dtyp": "float32"})
    deep = mistakes(model={"adapter": {"rnk": 1}})
    assert "model.adapter.rnk: no such option; did you mean model.adapter.rank?" in deep
    assert "adapters[1].alfa: no such option; did you mean adapters[1].alpha?" in mistakes(adapters=[{}, {"alfa": 1}])


def test_a_key_that_belongs_elsewhere_is_found_there():
    assert "did you mean model.adapter.rank?" in mistakes(rank=4)


def test_a_key_like_no_other_gets_the_list_of_those_beside_it():
    assert "the options here are model.model, model.dtype, model.adapter" in mistakes(model={"zzzzzz": 1})


def test_all_mistakes_are_in_one_message():
    text = mistakes(bach=1, rate=2, stop=3, model={"dtype": "int8", "adapter": {"rank": 0}})
    assert text.splitlines()[0] == "5 mistakes in Settings:"
    assert "  rate: got 2, expected less than 1" in text
    assert "  stop: got 3, expected a list" in text
    assert "  model.dtype: got 'int8', expected 'float32' or 'bfloat16'" in text
    assert "  model.adapter.rank: got 0, expected more than 0" in text


def test_one_mistake_is_said_once_for_all_members_of_a_union():
    assert mistakes(limit="many") == (
        "1 mistake in Settings:\n  limit: got 'many', expected a whole number or a number"
    )


def test_types_that_are_not_plain_are_named():
    assert "batch: got [1] (list), expected a whole number" in mistakes(batch=[1])
    assert "model: got [] (list), expected a mapping of options" in mistakes(model=[])


def test_numbers_that_are_not_finite_are_refused():
    assert "rate: got nan, expected a finite number" in mistakes(rate=float("nan"))


def test_a_bare_value_for_a_nested_config_is_its_headline():
    assert Settings(model="smollm2").model == Model(model="smollm2")  # type: ignore[arg-type]
    assert "model.adapter: got 'x', expected a mapping of options" in mistakes(model={"adapter": "x"})


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Settings().batch = 3  # type: ignore[misc]


def test_problems_of_all_depths_are_listed_together():
    settings = Settings(batch=7, model=Model(dtype="bfloat16", adapter=Adapter()))
    with pytest.raises(ConfigError) as caught:
        settings.check()
    assert str(caught.value).splitlines() == [
        "2 mistakes in Settings:",
        "  batch=7 is no multiple of groups=4",
        "  model: adapters need float32",
    ]
    Settings().check()


@given(
    batch=st.integers(),
    rate=st.floats(0, 1, exclude_max=True),
    stop=st.lists(st.text()),
    rank=st.none() | st.integers(1),
    name=st.text(),
)
def test_json_gives_the_same_config_back(batch: int, rate: float, stop: list[str], rank: int | None, name: str):
    adapter = None if rank is None else Adapter(rank=rank)
    settings = Settings(batch=batch, rate=rate, stop=tuple(stop), model=Model(model=name, adapter=adapter))
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_a_saved_config_is_loaded_as_it_was(tmp_path: Path):
    settings = Settings(stop=("é", "\n"), path=Path("a/b"), adapters=(Adapter(rank=3),))
    settings.save(tmp_path / "config.json")
    assert Settings.load(tmp_path / "config.json") == settings


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"bach": 1}'])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, text: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json|did you mean batch"):
        Settings.load(tmp_path / "config.json")


def test_a_missing_file_is_refused_by_name(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        Settings.load(tmp_path / "nowhere.json")


def test_shapes_say_what_nests():
    fields = Settings.model_fields
    assert shape_of(fields["model"]).config is Model
    assert shape_of(Model.model_fields["adapter"]).optional
    assert shape_of(fields["adapters"]).many and shape_of(fields["adapters"]).config is Adapter
    assert not shape_of(fields["limit"]).nests and shape_of(fields["limit"]).optional


def test_a_suggestion_prefers_the_whole_path_to_the_last_name():
    known = [("model", "rate"), ("trainer", "rate")]
    assert suggest(("traner", "rate"), known) == "did you mean trainer.rate?"
