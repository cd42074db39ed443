# SPDX-License-Identifier: Apache-2.0
"""Films: decoded again, they are the pictures that went in."""

import io
from typing import Any

import numpy as np
import pytest

from m2flow.data import films
from m2flow.errors import M2flowError

av: Any = pytest.importorskip("av")


@pytest.mark.parametrize(("height", "width"), [(64, 96), (33, 47)])
def test_a_film_shows_its_pictures_in_their_order(height: int, width: int) -> None:
    pictures = [np.full((height, width, 3), level, np.uint8) for level in (10, 120, 240)]
    film = films.filmed(pictures, tick_s=0.05)
    with av.open(io.BytesIO(film.mp4)) as container:
        stream = container.streams.video[0]
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert stream.codec_context.name == "h264" and stream.average_rate == 20
    assert film.num_pictures == len(shown) == 3
    # Sizes are rounded up to even ones.
    assert shown[0].shape == (height + height % 2, width + width % 2, 3)
    for ours, wanted in zip(shown, pictures, strict=True):
        assert abs(ours.mean() - wanted.mean()) < 6


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(M2flowError, match="no pictures"):
        films.filmed([], tick_s=0.05)
    monkeypatch.setattr(films.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(M2flowError, match=r"pip install 'm2flow\[video\]'"):
        films.require_encoder()
