"""Rows that come in pieces of any size lie in panels as if they had come at once."""

import pytest
import torch

from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.panels import empty_panels, fill_panels, panel_rows

pytestmark = pytest.mark.skipif(not native.available(), reason="no compiled products on this machine")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.bfloat16, torch.float32, torch.int32], ids=str)
@pytest.mark.parametrize("cuts", [(), (16,), (3, 20, 21, 64), (1, 2, 31), (33, 49)], ids=str)
@pytest.mark.parametrize("columns", [1, 7, 130])
def test_rows_lie_where_they_belong(dtype: torch.dtype, cuts: tuple[int, ...], columns: int) -> None:
    rows = torch.randint(-100, 100, (70, columns)).to(dtype)
    panels = empty_panels(*rows.shape, dtype)
    for first, last in zip((0, *cuts), (*cuts, len(rows)), strict=True):
        fill_panels(panels, first, rows[first:last])
    whole = torch.cat((rows, torch.zeros((10, columns), dtype=dtype)))
    assert torch.equal(panels, whole.view(5, 16, columns).transpose(1, 2))
    some = torch.tensor([69, 0, 16, 31])
    assert torch.equal(panel_rows(panels, some), rows[some])
