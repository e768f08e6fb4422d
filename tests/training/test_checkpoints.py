"""Checkpoints load exactly, or an error names every difference."""

import pathlib
import resource
import zlib

import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertForPretraining, AlbertModel
from albert_tf.tasks.registry import find
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.trainer import Trainer
from albert_tf.training.training_config import TrainingConfig


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("model"))
    model = AlbertForPretraining(tiny.CONFIG)
    checkpoints.create_model_dir(directory, tiny.CONFIG)
    checkpoints.save(directory, checkpoints.named_variables(model), 5)
    return directory, model


def test_every_weight_is_restored(saved):
    """A model restored from a directory equals the model that was saved."""
    directory, model = saved
    other = AlbertForPretraining(tiny.CONFIG)
    checkpoints.restore_weights(other, directory)
    for left, right in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(left, right)


def test_names_may_hold_any_mark(tmp_path):
    """Variable names may contain dots and hyphens, as in `squad-2.0/kernel`."""
    names = ("squad-2.0/kernel", "a./b", "a.S/..c", "plain")
    saved, found = (
        {name: tf.Variable(x * i) for i, name in enumerate(names, 1)}
        for x in (1.0, 0.0)
    )
    checkpoints.save(str(tmp_path), saved)
    prefix = checkpoints.for_inference(str(tmp_path))
    assert checkpoints.read_table(prefix).keys() == set(names)
    checkpoints.restore(prefix, found)
    assert [float(v) for v in found.values()] == [1.0, 2.0, 3.0, 4.0]
    assert checkpoints.reader(prefix)("a.S/..c") == 3.0
    checkpoints.save(str(tmp_path), saved, 1)  # by default, keep only one
    names = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert names == {"ckpt-1", "checkpoint"}


def test_a_fingerprint_is_of_the_step_and_the_weights(saved):
    """A fingerprint consists of the step and the `.index` file's checksum."""
    prefix = checkpoints.for_inference(saved[0])
    crc = zlib.crc32(pathlib.Path(saved[0], "ckpt-5.index").read_bytes())
    assert checkpoints.fingerprint(prefix) == f"step 5, {crc:08x}"


def test_equal_states_have_equal_fingerprints(tmp_path):
    """A fingerprint does not depend on earlier models of the process.

    The same holds for a checkpoint of only the weights. Different weights have
    a different fingerprint.
    """
    task, found = find("sst-2"), []
    for folder, step in (("first", 5), ("again", 5), ("other", 6)):
        trainer = Trainer(
            tf.distribute.get_strategy(),
            lambda: task.build_model(tiny.SHALLOW, "float32"),
            task.objective,
            OptimizerConfig(ema_decay=0.5),
            TrainingConfig(),
        )
        tables = {"state": trainer.state(), "weights": trainer.weights}
        for number, v in enumerate(tables["state"].values(), step):
            v.assign(tf.fill(v.shape, tf.cast(number, v.dtype)))
        for name, table in tables.items():
            path = str(tmp_path / folder / name)
            found.append(
                checkpoints.fingerprint(checkpoints.save(path, table, 5))
            )
    assert found[:2] == found[2:4]
    assert len({*found}) == 4


def test_an_encoder_is_restored_from_a_pretrained_model(saved):
    """An encoder is restored from a pretrained model's checkpoint.

    The heads in the checkpoint are ignored.
    """
    directory, model = saved
    encoder = AlbertModel(tiny.CONFIG)
    encoder.build()
    checkpoints.restore_weights(encoder, directory, only=("albert/",))
    np.testing.assert_array_equal(
        encoder.pooler.kernel, model.albert.pooler.kernel
    )


def test_missing_unexpected_and_misshaped_are_named(saved):
    """One error lists all missing, unexpected and misshaped variables."""
    directory, model = saved
    prefix = checkpoints.for_inference(directory)
    table = checkpoints.named_variables(model)
    table["head/kernel"] = table.pop("sop/classifier/kernel")
    table["mlm/output_bias"] = table["albert/pooler/bias"]
    with pytest.raises(InputError) as error:
        checkpoints.restore(prefix, table)
    text = str(error.value)
    assert "missing head/kernel" in text
    assert "unexpected sop/classifier/kernel [16, 2]" in text
    assert "mis-shaped mlm/output_bias: [50] instead of [16]" in text


def test_a_directory_without_a_checkpoint_is_named(tmp_path):
    """A model directory without a checkpoint raises an error."""
    with pytest.raises(InputError, match="must contain a checkpoint"):
        checkpoints.for_inference(str(tmp_path))


class TestSeveralFiles:
    """A checkpoint that is divided into several small data files."""

    @pytest.fixture(autouse=True)
    def small_files(self, monkeypatch):
        monkeypatch.setattr(checkpoints, "SHARD_BYTES", 100)

    @staticmethod
    def variables(start=0.0):
        """Return {name: variable}: 60, 2,000, 80 and 8 bytes per replica."""
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            floats = {
                name: tf.Variable(start + tf.range(size, dtype=tf.float32))
                for name, size in {"a": 15, "b/c": 500, "z": 20}.items()
            }
            step = tf.Variable(
                tf.constant(int(start), tf.int64), trainable=False
            )
            return floats | {"step": step}

    def test_it_is_an_ordinary_checkpoint(self, tmp_path):
        """TensorFlow's readers and `restore` read every variable."""
        saved, read, restored = map(self.variables, (1.0, 2.0, 3.0))
        prefix = checkpoints.save(str(tmp_path), saved)
        sizes = [p.stat().st_size for p in tmp_path.glob("ckpt-0.data-*")]
        files_of_variables = [n for n in sizes if n in (60, 68, 80, 88, 2000)]
        assert len(files_of_variables) == 3 and 2000 in sizes
        tf.train.Checkpoint(variables=read).read(prefix).assert_consumed()
        checkpoints.restore(prefix, restored)
        stored = tf.train.load_checkpoint(prefix)
        keys = "/.ATTRIBUTES/VARIABLE_VALUE"
        for name, variable in saved.items():
            key = f"variables/{name.replace('/', '.S')}{keys}"
            for value in (read[name], restored[name], stored.get_tensor(key)):
                np.testing.assert_array_equal(value, variable)

    def test_damage_of_any_file_is_noticed(self, tmp_path, capsys):
        """If any file is damaged, the previous checkpoint is used."""
        checkpoints.save(str(tmp_path), self.variables(1.0), 1, keep=2)
        checkpoints.save(str(tmp_path), self.variables(2.0), 2, keep=2)
        paths = sorted(tmp_path.glob("ckpt-2.data-*"))
        for path in paths:
            content = path.read_bytes()
            middle = len(content) // 2
            damage = bytes([content[middle] ^ 4])
            path.write_bytes(content[:middle] + damage + content[middle + 1 :])
            assert checkpoint_files.latest(str(tmp_path)).endswith("ckpt-1")
            path.write_bytes(content)
        assert checkpoint_files.latest(str(tmp_path)).endswith("ckpt-2")
        assert capsys.readouterr().out.count("is damaged") == len(paths)

    def test_one_file_that_cannot_be_written_fails_all(self, tmp_path):
        """A save fails as a whole if one file cannot be written.

        The old checkpoint is kept, even if it has the same step, and files of
        the new checkpoint are removed.
        """
        checkpoints.save(str(tmp_path), self.variables(), 1, keep=2)
        before = sorted(tmp_path.iterdir())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for step in (1, 2):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
            try:
                with pytest.raises(InputError, match=f"full.*ckpt-{step}$"):
                    checkpoints.save(str(tmp_path), self.variables(), step, 2)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert checkpoint_files.latest(str(tmp_path)).endswith("ckpt-1")
            assert sorted(tmp_path.iterdir()) == before


def test_a_small_model_has_one_file(saved):
    """A checkpoint smaller than the size limit of a file has one data file."""
    names = [p.name for p in pathlib.Path(saved[0]).glob("*.data-*")]
    assert names == ["ckpt-5.data-00000-of-00001"]


def test_a_step_alone_does_not_resume_a_run(tmp_path):
    """Resuming from a checkpoint with the step, but no slots, is an error."""
    step = {"optimizer/iterations": tf.Variable(np.int64(7))}
    state = {"a": tf.Variable(1.0)} | step
    checkpoints.save(str(tmp_path), state, 7)
    state |= {"optimizer/a/m": tf.Variable(0.0)}
    message = "`output_dir` has .*no optimizer state; pass it as `init_ch.*7$"
    with pytest.raises(InputError, match=message):
        checkpoints.restore_latest(str(tmp_path), state)


def test_a_run_has_every_slot_of_its_checkpoint(tmp_path):
    """Slots that a resumed run does not have raise an error.

    For example, the run may train fewer variables than before.
    """
    state = {name: tf.Variable(1.0) for name in ("a", "optimizer/a/m")}
    more = {"optimizer/b/m": tf.Variable(1.0)}
    checkpoints.save(str(tmp_path), state | more, 7)
    with pytest.raises(InputError, match=r"unexpected optimizer/b/m \[\]$"):
        checkpoints.restore_latest(str(tmp_path), state)
