"""The analytics on the matched output, one file a job.

A job's module has pure functions from DataFrames to DataFrames, and two thin ones that name what is to be kept:
`batch(log, options)` gives finished tables, `follow(log, options)` streams that keep such tables up to date. COLUMNS
are those of the log that either uses: Spark does not tell the data source.
`running.py` reads, writes, and shows progress; `tables.py` says how a table lies on disk.

    log (cluster.output.schema) -> readings.py -> store, series, exceedances, topk, report
                                -> interest, delay, report
"""
