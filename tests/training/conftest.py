"""A finished pretraining run."""

import dataclasses

import pytest
import tiny
import tiny_pretraining


@pytest.fixture(scope="session")
def trained(data_dir, tmp_path_factory, tokenizer):
    """Return a run's config file, its output directory and its metrics."""
    folder = tmp_path_factory.mktemp("trained")
    size = tokenizer.vocab_size
    config = dataclasses.replace(tiny.SHALLOW, vocab_size=size)
    path, output = folder / "config.json", folder / "model"
    path.write_text(config.to_json())
    return path, output, tiny_pretraining.run(data_dir, path, output)
