"""Parity of an export's signatures with the Python model on real text.

    python benchmarks/export_parity.py --model_dir=DIR --saved_model=DIR \\
        --input_file=examples [--number=2000]

For a pretrained model the input is plain text, one text a line; for a
fine-tuned one it is a file as its task reads it. Prints for each signature how
many texts have other ids, the largest difference of the outputs, and how many
answers differ.
"""

import argparse

import albert_tf  # noqa: F401  (sets TensorFlow's switches before its import)

# isort: split
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401

from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.serving.calibration import batches
from albert_tf.serving.encoder import ServingConfig
from albert_tf.serving.model_servers import load_server
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.choice_files import with_choice
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.text.tokenizer_graph import INPUTS
from albert_tf.text.tokenizers import load_tokenizer, pack
from albert_tf.training import checkpoints

BATCH = 32


def strings(texts) -> tf.Tensor:
    """Return texts as a tensor of bytes."""
    return tf.constant([t.encode("utf-8", "replace") for t in texts])


def calls(signature, **columns) -> dict[str, list]:
    """Return {output: rows} of a signature, in batches."""
    number = len(next(iter(columns.values())))
    outputs: dict[str, list] = {}
    for start in range(0, number, BATCH):
        some = {k: v[start : start + BATCH] for k, v in columns.items()}
        for name, value in signature(
            **{k: tf.constant(v) for k, v in some.items()}
        ).items():
            outputs.setdefault(name, []).extend(value.numpy())
    return outputs


def largest(found, wanted) -> float:
    """Return the largest difference of arrays, row by row."""
    pairs = zip(found, wanted, strict=True)
    return max(
        float(np.abs(np.asarray(a) - b).max(initial=0)) for a, b in pairs
    )


def check_ids(signatures, tokenizer, first, second, length) -> int:
    """Return how many texts or pairs have other ids in the graph."""
    name = "tokenize_pair" if any(second) else "tokenize"
    columns = {"text": [t.encode() for t in first]}
    if any(second):
        columns["text_pair"] = [t.encode() for t in second]
    found = calls(signatures[name], **columns)
    different = 0
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        wanted = pack(
            tokenizer, tokenizer.encode(a), tokenizer.encode(b), length
        )
        for key, row in zip(INPUTS, wanted, strict=True):
            width = len(found[key][i])
            same = np.array_equal(found[key][i], row[:width])
            if not same or (key == INPUTS[1] and row[width:].any()):
                different += 1
                break
    return different


def python_rows(task, model, features) -> dict[str, list]:
    """Return {output: rows} of the Python model."""
    outputs: dict[str, list] = {}
    for batch in batches(features, BATCH, len(features.second_starts)):
        inputs = {k: tf.constant(v) for k, v in batch.items()}
        for name, value in task.outputs(model, inputs).items():
            outputs.setdefault(name, []).extend(value.numpy())
    return outputs


def sentences(signatures, task, model, tokenizer, examples, length) -> None:
    """Compare the signature of a task of sentences."""
    first = [e.text for e in examples]
    second = [e.text_pair for e in examples]
    different = check_ids(signatures, tokenizer, first, second, length)
    features = task.features(examples, tokenizer)
    wanted = python_rows(task, model, features)["logits"]
    columns = {"text": [t.encode() for t in first]}
    if task.is_pair:
        columns["text_pair"] = [t.encode() for t in second]
    name = "score" if task.kind == "regression" else "classify"
    found = calls(signatures[name], **columns)["logits"]
    answers = np.argmax(found, -1) != np.argmax(wanted, -1)
    show(name, len(examples), different, largest(found, wanted), answers.sum())


def answers(signatures, task, model, tokenizer, examples, length) -> None:
    """Compare answers to questions: texts, places and scores."""
    features = task.features(examples, tokenizer)
    rows = {
        k: np.array(v) for k, v in python_rows(task, model, features).items()
    }
    wanted = [p.best[0] for p in task.predictions(examples, rows, features)]
    found = calls(
        signatures["answer"],
        question=[e.text.encode() for e in examples],
        context=[e.context.encode() for e in examples],
    )
    texts = sum(
        f[0].decode() != w.text
        for f, w in zip(found["answers"], wanted, strict=True)
    )
    places = sum(
        (a[0], b[0]) != w.place and bool(w.text)
        for a, b, w in zip(found["starts"], found["ends"], wanted, strict=True)
    )
    scores = [[row[0]] for row in found["scores"]]
    difference = largest(scores, [[w.score] for w in wanted])
    contexts = list(dict.fromkeys(e.context for e in examples))
    different = check_ids(
        signatures, tokenizer, contexts, [""] * len(contexts), length
    )
    show("answer", len(examples), different, difference, texts)
    print(f"  places that differ: {places}")


def choices(signatures, task, model, tokenizer, examples, length) -> None:
    """Compare the probabilities of choices, and which one is taken."""
    wanted: list = []
    features = task.features(examples, tokenizer)
    for batch in evaluation_batches(features, BATCH):
        outputs = task.served(task.outputs(model, batch))
        real = batch["example_weights"].numpy() > 0
        wanted.extend(outputs["probabilities"].numpy()[real])
    table = [
        [c.encode() for c in e.choices] + [b""] * (task.number - len(e.choices))
        for e in examples
    ]
    found = calls(
        signatures["choose"],
        context=[e.context.encode() for e in examples],
        question=[e.question.encode() for e in examples],
        choices=table,
    )
    texts = list(dict.fromkeys(e.context for e in examples))
    texts += [with_choice(e.question, c) for e in examples for c in e.choices]
    different = check_ids(
        signatures, tokenizer, texts, [""] * len(texts), length
    )
    difference = largest(found["probabilities"], wanted)
    other = np.array(found["choice"]) != np.argmax(wanted, -1)
    show("choose", len(examples), different, difference, other.sum())


def entities(signatures, task, model, tokenizer, examples, length) -> None:
    """Compare tags of texts whose words are those of the signature."""
    texts = [" ".join(e.words) for e in examples]
    found = calls_ragged(signatures["entities"], texts)
    kept, rows = [], []
    for example, row in zip(examples, found, strict=True):
        words = tuple(w.decode() for w in row["words"])
        kept.append(type(example)(words, None, example.path, example.line))
        rows.append(row)
    features = task.features(kept, tokenizer)
    outputs = {
        k: np.array(v) for k, v in python_rows(task, model, features).items()
    }
    wanted = task.predictions(kept, outputs, features)
    difference = largest(
        [r["tag_probabilities"] for r in rows],
        [w.probabilities for w in wanted],
    )
    tags = sum(
        [t.decode() for t in r["tags"]] != list(w.tags)
        for r, w in zip(rows, wanted, strict=True)
    )
    different = check_ids(
        signatures, tokenizer, texts, [""] * len(texts), length
    )
    show("entities", len(kept), different, difference, tags)


def calls_ragged(signature, texts) -> list[dict]:
    """Return the words, tags and probabilities of each text."""
    found = []
    for start in range(0, len(texts), BATCH):
        outputs = signature(text=strings(texts[start : start + BATCH]))
        outputs = {k: v.numpy() for k, v in outputs.items()}
        for i, number in enumerate(outputs["word_count"]):
            names = ("words", "tags", "tag_probabilities")
            found.append({k: outputs[k][i][:number] for k in names})
    return found


def filled(signatures, model, tokenizer, lines, length) -> None:
    """Compare filled masks, the middle word of each text being masked."""
    different = check_ids(
        signatures, tokenizer, lines, [""] * len(lines), length
    )
    masked = []
    for line in lines:
        words = line.split()
        words[min(len(words) // 2, length // 4)] = "[MASK]"
        masked.append(" ".join(words))
    found = calls(signatures["fill_mask"], text=[t.encode() for t in masked])
    worst, other = 0.0, 0
    for i, text in enumerate(masked):
        inputs = pack(tokenizer, tokenizer.encode_masked(text), [], length)
        place = int(found["positions"][i][0])
        place_python = int(np.argmax(inputs[0] == tokenizer.mask_id))
        used = int(inputs[1].sum())
        batch = [tf.constant(x[None, :used]) for x in inputs]
        logits = model(*batch, tf.constant([[place_python]]))["mlm_logits"]
        share = tf.nn.softmax(logits)[0, 0].numpy()
        best = np.argsort(-share, kind="stable")[: found["pieces"][i].shape[1]]
        worst = max(
            worst, largest([found["probabilities"][i][0]], [share[best]])
        )
        pieces = [p.decode() for p in found["pieces"][i][0]]
        other += place != place_python or pieces[0] != tokenizer.pieces(best)[0]
    show("fill_mask", len(masked), different, worst, other)


def show(name, number, different, difference, answers) -> None:
    """Print a line of the table."""
    print(
        f"{name:14} {number:6,} inputs, ids different {different}, largest "
        f"difference {difference:.1e}, answers different {int(answers)}"
    )


KINDS = {
    "classification": sentences,
    "multilabel": sentences,
    "regression": sentences,
    "multiple_choice": choices,
    "question_answering": answers,
    "token_classification": entities,
}


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model_dir", "saved_model", "input_file"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--number", type=int, default=2000)
    args = parser.parse_args()
    config = AlbertConfig.from_model_dir(args.model_dir)
    tokenizer = load_tokenizer(args.model_dir)
    signatures = tf.saved_model.load(args.saved_model).signatures
    length = load_server(
        args.model_dir, ServingConfig()
    ).encoder.config.max_seq_length
    if not is_finetuned(args.model_dir):
        model = AlbertForPretraining(config)
        checkpoints.restore_weights(model, args.model_dir)
        with open(args.input_file, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip()]
        filled(signatures, model, tokenizer, lines[: args.number], length)
        return
    task = load_task(args.model_dir)
    model = task.build_model(config, "float32")
    checkpoints.restore_weights(model, args.model_dir)
    examples = task.read("predict", args.input_file)[: args.number]
    compare = KINDS[task.kind]
    compare(signatures, task, model, tokenizer, examples, length)


if __name__ == "__main__":
    main()
