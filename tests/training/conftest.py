"""A fixture that provides a finished pretraining run."""

import dataclasses
import pathlib

import pytest
import tiny
import tiny_pretraining
from shared_fixtures import made_once

from albert_tf.base import files


@pytest.fixture(scope="session")
def trained(data_dir, tmp_path_factory, tokenizer):
    """Return a run's config file, output directory and metrics."""
    size = tokenizer.vocab_size
    config = dataclasses.replace(tiny.SHALLOW, vocab_size=size)

    def train(path):
        file = files.join(path, "config.json")
        files.write_text(file, config.to_json())
        output = files.join(path, "model")
        metrics = tiny_pretraining.run(data_dir, file, output)
        files.write_json(files.join(path, "metrics.json"), metrics)

    folder = pathlib.Path(made_once(tmp_path_factory, "trained", train))
    metrics = files.read_json(str(folder / "metrics.json"), "metrics")
    return folder / "config.json", folder / "model", metrics
