import pytest

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.evaluation.plots import draw_loss_curve

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_loss_curve_is_a_png_and_grows_with_the_curves_shown():
    loss = [(i, 1 / i) for i in range(1, 30)]
    alone = draw_loss_curve(loss, title="dpo")
    more = draw_loss_curve(
        loss, title="dpo", others={"reward margin": [(1, 0.0), (2, 0.5)], "never logged": []}
    )
    assert alone.startswith(PNG)
    assert len(more) > len(alone)
    assert draw_loss_curve(loss, title="dpo") == alone


def test_one_step_is_enough_for_a_picture_and_none_is_not():
    assert draw_loss_curve([(1, 0.7)], title="sft").startswith(PNG)
    with pytest.raises(NotEnoughData):
        draw_loss_curve([], title="sft")
