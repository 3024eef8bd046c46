from rlhf_pipeline.improve.retraining.checkpoints import (
    find_last_complete,
    mark_complete,
    open_checkpoints,
    replace_folder,
)


def checkpoint(folder, step, content="weights"):
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    (path / "model.safetensors").write_text(content)
    return path


def test_newest_complete_checkpoint_is_taken(tmp_path):
    folder = open_checkpoints(tmp_path / "checkpoints", "same training")
    assert find_last_complete(folder) is None
    for step in (5, 10, 100):
        mark_complete(checkpoint(folder, step), seconds=step / 10)
    newest = find_last_complete(folder)
    assert (newest.step, newest.seconds, newest.folder.name) == (100, 10.0, "checkpoint-100")


def test_a_checkpoint_cut_off_by_a_kill_is_skipped(tmp_path):
    folder = open_checkpoints(tmp_path / "checkpoints", "same training")
    mark_complete(checkpoint(folder, 5), seconds=1)
    checkpoint(folder, 10)  # killed before it was vouched for
    assert find_last_complete(folder).step == 5


def test_checkpoint_with_truncated_files_is_skipped(tmp_path):
    folder = open_checkpoints(tmp_path / "checkpoints", "same training")
    mark_complete(checkpoint(folder, 5), seconds=1)
    damaged = checkpoint(folder, 10)
    mark_complete(damaged, seconds=2)
    (damaged / "model.safetensors").write_text("weig")
    assert find_last_complete(folder).step == 5


def test_checkpoints_of_another_training_are_not_continued(tmp_path):
    folder = open_checkpoints(tmp_path / "checkpoints", "beta 0.1")
    mark_complete(checkpoint(folder, 5), seconds=1)
    assert find_last_complete(open_checkpoints(folder, "beta 0.1")).step == 5
    assert find_last_complete(open_checkpoints(folder, "beta 0.2")) is None


def test_finished_folder_replaces_the_old_one(tmp_path):
    for name in ("new", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    replace_folder(tmp_path / "new", tmp_path / "model")
    assert (tmp_path / "model" / "file").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
