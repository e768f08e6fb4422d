"""The setup of a run: the settings, and the inputs that they name."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.settings import (
    COMPAT_FLAG,
    DO_EVAL,
    DO_TRAIN,
    LENGTH,
    MODEL,
    OUTPUT_DIR,
    Validated,
    field_of,
    setting,
    variant,
)
from albert_tf.data.layout import vocabulary_beside
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records import input_pipeline
from albert_tf.data.records.metadata import (
    EVAL,
    PHONEMES,
    TRAIN,
    WORDS,
    Metadata,
    is_described,
    paths_of,
    read_metadata,
)
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.model.phonemes import AlbertForPhonemes
from albert_tf.text.symbols import load_vocabulary, vocabulary_in
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.training import (
    checkpoint_files,
    checkpoints,
    distribution,
    phases,
)
from albert_tf.training.distribution import DistributionConfig, with_dtype
from albert_tf.training.objectives import PhonemeObjective, PretrainingObjective
from albert_tf.training.optimizer import OptimizerConfig, with_rate
from albert_tf.training.pretraining import warm_start
from albert_tf.training.trainer import Trainer
from albert_tf.training.training_config import TrainingConfig

# The effect of different initial weights on a run that resumes.
KEPT = "no effect, because the run keeps the weights that it began with"

# The released schedule and initial weights. The rest of the released behavior
# depends on `Trainer.per_replica`.
COMPAT = {
    "none": {},
    "google": {"schedule": "released", "initial_weights": "random"},
}


def with_compat(config, compat: str):
    """Return the settings, changed as a compat mode requires."""
    fields = {field.name for field in dataclasses.fields(config)}
    values = {k: v for k, v in COMPAT[compat].items() if k in fields}
    return dataclasses.replace(config, **values)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(Validated):
    """Settings for the inputs, outputs and actions of a pretraining run."""

    data_dir: str = setting(
        "",
        "Folder written by create_pretraining_data.py, or a folder or globs of "
        "records from the released code; or several in turn, such as "
        "`DIR64:0.7,DIR128:0.2,DIR512`, with shares of the steps or, with "
        "budget_hours, of the time. train_batch_size applies to the first "
        "folder; batches from other folders have about the same number of "
        "tokens, and a size that is a multiple of the number of replicas.",
        required=True,
    )
    albert_config_file: str = setting(
        "",
        "Architecture: a JSON file such as those in configs/models.",
        required=True,
        group=MODEL,
    )
    output_dir: str = variant(OUTPUT_DIR)
    init_checkpoint: str | None = setting(
        None,
        "Model directory with the weights from which a new run starts.",
        means="a new model",
        group=MODEL,
        change=KEPT,
    )
    initial_weights: str = setting(
        "random",
        "Initial weights of a new model: random, as in the paper; or informed "
        "by the records: MLM bias from piece frequencies, word vectors from "
        "neighbors, half of the heads attending to a word's neighbors, and "
        "one to other occurrences of the same word. budget_hours chooses "
        "informed.",
        choices=("random", "informed"),
        group=MODEL,
        change=KEPT,
    )
    init_state: str = setting(
        "weights",
        "What to load from init_checkpoint: weights; run, which also loads the "
        "optimizer's slots and the step, so that a second phase with other "
        "records continues the schedule; or transplant, which loads weights "
        "but rebuilds the word embeddings for the records' vocabulary.",
        choices=warm_start.STATES,
        group=MODEL,
        change=KEPT,
    )
    budget_hours: float = setting(
        0.0,
        "Train for this many hours, and decay the learning rate over this "
        "time. The number of steps, the learning rate and other settings that "
        "you do not set are chosen to fit.",
        means="no budget",
        minimum=0.0,
        maximum=10000.0,
        group=LENGTH,
    )
    depth_schedule: str | None = setting(
        None,
        "Numbers of layers to run in turn, such as `2:0.3,4:0.3,6`, with "
        "shares of the steps or, with budget_hours, of the time: the shared "
        "layer runs fewer times at first. The last number must be the model's "
        "number of layers.",
        means="all layers throughout",
        group=LENGTH,
    )
    mask_schedule: str | None = setting(
        None,
        "Shares of the tokens to predict, such as `0.30:0.4,0.20:0.3,0.15`, "
        "with shares of the steps or, with budget_hours, of the time; only for "
        "records made with --masking=dynamic.",
        means="the records' masked_lm_prob",
        group=LENGTH,
    )
    do_train: bool = variant(DO_TRAIN, True)
    do_eval: bool = variant(
        DO_EVAL,
        help="Evaluate the newest checkpoint. With do_train, evaluate when the "
        "run is complete; without do_train, no file is written.",
    )
    compat: str = variant(
        COMPAT_FLAG,
        help="google selects the released schedule, clipping, averaging over "
        "replicas and initial weights.",
    )

    def __post_init__(self):
        super().__post_init__()
        require(
            self.do_train or self.do_eval,
            "`do_train` or `do_eval` must be set. Received: none",
        )


# {folder or globs: metadata}, in the order in which the run reads them.
Folders = dict[str, Metadata]


class Kind(NamedTuple):
    """A kind of pretraining, on words or on phonemes.

    Attributes:
      model: a function that takes a config, a vocabulary and a dtype policy,
        and returns a model.
      objective: a function that takes a vocabulary, and returns an objective.
      lacks: settings in `PretrainingConfig` that must keep their defaults, and
        that a budget does not choose. A new setting that this kind would ignore
        must be added here.
    """

    model: Callable
    objective: Callable
    lacks: tuple[str, ...] = ()


# {task of the records: kind}
KINDS = {
    WORDS: Kind(
        lambda config, _, dtype: AlbertForPretraining(config, dtype),
        lambda _: PretrainingObjective(),
    ),
    PHONEMES: Kind(
        lambda config, table, dtype: AlbertForPhonemes(
            config, len(table.words), dtype
        ),
        lambda table: PhonemeObjective(table.symbols[table.mask]),
        lacks=("mask_schedule", "compat"),
    ),
}


def check_records(config: AlbertConfig, metadata: Metadata) -> None:
    """Raise an error if records are incompatible with the model."""
    config.check_length("max_seq_length", metadata.max_seq_length)
    size, limit = metadata.vocab_size, config.vocab_size
    rule = "`vocab_size` of the records must be at most the model's "
    require(size <= limit, f"{rule}`vocab_size`, {limit}.", vocab_size=size)
    require(
        config.type_vocab_size >= 2,
        "`type_vocab_size` must be at least 2: records have two segments.",
        type_vocab_size=config.type_vocab_size,
    )
    if 0 < size < limit:
        print(f"Note: the records use {size} of {limit} word embeddings")


def vocabulary_of(data_dir: str, source: str | None) -> Vocabulary | None:
    """Return the tokenizer or symbols of records, or None if unknown.

    Records of the released code come without a tokenizer. For such records, the
    result is the tokenizer next to the records or in `source`, which is the
    directory of the initial weights or of the run to resume.
    """
    if is_described(data_dir):
        return load_vocabulary(data_dir)
    for folder in filter(None, (data_dir, source)):
        if vocabulary := vocabulary_in(folder):
            return vocabulary
    print(
        "Note: no tokenizer is known; without a vocabulary and its "
        "`tokenizer.json` next to the records, a model directory exports only "
        "the signature `ids`"
    )
    return None


def are_dynamic(folders: Folders) -> bool:
    """Return whether all records are masked while they are read."""
    return all(m.masking(TRAIN) == DYNAMIC for m in folders.values())


def check_alike(folders: Folders) -> None:
    """Check that folders have the same task, vocabulary and masking."""
    kinds = {
        folder: (m.tokenizer_fingerprint, m.vocab_size, m.form(TRAIN))
        for folder, m in folders.items()
    }
    first, *_ = kinds.values()
    different = [folder for folder, kind in kinds.items() if kind != first]
    require(
        not different,
        "The folders of `data_dir` must have the same task, vocabulary and "
        "kind of masking.",
        data_dir=f"{', '.join(different)} unlike {next(iter(kinds))}",
    )


def check_readers(folders: Folders, devices: DistributionConfig) -> None:
    """Raise an error if hosts that run no Python must mask records."""
    dynamic = [f for f in folders if folders[f].masking(TRAIN) == DYNAMIC]
    require(
        not (dynamic and distribution.reads_remotely(devices)),
        "Records made with --masking=dynamic are masked in Python, which the "
        "hosts of a remote TPU do not run: train on the TPU VM with "
        "tpu_name=local, or make the records with --masking=static.",
        tpu_name=devices.tpu_name,
        data_dir=", ".join(dynamic),
    )


def read(data_dir: str, config: AlbertConfig, trains: bool) -> Folders:
    """Read and check the metadata of a run's records.

    Args:
      data_dir: see `PretrainingConfig`.
      config: the architecture, with which the records must be compatible.
      trains: whether each folder must have training records.
    """
    folders = {f: read_metadata(f) for f in phases.folders(data_dir)}
    for folder, metadata in folders.items():
        if not metadata.vocab_size:
            # Released records do not name a vocabulary, so they must use the
            # model's vocabulary.
            metadata = dataclasses.replace(
                metadata, vocab_size=config.vocab_size
            )
            folders[folder] = metadata
        input_pipeline.check_files(folder, metadata)
        check_records(config, metadata)
        if metadata.masking(TRAIN) == DYNAMIC:
            vocabulary_beside(folder, metadata)
        if trains and len(folders) > 1:
            paths_of(folder, metadata, TRAIN)
    check_alike(folders)
    return folders


def fingerprint(folders: Folders) -> str:
    """Return a fingerprint of all training records."""
    return ", then ".join(m.fingerprint() for m in folders.values())


def make_trainer(
    config: AlbertConfig,
    compat: str,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    strategy: tf.distribute.Strategy,
    kind: Kind = KINDS[WORDS],
    vocabulary: Vocabulary | None = None,
) -> Trainer:
    """Return the trainer of a new model on a strategy."""
    return Trainer(
        strategy,
        lambda: kind.model(config, vocabulary, training.dtype_policy),
        kind.objective(vocabulary),
        with_compat(with_rate(optimizer, training), compat),
        training,
        per_replica=compat == "google",
    )


@dataclasses.dataclass(frozen=True)
class Setup:
    """The settings of a run, and the inputs that they name.

    Attributes:
      pretraining, optimizer, training, devices: the settings.
      config: the architecture.
      folders: the folders of records.
      vocabulary: the records' tokenizer or symbols, or None if unknown.
      strategy: the strategy, or None until the devices are connected.
    """

    pretraining: PretrainingConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    devices: DistributionConfig
    config: AlbertConfig
    folders: Folders
    vocabulary: Vocabulary | None
    strategy: tf.distribute.Strategy | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """{name: value} of all settings."""
        classes = self.pretraining, self.optimizer, self.training, self.devices
        return {k: v for config in classes for k, v in vars(config).items()}

    def with_settings(self, values: Mapping[str, Any]) -> "Setup":
        """Return the setup with new values for some settings."""
        changed = {}
        for name in ("pretraining", "optimizer", "training", "devices"):
            config = getattr(self, name)
            new = {k: values[k] for k in vars(config).keys() & values.keys()}
            changed[name] = dataclasses.replace(config, **new)
        return dataclasses.replace(self, **changed)

    @property
    def kind(self) -> Kind:
        """The kind of pretraining that suits the records."""
        return KINDS[next(iter(self.folders.values())).task]

    @property
    def writes(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.pretraining.do_train and distribution.is_chief(
            self.strategy
        )

    @property
    def held_out(self) -> int:
        """The number of held-out examples in the last phase's records."""
        return self.folders[self.phases()[-1].data_dir].count(EVAL)

    def phases(self) -> tuple[phases.Phase, ...]:
        """Return the phases; raise an error if a schedule is invalid."""
        pretraining = self.pretraining
        depth, masks = pretraining.depth_schedule, pretraining.mask_schedule
        if not pretraining.do_train:  # use all layers, and the records' masks
            depth = masks = None
        schedules = phases.read_schedules(
            pretraining.data_dir, depth, masks, self.config
        )
        if masks:
            phases.check_mask_schedule(masks, self.folders)
        replicas = self.strategy.num_replicas_in_sync if self.strategy else 1
        return phases.make_phases(
            schedules,
            self.folders,
            self.training.num_train_steps,
            batch_size=self.training.train_batch_size,
            unit=replicas * self.training.gradient_accumulation_steps,
        )

    def trainer(self) -> Trainer:
        """Return the trainer of a new model, initialized with the seed."""
        keras.utils.set_random_seed(self.training.random_seed)
        settings = self.pretraining.compat, self.optimizer, self.training
        inputs = self.strategy, self.kind, self.vocabulary
        return make_trainer(self.config, *settings, *inputs)

    @property
    def batches(self) -> Callable:
        """The function that creates training batches; see `Phase.reader`."""
        return functools.partial(
            input_pipeline.train_batches, seed=self.training.random_seed
        )


def check_start(
    pretraining: PretrainingConfig, config: AlbertConfig, folders: Folders
) -> Vocabulary | None:
    """Check a run's initial weights; return the vocabulary of its records."""
    source = pretraining.init_checkpoint
    if source:  # before its vocabulary, which may have a foreign format
        AlbertConfig.from_model_dir(source, "init_checkpoint")
    vocabulary = vocabulary_of(next(iter(folders)), source)
    warm_start.check_warm_start(
        source, pretraining.init_state, config, vocabulary
    )
    return vocabulary


def check_inputs(
    pretraining: PretrainingConfig,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    devices: DistributionConfig,
) -> Setup:
    """Read and check all inputs before using a device."""
    config = AlbertConfig.from_json_file(pretraining.albert_config_file)
    folders = read(pretraining.data_dir, config, pretraining.do_train)
    if pretraining.do_train:
        check_readers(folders, devices)
    setup = Setup(
        pretraining, optimizer, training, devices, config, folders, None
    )
    require(
        setup.held_out or not pretraining.do_eval,
        "`do_eval` needs held-out records; the names of their files begin with "
        "`eval`.",
        data_dir=f"{setup.phases()[-1].data_dir} with none",
    )
    for name in setup.kind.lacks:
        default = field_of(PretrainingConfig, name).default
        value, rule = getattr(pretraining, name), "With records of phonemes, "
        rule += f"`{name}` must keep its default, {default}."
        require(value == default, rule, **{name: value})
    if checkpoint_files.listed(pretraining.output_dir):
        # A resumed run does not read its initial weights again.
        first, source = next(iter(folders)), pretraining.output_dir
        vocabulary = vocabulary_of(first, source)
    else:
        vocabulary = check_start(pretraining, config, folders)
    checkpoints.check_claim(pretraining.output_dir, config)
    if vocabulary:
        vocabulary.check_claim(pretraining.output_dir)
    require(
        pretraining.do_train
        or pretraining.init_checkpoint
        or checkpoints.has_weights(pretraining.output_dir),
        "Without `do_train`, `output_dir` or `init_checkpoint` must contain a "
        "checkpoint.",
        output_dir=pretraining.output_dir,
        init_checkpoint=None,
    )
    return dataclasses.replace(setup, vocabulary=vocabulary)


# Paths may differ between machines.
PATHS = ("data_dir", "albert_config_file", "output_dir", "init_checkpoint")


def connect_devices(
    setup: Setup, workers: tf.distribute.Strategy | None
) -> Setup:
    """Connect a setup's devices and resolve its `dtype`; return the new setup.

    Args:
      setup: the setup, which must be the same on all workers.
      workers: the strategy that connects several workers, or None if there is
        only this process.
    """
    schedule = phases.read_schedule("data_dir", setup.pretraining.data_dir)
    contents = {
        "albert_config_file": setup.config,
        "data_dir": fingerprint(setup.folders),
        "shares of data_dir": [share for _, share in schedule],
        "held-out records": [m.count(EVAL) for m in setup.folders.values()],
    }
    machine_settings = PATHS + tuple(vars(setup.devices))
    shared = {
        k: v for k, v in setup.settings.items() if k not in machine_settings
    }
    distribution.require_alike(workers, shared | contents)
    strategy = workers or distribution.make_strategy(setup.devices)
    training = with_dtype(setup.training, strategy)
    return dataclasses.replace(setup, strategy=strategy, training=training)
