"""One pretraining step in each library, for `train_step.py`.

    python benchmarks/train_step_peers.py IMPLEMENTATION CASE

Makes the model, then runs a step for each line on standard input and prints
its seconds. All do the same work: ALBERT's two losses with the masked-LM head
at the predicted positions only, clipping by the global norm and AdamW, without
dropout, in float32 or with products in bfloat16. Peers lack parts of that loss;
what is missing is added here.

B batch, T tokens, P predictions, H hidden width, V vocabulary.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable

from tensorflow_peers import TENSORFLOW_MODELS
from train_step_cases import CASES, CLIP, DECAY, EPSILON, RATE, Case

THREADS = len(os.sched_getaffinity(0))


def ours(case: Case, jit: bool) -> Callable[[], float]:
    """This project: the trainer that `pretrain.py` runs."""
    from albert_tf.base import program

    with program.quiet_start():
        import tensorflow as tf

    from albert_tf.model.albert import AlbertForPretraining
    from albert_tf.model.config import AlbertConfig
    from albert_tf.training import distribution
    from albert_tf.training.objectives import PretrainingObjective
    from albert_tf.training.optimizers import OptimizerConfig
    from albert_tf.training.trainer import Trainer
    from albert_tf.training.training_config import TrainingConfig

    config = AlbertConfig(
        vocab_size=case.vocab,
        embedding_size=case.embedding,
        hidden_size=case.hidden,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        intermediate_size=case.intermediate,
    )
    training = TrainingConfig(
        train_batch_size=case.batch, jit_compile=jit or None, dtype=case.dtype
    )
    trainer = Trainer(
        distribution.make_strategy(distribution.DistributionConfig()),
        lambda: AlbertForPretraining(config, case.policy),
        PretrainingObjective(),
        OptimizerConfig(
            optimizer="adamw",
            learning_rate=RATE,
            num_warmup_steps=0,
            weight_decay_rate=DECAY,
            clip_norm=CLIP,
        ),
        training,
    )
    iterator = trainer.iterator(
        lambda **_: tf.data.Dataset.from_tensors(case.data()).repeat(), 0
    )

    def step() -> float:
        report = trainer.run_steps(iterator, tf.constant(1)).report.numpy()
        return trainer.evaluator.summarize(report)["loss"]

    return step


def tensorflow_peer(case: Case, form: tuple[str, bool]) -> Callable[[], float]:
    """A TensorFlow library; `form` is its name, and whether XLA compiles."""
    name, jit = form
    return TENSORFLOW_MODELS[name](case).step(case, jit)


def hugging_face_model(case: Case, form: str):
    """Hugging Face's ALBERT for training, without dropout."""
    from transformers import AlbertConfig, AlbertForPreTraining

    config = AlbertConfig(
        vocab_size=case.vocab,
        embedding_size=case.embedding,
        hidden_size=case.hidden,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        intermediate_size=case.intermediate,
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        attn_implementation="eager" if form == "eager" else "sdpa",
    )
    return AlbertForPreTraining(config).train()


def hugging_face(case: Case, form: str) -> Callable[[], float]:
    """Hugging Face's ALBERT; `form` is sdpa, eager or compiled."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(THREADS)
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs, as XLA
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = hugging_face_model(case, form).to(device)
    data = {k: torch.from_numpy(v).to(device) for k, v in case.data().items()}
    whole = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    batch = {k: v.long() if k in whole else v for k, v in data.items()}
    labels = data["masked_lm_ids"].long().flatten()
    orders = data["sentence_order_labels"].long()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, weight_decay=DECAY, eps=EPSILON, fused=True
    )
    half = case.dtype == "bfloat16"

    def loss_of(batch):
        found = model.albert(
            batch["input_ids"], batch["input_mask"], batch["segment_ids"]
        )
        at = batch["masked_lm_positions"][..., None]  # [B, P, 1]
        at = at.expand(-1, -1, case.hidden)  # [B, P, H]
        # The library computes the logits at all positions; the loss needs P.
        logits = model.predictions(found.last_hidden_state.gather(1, at))
        sop = model.sop_classifier(found.pooler_output)
        mlm = cross_entropy(logits.flatten(0, 1), labels)
        return mlm + cross_entropy(sop, orders)

    if form == "compiled":
        loss_of = torch.compile(loss_of)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, half):
            loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    return step


def matrix_product(case: Case, size: int = 2048) -> Callable[[], float]:
    """One matrix product in TensorFlow, the machine's limit."""
    import tensorflow as tf

    square = tf.random.stateless_normal([size, size], [0, 1])
    square = tf.cast(square, case.dtype)
    product = tf.function(lambda x: tf.matmul(x, x)[0, 0])

    def step() -> float:
        return float(product(square))

    return step


# Name -> (maker, its argument).
IMPLEMENTATIONS = {
    "matrix product": (matrix_product, 2048),
    "albert_tf": (ours, False),
    "albert_tf XLA": (ours, True),
    "KerasHub": (tensorflow_peer, ("KerasHub", False)),
    "KerasHub XLA": (tensorflow_peer, ("KerasHub", True)),
    "Model Garden": (tensorflow_peer, ("Model Garden", False)),
    "Model Garden XLA": (tensorflow_peer, ("Model Garden", True)),
    "Hugging Face sdpa": (hugging_face, "sdpa"),
    "Hugging Face eager": (hugging_face, "eager"),
    "Hugging Face compiled": (hugging_face, "compiled"),
}


def answer(**values) -> None:
    """Send one line to the benchmark."""
    sys.__stdout__.write(json.dumps(values) + "\n")
    sys.__stdout__.flush()


def megabytes() -> float:
    """Return the largest memory of a GPU so far, or else of the process."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(make: Callable[[], Callable], result: str) -> None:
    """Serve steps, which `make` makes and which give a result of that name."""
    sys.stdout = sys.stderr
    start = time.perf_counter()
    try:
        step = make()
        step()
    except ImportError as error:
        answer(missing=str(error))
        return
    answer(first=time.perf_counter() - start)
    for _ in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        value = step()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        answer(
            seconds=seconds,
            cpu=cpu,
            megabytes=megabytes(),
            **{result: value},
        )


def main() -> None:
    """Serve steps until standard input ends."""
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    make, argument = IMPLEMENTATIONS[sys.argv[1]]
    case = CASES.get(sys.argv[2]) or Case(**json.loads(sys.argv[2]))
    serve(lambda: make(case, argument), "loss")


if __name__ == "__main__":
    main()
