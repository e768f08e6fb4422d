"""Make a smaller or faster model directory: `python -m albert_tf.shrink`.

    python -m albert_tf.shrink --model_dir=DIR --output_dir=NEW --num_layers=8

- `--num_layers` applies the shared layer fewer times. The parameters stay the
  same; time goes down with the layers.
- `--weights=bfloat16` rounds all weights to the 16 bits of bfloat16, as a
  device that keeps them so would. The checkpoint holds them in float32.

What it costs in accuracy, evaluation of the new directory tells:
`finetune.py --model_dir=NEW --output_dir=OUT --do_eval ...`. Training it
further wins a part back.
"""

import dataclasses

import tensorflow as tf

from albert_tf import checkpoints, files, settings
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.settings import FLAG_FILE, setting, validate
from albert_tf.tasks.base import TASK_FILE
from albert_tf.tokenization import TOKENIZER_FILE, load_tokenizer

# How weights are kept: a function of their values.
WEIGHTS = {
    "float32": tf.identity,
    "bfloat16": lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32),
}


@dataclasses.dataclass(frozen=True)
class ShrinkConfig:
    """What becomes of which model directory."""

    model_dir: str = setting(
        None, "Model directory, pretrained or fine-tuned.", required=True
    )
    output_dir: str = setting(
        None, "New folder for the smaller model.", required=True
    )
    num_layers: int | None = setting(
        None,
        "Layers of the new model, the first ones. Default: all.",
        minimum=1,
    )
    weights: str = setting("float32", "Rounding of weights.", choices=WEIGHTS)

    def __post_init__(self):
        validate(self)


def shorter(config: AlbertConfig, layers: int) -> AlbertConfig:
    """Return a config of fewer layers, of which each has the same weights."""
    if layers > config.num_hidden_layers:
        raise InputError(
            "`num_layers` must be at most that of the model, "
            f"{config.num_hidden_layers}. Received: num_layers={layers}"
        )
    # Without sharing every layer is a group of its own.
    groups = config.group(layers - 1) + 1
    new = dataclasses.replace(
        config, num_hidden_layers=layers, num_hidden_groups=groups
    )
    same = all(
        new.attention_index(i) == config.attention_index(i)
        and new.ffn_index(i) == config.ffn_index(i)
        for i in range(layers)
    )
    if not same:
        raise InputError(
            "`num_layers` must keep each layer's group, so it must be one of "
            f"{', '.join(map(str, possible(config)))} for "
            f"num_hidden_groups={config.num_hidden_groups}. "
            f"Received: num_layers={layers}"
        )
    return new


def possible(config: AlbertConfig) -> list[int]:
    """Return the numbers of layers that keep each layer's group."""
    found = []
    for layers in range(1, config.num_hidden_layers + 1):
        groups = config.group(layers - 1) + 1
        if all(i * groups // layers == config.group(i) for i in range(layers)):
            found.append(layers)
    return found


def kept(name: str, config: AlbertConfig) -> bool:
    """Return whether a variable belongs to a layer of a config."""
    for part in name.split("/"):
        kind, *numbers = part.split("_")
        if kind in ("attention", "ffn") and len(numbers) == 2:
            index = getattr(config, f"{kind}_index")
            used = {index(i) for i in range(config.num_hidden_layers)}
            return int(numbers[0]) in used
    return True


def shrink(config: ShrinkConfig) -> None:
    """Write the smaller model directory."""
    old = AlbertConfig.from_model_dir(config.model_dir)
    new = shorter(old, config.num_layers or old.num_hidden_layers)
    if tf.io.gfile.exists(config.output_dir):
        raise InputError(
            "`output_dir` must be new. "
            f"Received: output_dir={config.output_dir}"
        )
    prefix = checkpoints.for_inference(config.model_dir)
    read, change = checkpoints.reader(prefix), WEIGHTS[config.weights]
    weights = {
        name: tf.Variable(change(read(name)))
        for name in checkpoints.read_table(prefix)
        if not name.startswith(checkpoints.OPTIMIZER) and kept(name, new)
    }
    with files.atomic_folder(config.output_dir) as folder:
        new.save(folder)
        if tf.io.gfile.exists(files.join(config.model_dir, TOKENIZER_FILE)):
            load_tokenizer(config.model_dir).save(folder)
        task = files.join(config.model_dir, TASK_FILE)
        if tf.io.gfile.exists(task):
            tf.io.gfile.copy(task, files.join(folder, TASK_FILE))
        files.write_text(
            files.join(folder, FLAG_FILE), settings.flagfile(config)
        )
        checkpoints.save(folder, weights)
    print(
        f"{old.num_hidden_layers} -> {new.num_hidden_layers} layers, weights "
        f"in {config.weights}\nWrote {config.output_dir}"
    )


def main() -> None:
    """Shrink as the flags say."""
    shrink(settings.from_flags(ShrinkConfig))


def cli() -> None:
    """Run the command line."""
    settings.define_flags(ShrinkConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
