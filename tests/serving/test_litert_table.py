"""The word table stands in a LiteRT file of 8 bits once."""

import numpy as np
import pytest
import tensorflow as tf
from exporting import close, packed

from albert_tf.serving.encoder import ServingConfig
from albert_tf.serving.exporting import ExportConfig, export
from albert_tf.serving.litert_model import Runner
from albert_tf.serving.litert_table import without_copies

pytest.importorskip("ai_edge_litert")

V, E = 90, 32
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(V, E)).astype(np.float32)
QUERY = RNG.normal(size=(3, E)).astype(np.float32)
INPUTS = np.array([[5, 89]], np.int32)


def tables(content: bytes, shape: tuple) -> int:
    """Return how many 8-bit tables of a shape have values in a file."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))
    return sum(
        tensor.type == schema.TensorType.INT8
        and tuple(tensor.shape) == shape
        and model.buffers[tensor.buffer].data is not None
        for graph in model.subgraphs
        for tensor in graph.tensors
    )


def converted(front, end) -> bytes:
    """Return a file that looks up in one table and multiplies by another."""
    specs = [tf.TensorSpec(INPUTS.shape, tf.int32), tf.TensorSpec(QUERY.shape)]

    @tf.function(input_signature=specs)
    def call(ids, x):
        scores = tf.matmul(x, tf.constant(end), transpose_b=True)
        return tf.gather(tf.constant(front), ids), scores

    graph = call.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([graph])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def run(content: bytes) -> dict[tuple, np.ndarray]:
    """Return {shape: output} of a file."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        value = INPUTS if detail["dtype"] == np.int32 else QUERY
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    details = interpreter.get_output_details()
    found = [interpreter.get_tensor(detail["index"]) for detail in details]
    return {x.shape: x for x in found}


def test_a_table_with_two_uses_is_kept_once():
    """Both uses read it, within what 8 bits can say."""
    content = converted(TABLE, TABLE)
    single = without_copies(content)
    assert (tables(content, (V, E)), tables(single, (V, E))) == (2, 1)
    assert len(content) - len(single) > V * E
    found = run(single)
    step = np.abs(TABLE).max() / 127
    close(found[1, 2, E], TABLE[INPUTS], step)
    wanted = QUERY @ TABLE.T
    close(found[3, V], wanted, 0.03 * np.abs(wanted).max())


def test_tables_that_differ_are_both_kept():
    """One wrong row is enough; outputs stay what they were."""
    other = TABLE.copy()
    other[7] = -other[7]
    content = converted(TABLE, other)
    same = without_copies(content)
    assert tables(same, (V, E)) == 2
    before, after = run(content), run(same)
    for shape, value in before.items():
        np.testing.assert_array_equal(after[shape], value)


def test_masks_are_filled_from_the_one_table(
    pretrained_dir, pretrained_model, tokenizer, tmp_path
):
    """A pretrained model's file has it once; logits stay near Python's."""
    out = str(tmp_path / "out")
    config = ExportConfig(
        pretrained_dir, out, to="litert", precision="dynamic_int8"
    )
    export(config, ServingConfig())
    with open(f"{out}/model.tflite", "rb") as file:
        content = file.read()
    words = pretrained_model.albert.embeddings.word_embeddings
    assert tables(content, tuple(words.shape)) == 1
    runner = Runner(out)
    text = "the small garden on the river."
    inputs = packed(tokenizer, [text])
    positions = np.arange(8, dtype=np.int32)[None]
    features = runner.packed([tokenizer.encode(text)])
    found = runner.call(features.dense(), positions)
    wanted = pretrained_model(*map(tf.constant, [*inputs, positions]))
    logits = wanted["mlm_logits"].numpy()
    difference = np.abs(found["mlm_logits"] - logits)
    assert difference.mean() < 0.1 * logits.std()
