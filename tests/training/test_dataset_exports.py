"""TRL trains on exported data sets as they are."""

import pytest

from rlhf_pipeline.feedback.datasets.exporters import EXPORTERS
from rlhf_pipeline.generate.policy.causal_lm import load_policy
from rlhf_pipeline.simulation.testing.strategies import build_policy
from tests.dataset_rows import build_dataset_rows

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize("name", ["trl", "trl_conversational"])
def test_dpo_trains_a_step_on_an_export(tmp_path, name):
    from datasets import load_dataset
    from trl import DPOConfig, DPOTrainer

    rows = build_dataset_rows(8)
    file = tmp_path / "set.jsonl"
    file.write_bytes(EXPORTERS[name]().export(rows, "preference"))
    policy = load_policy(build_policy(tmp_path / "policy"))
    policy.tokenizer.pad_token = policy.tokenizer.eos_token
    policy.tokenizer.chat_template = TEMPLATE
    trainer = DPOTrainer(
        policy.model,
        args=DPOConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=1,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=load_dataset(
            "json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache")
        ),
        processing_class=policy.tokenizer,
    )
    before = [p.clone() for p in policy.model.parameters()]
    trainer.train()
    assert trainer.state.global_step == 1
    assert any((p != q).any() for p, q in zip(policy.model.parameters(), before, strict=True))
