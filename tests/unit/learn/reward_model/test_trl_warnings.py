"""What TRL warns of while it trains stands in the report."""

import logging

from rlhf_pipeline.learn.reward_model.network import collect_trl_warnings


def test_warnings_of_trl_are_collected_once():
    logger = logging.getLogger("trl.trainer.dpo_trainer")
    with collect_trl_warnings() as messages:
        for _ in range(2):
            logger.warning("The tokenized prompt\n is cut.")
        logger.info("fine")
    logger.warning("after")
    assert messages == ["TRL: The tokenized prompt is cut."]
