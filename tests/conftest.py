"""What every test shares: four logical CPUs, a tiny tokenizer and model."""

import albert_tf  # noqa: F401  (sets TensorFlow's switches before its import)

# isort: split
import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig
from albert_tf.model import AlbertForPretraining
from albert_tf.tokenization import load_tokenizer
from albert_tf.train_tokenizer import TrainTokenizerConfig, train_tokenizer

# For the tests of replicas.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 4,
)

WORDS = """a the and on in under over river bridge small large garden teacher
reads writes painted letter window morning evening winter summer he she they
walked walking walks quickly slowly naïve café 1,000 2010, 12 can't don't
house houses street streets music played player playing night""".split()


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory):
    """A folder with a SentencePiece vocabulary of random sentences."""
    folder = tmp_path_factory.mktemp("tokenizer")
    rng = np.random.default_rng(0)
    syllables = [c + v for c in "bcdfghklmnprstvw" for v in "aeiou"]
    words = WORDS + ["".join(rng.choice(syllables, 3)) for _ in range(100)]
    lines = [" ".join(rng.choice(words, 8)) + "." for _ in range(500)]
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    train_tokenizer(
        TrainTokenizerConfig(
            input_file=str(corpus), output_dir=str(folder), vocab_size=150
        )
    )
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir):
    """The tokenizer of `tokenizer_dir`."""
    return load_tokenizer(str(tokenizer_dir))


@pytest.fixture(scope="session")
def pretrained_dir(tmp_path_factory, tokenizer):
    """A model directory; the weights are random, and far from 0."""
    folder = str(tmp_path_factory.mktemp("pretrained"))
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=24,
        initializer_range=0.5,
    )
    config.save(folder)
    tokenizer.save(folder)
    keras.utils.set_random_seed(1)
    model = AlbertForPretraining(config)
    checkpoints.save(folder, checkpoints.named_variables(model))
    return folder
