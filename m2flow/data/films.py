# SPDX-License-Identifier: Apache-2.0
"""Pictures one after another, as an mp4 that every browser plays."""

import importlib
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from m2flow.errors import M2flowError

INSTALL = "films need the package 'av': pip install 'm2flow[video]'"


@dataclass(frozen=True, kw_only=True)
class Film:
    """An mp4 (H.264)."""

    mp4: bytes
    num_pictures: int


def filmed(pictures: Sequence[np.ndarray], *, tick_s: float) -> Film:
    """``pictures`` [height, width, 3] uint8, all of one size, each shown for ``tick_s`` seconds.

    Raises:
        M2flowError: there is none, or the package that encodes them is not installed.
    """
    require_encoder()
    if not pictures:
        raise M2flowError("a film of no pictures was asked for: give at least one")
    av: Any = importlib.import_module("av")
    file, (height, width, _) = io.BytesIO(), pictures[0].shape
    # Colours are stored for squares of two by two pixels.
    padding = ((0, height % 2), (0, width % 2), (0, 0))
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(1 / tick_s).limit_denominator(1000))
        stream.height, stream.width, stream.pix_fmt = height + height % 2, width + width % 2, "yuv420p"
        for picture in pictures:
            whole = np.ascontiguousarray(np.pad(picture, padding, mode="edge"))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(whole, format="rgb24")))
        container.mux(stream.encode(None))
    return Film(mp4=file.getvalue(), num_pictures=len(pictures))


def require_encoder() -> None:
    """Find out before anything is drawn.

    Raises:
        M2flowError: the package that encodes films is not installed.
    """
    if not importlib.util.find_spec("av"):
        raise M2flowError(INSTALL)
