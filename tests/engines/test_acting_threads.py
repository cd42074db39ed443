# SPDX-License-Identifier: Apache-2.0
"""Small networks act with one thread, and whatever follows has its own again."""

import pytest
import torch

from m2flow.engines.control.threads import threads_for


@pytest.mark.parametrize(("width", "rows", "inside"), [(256, 8, 1), (4096, 1024, 2)])
def test_threads_are_for_work_that_is_worth_it(width: int, rows: int, inside: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError), threads_for(torch.nn.Linear(width, width), rows):
            assert torch.get_num_threads() == inside
            raise ValueError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
