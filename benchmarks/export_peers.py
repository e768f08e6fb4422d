"""The same weights as other libraries export and run them.

`export_formats.py` uses this, in an environment that has `torch`,
`transformers`, `onnxscript` and `keras-hub` beside `albert-tf[convert,onnx]`:

- keras_hub: KerasHub's backbone and classifier, exported to a SavedModel;
- hf_eager: Hugging Face's model in PyTorch;
- hf_onnx: that model, exported by `torch.onnx` and run in onnxruntime.

A classifier gives `probabilities`, any other model `pooled_output`.
"""

import argparse
import os

import numpy as np

PEERS = ("keras_hub", "hf_eager", "hf_onnx")
IDS = ("input_ids", "input_mask", "segment_ids")
CLASSIFIER = "classifier.npz"
THREADS = 2


def write_hugging_face(model_dir: str, folder: str) -> None:
    """Write the encoder as a Hugging Face folder, and a classifier beside."""
    import safetensors.numpy as safetensors

    from albert_tf.conversion import huggingface
    from albert_tf.conversion.named_tensors import Tensors, from_ours
    from albert_tf.conversion.released_names import HUGGING_FACE, as_released
    from albert_tf.model.config import AlbertConfig
    from albert_tf.training import checkpoints

    prefix = checkpoints.for_inference(model_dir)
    read, shapes = checkpoints.reader(prefix), checkpoints.read_table(prefix)
    config = as_released(AlbertConfig.from_model_dir(model_dir))
    encoder = {n: tuple(s) for n, s in shapes.items() if n[:7] == "albert/"}
    tensors = from_ours(Tensors(encoder, read), config, HUGGING_FACE)
    os.makedirs(folder, exist_ok=True)
    huggingface.write(folder, config, tensors)
    # KerasHub wants the names of a whole model, Hugging Face takes them too.
    path = os.path.join(folder, huggingface.SAFETENSORS)
    named = {f"albert.{n}": a for n, a in safetensors.load_file(path).items()}
    safetensors.save_file(named, path, metadata={"format": "pt"})
    head = {n[11:]: read(n) for n in shapes if n[:11] == "classifier/"}
    if head:
        np.savez(os.path.join(folder, CLASSIFIER), **head)


def read_classifier(folder: str) -> dict[str, np.ndarray]:
    """Return kernel and bias of the classifier, {} if there is none."""
    path = os.path.join(folder, CLASSIFIER)
    return dict(np.load(path)) if os.path.exists(path) else {}


def torch_model(folder: str):
    """Return Hugging Face's encoder with the classifier, as one module."""
    import torch
    from transformers import AlbertModel

    torch.set_num_threads(THREADS)
    head = {k: torch.from_numpy(v) for k, v in read_classifier(folder).items()}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.albert = AlbertModel.from_pretrained(folder)
            if head:
                self.classifier = torch.nn.Linear(*head["kernel"].shape)
                self.classifier.weight.data = head["kernel"].T.contiguous()
                self.classifier.bias.data = head["bias"]

        def forward(self, input_ids, input_mask, segment_ids):
            pooled = self.albert(
                input_ids=input_ids,
                attention_mask=input_mask,
                token_type_ids=segment_ids,
            ).pooler_output
            return self.classifier(pooled).softmax(-1) if head else pooled

    return Model().eval(), "probabilities" if head else "pooled_output"


def torch_inputs(inputs: dict) -> tuple:
    """Return the model's inputs as tensors of PyTorch."""
    import torch

    return tuple(torch.from_numpy(inputs[name]).long() for name in IDS)


def eager_call(folder: str):
    """Return a function from ids to outputs of Hugging Face's model."""
    import torch

    model, name = torch_model(folder)

    def call(inputs):
        with torch.inference_mode():
            return {name: model(*torch_inputs(inputs)).numpy()}

    return call


def write_onnx(folder: str) -> None:
    """Export Hugging Face's model with any batch size and length."""
    import torch

    model, name = torch_model(folder)
    example = {key: np.ones([2, 8], np.int64) for key in IDS}
    dynamic = {key: {0: "batch", 1: "tokens"} for key in IDS}
    torch.onnx.export(
        model,
        torch_inputs(example),
        os.path.join(folder, "model.onnx"),
        input_names=list(IDS),
        output_names=[name],
        dynamic_shapes=dynamic,
        dynamo=True,
        external_data=False,
    )


def onnx_call(folder: str):
    """Return the same of the exported model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    path = os.path.join(folder, "model.onnx")
    session = onnxruntime.InferenceSession(path, options)
    (output,) = session.get_outputs()

    def call(inputs):
        wide = {name: inputs[name].astype(np.int64) for name in IDS}
        return {output.name: session.run(None, wide)[0]}

    return call


def write_keras_hub(folder: str) -> None:
    """Export KerasHub's model with the same weights to a SavedModel."""
    import keras
    import keras_hub

    backbone = keras_hub.models.AlbertBackbone.from_preset(folder)
    model = keras.Model(backbone.input, backbone.output["pooled_output"])
    head = read_classifier(folder)
    if head:
        model = keras_hub.models.AlbertTextClassifier(
            backbone, head["bias"].size, activation="softmax"
        )
        model.output_dense.set_weights([head["kernel"], head["bias"]])
    model.export(os.path.join(folder, "saved_model"), format="tf_saved_model")


def keras_hub_call(folder: str, tf):
    """Return the same of KerasHub's SavedModel."""
    loaded = tf.saved_model.load(os.path.join(folder, "saved_model"))
    serve = loaded.signatures["serving_default"]
    key = "pooled_output"
    if read_classifier(folder):
        key = "probabilities"

    def call(inputs):
        (found,) = serve(
            token_ids=tf.constant(inputs["input_ids"]),
            padding_mask=tf.constant(inputs["input_mask"]),
            segment_ids=tf.constant(inputs["segment_ids"]),
        ).values()
        return {key: found.numpy()}

    call.keep = loaded
    return call


def caller(name: str, folder: str, tensorflow):
    """Return a function from ids to outputs of a peer's export."""
    if name == "keras_hub":
        return keras_hub_call(folder, tensorflow())
    return {"hf_eager": eager_call, "hf_onnx": onnx_call}[name](folder)


def size(name: str, folder: str) -> int:
    """Return the bytes of the files that hold a peer's weights."""
    held = {
        "keras_hub": "saved_model/variables",
        "hf_eager": "model.safetensors",
        "hf_onnx": "model.onnx",
    }[name]
    path = os.path.join(folder, held)
    paths = [path]
    if os.path.isdir(path):
        paths = [os.path.join(path, file) for file in os.listdir(path)]
    return sum(map(os.path.getsize, paths))


def main() -> None:
    """Write one peer's export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--format", choices=PEERS, required=True)
    args = parser.parse_args()
    write_hugging_face(args.model_dir, args.folder)
    if args.format == "hf_onnx":
        write_onnx(args.folder)
    if args.format == "keras_hub":
        write_keras_hub(args.folder)


if __name__ == "__main__":
    main()
