"""What the data builder costs and gives, as tables.

    python benchmarks/data_builder.py --text=FILE --spm_model_file=FILE \
        --tables=rate,memory,disk,launcher,kill,processes,beam,masking,reading,leak

FILE is text of one sentence per line with blank lines between documents. Each
build runs in a process of its own, as a user's would. Rates count tokens of
training records, duplicates included, and leave out Python's start.

The released builder's rates are those measured with google-research/albert at
b772393, one process, on 2.0 MB of English with an 8,000-piece vocabulary, on
2 cores of an AMD EPYC; it made the instances and wrote no file.
"""

import data_builder_costs as costs
import data_builder_records as contents
import data_builder_repeats as repeats
from data_builder_builds import BenchmarkConfig

from albert_tf.base import settings

TABLES = {
    function.__name__: function
    for function in (
        costs.rate,
        costs.memory,
        costs.disk,
        costs.launcher,
        repeats.kill,
        repeats.processes,
        repeats.beam,
        contents.masking,
        contents.reading,
        contents.leak,
    )
}


def main() -> None:
    """Print the tables that were asked for."""
    config = settings.from_flags(BenchmarkConfig)
    for name in config.tables or TABLES:
        print(f"\n{name}", flush=True)
        TABLES[name](config)


if __name__ == "__main__":
    settings.define_flags(BenchmarkConfig)
    settings.run(main)
