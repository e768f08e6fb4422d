"""Query exported models like a client that has only the SavedModels.

Run the script by its path so that Python does not import the package:

    python examples/demo/client.py CLASSIFIER PRETRAINED
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's operations)

SENTENCES = (
    "Returns the indices of the non-zero elements of the input array.",
    "Layer that reduces the spatial dimensions of its input by pooling.",
    "Raised when a child process cannot be started by the operating system.",
    "Builds a graph operation and adds it to the default session.",
)
MASKED = (
    "This method [MASK] a list of strings.",
    "If the file does not [MASK], an error is raised.",
    "The default [MASK] is used when the argument is not given.",
)
PAIR = (
    "Opens the file at the given path.",
    "Returns the opened file, which the caller has to close.",
)


def main(classifier_dir: str, pretrained_dir: str) -> None:
    """Print the answers of both models."""
    classifier = tf.saved_model.load(classifier_dir)
    answers = classifier.signatures["classify"](text=tf.constant(SENTENCES))
    for text, label, probabilities in zip(
        SENTENCES,
        answers["label"].numpy(),
        answers["probabilities"].numpy(),
        strict=True,
    ):
        print(f"  {max(probabilities):4.0%} {label.decode():12} {text}")

    pretrained = tf.saved_model.load(pretrained_dir)
    found = pretrained.signatures["fill_mask"](text=tf.constant(MASKED))
    for text, pieces, probabilities in zip(
        MASKED,
        found["pieces"].numpy(),
        found["probabilities"].numpy(),
        strict=True,
    ):
        print(f"  {text}")
        for piece, probability in zip(pieces[0], probabilities[0], strict=True):
            word = piece.decode().replace("\u2581", "")
            print(f"    {probability:5.1%} {word}")
    in_order = pretrained.signatures["sentence_order"]
    for first, second in (PAIR, PAIR[::-1]):
        answer = in_order(
            text=tf.constant([first]), text_pair=tf.constant([second])
        )
        share = float(answer["in_order"][0])
        print(f"  {share:4.0%} in order: {first} {second}")


if __name__ == "__main__":
    main(*sys.argv[1:])
