"""Text to TFRecords: documents -> segment pairs -> masks -> records.

`text` reads blocks of lines, `documents` holds tokenised documents as arrays
and deals them to shards on disk, `pairs` cuts them into segment pairs,
`instances` lays pairs out as [CLS] A [SEP] B [SEP], `wire` writes them as
TFRecords, `statistics` counts, and `build` runs the stages over processes.
"""
