"""Matched output: a log that loses nothing, written by the exit points, read by whoever analyses.

    schema.py       the columns                       rows.py       plain rows <-> Arrow tables
    write_ahead.py  what is written at once           sealing.py    write-ahead rows -> tables
    segments.py     tables <-> Parquet files          manifest.py   which of them are committed
    slot_log.py     what one slot has committed       tidying.py    merging and removing segments
    slot_writer.py  all of it for one slot            adopting.py   slots that nobody plays
    reader.py       reading while it is written       verify.py     checking all of it
    disk.py         all that is asked of a disk       errors.py     what can be wrong

Who appends what, and that nothing is appended twice, is the exit point's business: `cluster/written.py`.
"""
