"""Text to TFRecords, in two passes; `build.run` is the whole of it.

First pass, block by block: `text_blocks` reads files in the `text_files`
formats, `boundaries` finds tokens, words and sentences, `dealing` deals
`documents` to shards, and `held_out` chooses what is held out.

Second pass, shard by shard: `record_files` makes one file, by cutting `pairs`
(or `next_sentence_pairs`, `released_pairs`), laying them out, masking them (or
by `released_masking`) and encoding them (`example_encoding`).

Then `statistics` says what was made, and `advice` warns.

`recipe` is what goes to every process; `local_runner` and `beam_runner` run
the same stages on one machine and on many; `build_folder` knows a folder that
was begun before, and `shards` and finished files let a build go on.
"""
