"""`interest`: who wants what, and how much of it there is: for sizing a cluster and for pricing.

    interest_subscriptions  subscription, client_number, matches, selectivity (share of the publications)
    interest_clients        client, notifications, share
    interest_attributes     attribute, type, publications that carry it, their matches, matches_per_publication
    interest_overlap        pairs of subscriptions: how often both match, share of either (jaccard), of the smaller
    interest_ranges         tenths of the values of each number, and how many subscriptions match there
    interest.json           the summary, Summary below

Known and not known. The log holds what matched, so a subscription that never did is not in it: how many were open must
be said (options.open_subscriptions), else `subscriptions_open` and `share_never_matched` are null. If the log holds
matched publications alone, shares are of those unless `options.publications` says how many there were; `log_holds`
tells.

All but overlap and ranges are sums, so a stream keeps them: `interest_sums` has what earlier batches summed up to, and
the last batch's own, so that to apply a batch twice counts it once.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.tables import PART, Result, Stream, Table, read, replace_file

SUBSCRIPTIONS = Table("interest_subscriptions", ("subscription",))
CLIENTS = Table("interest_clients", ("client",))
ATTRIBUTES = Table("interest_attributes", ("attribute", "type"))
OVERLAP = Table("interest_overlap", ("first", "second"))
RANGES = Table("interest_ranges", ("attribute", "low"))
SUMS = Table("interest_sums", ("kind", "name", "batch"))
SUMMARY = "interest.json"

MAPS = {"numbers": "float", "integers": "int", "strings": "string", "flags": "bool"}
COLUMNS = ("time_accepted", "subscriptions", "clients", "nulls", *MAPS)
SUM_COLUMNS = ("kind", "name", "publications", "matches")
CLIENT_BITS = 20
"""A subscription's number is client << 20 | the client's own number."""
PARTS = 10


class Spread(msgspec.Struct, frozen=True):
    """How many subscriptions a publication matches."""

    mean: float
    p50: int
    p95: int
    max: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a capacity model may begin with, before it has measured anything itself. Rates are publications per second.

    since, until:          of acceptance, UTC; seconds: between them.
    log_holds:             "all" publications or "matched" ones alone; rates and shares are of those, or of as many as
                           was said there were.
    publications_per_second_peak: of the busiest minute in the log.
    notifications_per_publication: clients that one went to, mean.
    bytes_per_publication: names and values, as MessagePack spells them: about what a publication's attributes take on
                           the wire, without its frame.
    subscriptions_seen:    that matched at least once. subscriptions_open, share_never_matched: null where not known.
    """

    since: datetime
    until: datetime
    seconds: float
    log_holds: str
    publications: int
    publications_per_second: float
    publications_per_second_peak: float
    matched_share: float
    matches_per_publication: Spread
    notifications_per_publication: float
    bytes_per_publication: float
    subscriptions_seen: int
    subscriptions_open: int | None
    share_never_matched: float | None
    clients_seen: int


def sums(log: DataFrame) -> DataFrame:
    """Return everything countable as rows of kind, name, publications, matches; sums of parts are those of the whole.

    kind total (names: all, matched, notifications, bytes; first_us and last_us, which are no sums; the figure is under
    `matches`), minute, spread (name: a number of matches), subscription, client, and the attribute types.
    """
    micros = F.unix_micros("time_accepted")
    row = log.select("*", F.size("subscriptions").cast("long").alias("n"), micros.alias("us"))
    minute = (F.col("us") / 60_000_000).cast("long").cast("string")
    lists = [
        _named("minute", F.array(minute)),
        _named("spread", F.array(F.col("n").cast("string"))),
        _named("subscription", F.col("subscriptions").cast("array<string>")),
        _named("client", F.col("clients")),
        *(_named(kind, F.map_keys(each)) for each, kind in MAPS.items()),
    ]
    counted = row.select("n", F.explode(F.concat(*lists)).alias("one")).groupBy("one.kind", "one.name")
    totals = row.agg(
        F.count("n").alias("all"),
        F.count_if(F.col("n") > 0).alias("matched"),
        F.coalesce(F.sum(F.size("clients")), F.lit(0)).cast("long").alias("notifications"),
        F.coalesce(F.sum(_bytes()), F.lit(0)).cast("long").alias("bytes"),
        F.min("us").alias("first_us"),
        F.max("us").alias("last_us"),
    )
    names = ("all", "matched", "notifications", "bytes", "first_us", "last_us")
    pairs = F.explode(F.array(*(F.struct(F.lit(name).alias("name"), F.col(name).alias("matches")) for name in names)))
    total = totals.select(pairs.alias("one")).select(
        F.lit("total").alias("kind"), "one.name", F.lit(0).cast("long").alias("publications"), "one.matches"
    )
    both = counted.agg(F.count("n").alias("publications"), F.sum("n").alias("matches"))
    return both.unionByName(total.where(F.col("matches").isNotNull()))


def subscriptions(counted: DataFrame, publications: int) -> DataFrame:
    """Return the table of subscriptions, from sums."""
    number = F.col("name").cast("long")
    return counted.where(F.col("kind") == "subscription").select(
        number.alias("subscription"),
        F.shiftright(number, CLIENT_BITS).alias("client_number"),
        F.col("publications").alias("matches"),
        (F.col("publications") / F.lit(max(publications, 1))).alias("selectivity"),
    )


def clients(counted: DataFrame, publications: int) -> DataFrame:
    """Return the table of clients, from sums."""
    return counted.where(F.col("kind") == "client").select(
        F.col("name").alias("client"),
        F.col("publications").alias("notifications"),
        (F.col("publications") / F.lit(max(publications, 1))).alias("share"),
    )


def attributes(counted: DataFrame) -> DataFrame:
    """Return the table of attributes, from sums."""
    return counted.where(F.col("kind").isin(*MAPS.values())).select(
        F.col("name").alias("attribute"),
        F.col("kind").alias("type"),
        "publications",
        "matches",
        (F.col("matches") / F.col("publications")).alias("matches_per_publication"),
    )


def overlap(log: DataFrame, counted: DataFrame, most: int) -> DataFrame:
    """Return the pairs, of the `most` subscriptions with the most matches, that have matched a publication together.

    Publications that match the same subscriptions are counted once for all before pairs are made of them.
    """
    chosen = counted.where(F.col("kind") == "subscription").select(
        F.col("name").cast("long").alias("subscription"), F.col("publications").alias("own")
    )
    top = chosen.orderBy(F.desc("own"), "subscription").limit(most).cache()
    numbers = F.array(*(F.lit(row["subscription"]).cast("long") for row in top.select("subscription").collect()))
    kept = F.array_sort(F.array_intersect("subscriptions", numbers))
    sets = (
        log.select(kept.alias("these")).where(F.size("these") > 1).groupBy("these").agg(F.count("these").alias("times"))
    )
    firsts = sets.select("these", "times", F.explode("these").alias("first"))
    pairs = firsts.select("first", "times", F.explode("these").alias("second")).where(F.col("first") < F.col("second"))
    both = pairs.groupBy("first", "second").agg(F.sum("times").alias("both"))
    of_first = top.select(F.col("subscription").alias("first"), F.col("own").alias("a"))
    of_second = top.select(F.col("subscription").alias("second"), F.col("own").alias("b"))
    joined = both.join(of_first, "first").join(of_second, "second")
    return joined.select(
        *("first", "second", "both"),
        (F.col("both") / (F.col("a") + F.col("b") - F.col("both"))).alias("jaccard"),
        (F.col("both") / F.least("a", "b")).alias("of_smaller"),
    )


def ranges(log: DataFrame) -> DataFrame:
    """Return PARTS ranges of the values of each number, each with about as many publications, and their matches.

    Columns: attribute, low, high (a value belongs to the range from low up to below high; the last one has its high as
    well), publications, matches, matches_per_publication. Fewer ranges where many values are equal.
    """
    both = F.map_concat("numbers", F.transform_values("integers", lambda _, value: value.cast("double")))
    values = log.select(F.size("subscriptions").alias("n"), F.explode(both).alias("attribute", "value"))
    shares = [part / PARTS for part in range(PARTS + 1)]
    edges = values.groupBy("attribute").agg(F.percentile_approx("value", shares, 10_000).alias("edges"))
    edges = edges.select("attribute", F.array_distinct("edges").alias("edges"))
    last = F.size("edges") - 1
    below = F.size(F.filter("edges", lambda edge: edge <= F.col("value")))
    place = F.greatest(F.lit(1), F.least(below, last))
    placed = values.join(F.broadcast(edges), "attribute").select(
        "attribute",
        "n",
        F.get("edges", place - 1).alias("low"),
        F.coalesce(F.get("edges", place), F.get("edges", place - 1)).alias("high"),
    )
    return placed.groupBy("attribute", "low", "high").agg(
        F.count("n").alias("publications"),
        F.sum("n").alias("matches"),
        F.avg("n").alias("matches_per_publication"),
    )


def summary(counted: list[tuple[str, str, int, int]], options: JobOptions) -> Summary | None:
    """Return the summary of sums, None for an empty log.

    Shape: rows of SUM_COLUMNS; those of kinds total, minute and spread are looked at, and how many subscriptions and
    clients there are.
    """
    total = {name: matches for kind, name, _, matches in counted if kind == "total"}
    if not total.get("all"):
        return None
    seen = sum(kind == "subscription" for kind, *_ in counted)
    spread = sorted((int(name), publications) for kind, name, publications, _ in counted if kind == "spread")
    everything = total["matched"] < total["all"]
    published = max(options.publications or 0, total["all"])
    unmatched = published - total["all"]
    if unmatched:
        spread = sorted([*spread, (0, unmatched)])
    seconds = (total["last_us"] - total["first_us"]) / 1e6
    scale = published / total["all"]
    peak = max(publications for kind, _, publications, _ in counted if kind == "minute") / min(60.0, max(seconds, 1.0))
    matches = sum(count * publications for count, publications in spread)
    opened = options.open_subscriptions
    return Summary(
        since=datetime.fromtimestamp(total["first_us"] / 1e6, UTC),
        until=datetime.fromtimestamp(total["last_us"] / 1e6, UTC),
        seconds=seconds,
        log_holds="all" if everything else "matched",
        publications=published,
        publications_per_second=published / max(seconds, 1.0),
        publications_per_second_peak=scale * peak,
        matched_share=total["matched"] / published,
        matches_per_publication=Spread(
            mean=matches / published,
            p50=_at(spread, 0.5),
            p95=_at(spread, 0.95),
            max=max(count for count, _ in spread),
        ),
        notifications_per_publication=total["notifications"] / published,
        bytes_per_publication=total["bytes"] / total["all"],
        subscriptions_seen=seen,
        subscriptions_open=opened,
        share_never_matched=None if not opened else max(0.0, 1 - seen / opened),
        clients_seen=sum(kind == "client" for kind, *_ in counted),
    )


def batch(log: DataFrame, options: JobOptions) -> list[Result]:
    """Return the five tables; the summary is the runner's to write, of the same sums (write_summary)."""
    log = log.select(*COLUMNS).persist(StorageLevel.DISK_ONLY)
    counted = sums(log).cache()
    published = max(_published(counted), options.publications or 0)
    return [
        Result(SUBSCRIPTIONS, subscriptions(counted, published)),
        Result(CLIENTS, clients(counted, published)),
        Result(ATTRIBUTES, attributes(counted)),
        Result(OVERLAP, overlap(log, counted, options.pairs_of)),
        Result(RANGES, ranges(log)),
        Result(SUMS, counted.select(F.lit(-1).cast("long").alias("batch"), *SUM_COLUMNS)),
    ]


def follow(log: DataFrame, options: JobOptions) -> list[Stream]:
    """Return a stream that keeps subscriptions, clients, attributes and the summary."""

    def on_frame(rows: DataFrame, number: int, folder: Path) -> None:
        fresh = sums(rows).toArrow()
        folded = fold(read(folder, SUMS), fresh, number)
        replace_file(folder / SUMS.name / PART, folded)
        whole = add_up(folded)
        counted = rows.sparkSession.createDataFrame(whole)
        published = max(_published(counted), options.publications or 0)
        for table, frame in (
            (SUBSCRIPTIONS, subscriptions(counted, published)),
            (CLIENTS, clients(counted, published)),
            (ATTRIBUTES, attributes(counted)),
        ):
            replace_file(folder / table.name / PART, frame.orderBy(*table.keys).toArrow())
        write_summary(folder, options)

    return [Stream(SUMS, log, mode="append", on_frame=on_frame)]


def fold(before: pa.Table | None, fresh: pa.Table, number: int) -> pa.Table:
    """Return the sums with a batch put in, in the place of what it put in when it was applied before.

    Rows of earlier batches become one sum, under the number before this one's.
    """
    fresh = fresh.select(list(SUM_COLUMNS))
    own = fresh.append_column("batch", pa.array([number] * len(fresh), pa.int64()))
    if before is None:
        return own
    earlier = add_up(before.filter(pc.less(before["batch"], number)))
    past = earlier.append_column("batch", pa.array([number - 1] * len(earlier), pa.int64()))
    return pa.concat_tables([past, own.cast(past.schema)])


def add_up(parts: pa.Table) -> pa.Table:
    """Return the sums over all batches, a row for each kind and name."""
    grouped = parts.group_by(["kind", "name"]).aggregate(
        [("publications", "sum"), ("matches", "sum"), ("matches", "min"), ("matches", "max")]
    )
    bound = pc.equal(grouped["kind"], "total")
    matches = pc.if_else(
        pc.and_(bound, pc.equal(grouped["name"], "first_us")), grouped["matches_min"], grouped["matches_sum"]
    )
    matches = pc.if_else(pc.and_(bound, pc.equal(grouped["name"], "last_us")), grouped["matches_max"], matches)
    return pa.table(
        {
            "kind": grouped["kind"],
            "name": grouped["name"],
            "publications": grouped["publications_sum"],
            "matches": matches,
        }
    )


def write_summary(folder: Path, options: JobOptions) -> Summary | None:
    """Write the summary of the sums in a folder beside them, and return it; None and no file for an empty log."""
    parts = read(folder, SUMS)
    if parts is None:
        return None
    found = summary([tuple(row.values()) for row in add_up(parts).to_pylist()], options)
    if found is not None:
        aside = folder / f"_{SUMMARY}.new"
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        aside.replace(folder / SUMMARY)
    return found


def _published(counted: DataFrame) -> int:
    found = counted.where((F.col("kind") == "total") & (F.col("name") == "all")).select("matches").first()
    return 0 if found is None else int(found[0])


def _named(kind: str, names: Column) -> Column:
    return F.transform(names, lambda name: F.struct(F.lit(kind).alias("kind"), name.alias("name")))


def _bytes() -> Column:
    names: list[Column] = [
        F.aggregate(F.map_keys(each), F.lit(0), lambda total, name: total + F.octet_length(name) + 1) for each in MAPS
    ]
    texts = F.aggregate(F.map_values("strings"), F.lit(0), lambda total, text: total + F.octet_length(text) + 1)
    plain = 9 * (F.size("numbers") + F.size("integers")) + F.size("flags") + F.size("nulls")
    return reduce(lambda left, right: left + right, [*names, texts, plain])


def _at(spread: list[tuple[int, int]], share: float) -> int:
    """Return the number of matches that this share of the publications does not pass."""
    wanted = share * sum(publications for _, publications in spread)
    for count, publications in spread:
        wanted -= publications
        if wanted <= 0:
            return count
    return spread[-1][0]
