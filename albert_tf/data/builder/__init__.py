"""Convert text to TFRecords in two passes, which `build.run` runs.

`passes` contains both passes. The first pass processes the text block by block:
`text_blocks` reads files in the formats of `text_formats`, `boundaries` finds
tokens, words and sentences, the documents are distributed to `shards`, and
`held_out` chooses the held-out text.

The second pass works shard by shard. Each job writes one file: it cuts
documents into pairs (with `pairs`, `next_sentence_pairs` or `released`), lays
out the pairs, masks them (with `data.masking` or `released`) and encodes them
(with `records.tfrecord`).

Finally, `statistics` reports the result and warns about problems.

For phoneme models, `phoneme_build` creates records from the rows of a table.

Every process receives a `build_settings.BuildSpec`. `local_runner` runs the
stages on one machine, and `beam_runner` on many. `build_folder` recognizes an
unfinished build, which resumes from its shards and finished files.
"""
