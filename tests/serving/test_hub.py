"""The signatures of the released TF-Hub modules."""

import numpy as np
import pytest
import tensorflow as tf
from exporting import TEXTS, close, finetuned, packed, xla_operations

from albert_tf.base.errors import InputError
from albert_tf.export import ExportConfig, export
from albert_tf.serving.server import ServingConfig

NAMES = ("input_ids", "input_mask", "segment_ids")


@pytest.mark.parametrize("jit_compile", [False, True])
def test_released_signatures(
    pretrained_dir, pretrained_model, tokenizer, tmp_path, jit_compile
):
    """Names, shapes and values are those of `export_to_tfhub.py`."""
    out = str(tmp_path / "out")
    config = ServingConfig(jit_compile=jit_compile)
    export(ExportConfig(pretrained_dir, out, to="hub"), config)
    served = tf.saved_model.load(out).signatures
    assert set(served) == {
        *("tokens", "sop", "mlm", "tokenization_info", "serving_default")
    }
    assert ("Softmax" in xla_operations(served["mlm"])) == jit_compile
    arrays = packed(tokenizer, TEXTS)
    positions = np.tile(np.arange(3, dtype=np.int32), [len(TEXTS), 1])
    wanted = pretrained_model(*map(tf.constant, (*arrays, positions)))
    inputs = dict(zip(NAMES, map(tf.constant, arrays), strict=True))
    found = served["tokens"](**inputs)
    assert set(found) == {"sequence_output", "pooled_output"}
    close(found["sequence_output"], wanted["sequence_output"])
    found = served["sop"](**inputs)
    close(found["pooled_output"], wanted["pooled_output"])
    close(found["sop_log_probs"], tf.nn.log_softmax(wanted["sop_logits"]))
    found = served["mlm"](mlm_positions=tf.constant(positions), **inputs)
    flat = np.array(wanted["mlm_logits"]).reshape(3 * len(TEXTS), -1)
    close(found["mlm_logits"], flat, 1e-4)
    info = served["tokenization_info"]()
    assert bool(info["do_lower_case"]) is True
    with open(info["vocab_file"].numpy(), "rb") as file:
        assert file.read() == tokenizer.content


def test_fine_tuned_models_have_no_released_signatures(
    pretrained_dir, tmp_path
):
    """A model without the heads of pretraining is refused."""
    folder = tmp_path / "model"
    finetuned(folder, pretrained_dir, "regression")
    config = ExportConfig(str(folder), str(tmp_path / "out"), to="hub")
    with pytest.raises(InputError, match="to=hub.*pretrained"):
        export(config, ServingConfig())
