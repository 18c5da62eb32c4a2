"""The way of a publication, from the publisher's connection point to the subscribers', and back.

A *run* is some consecutive publications of one publisher that came in one frame. Work in Python is done per run
and per batch; what belongs to single publications sits in columns: little-endian arrays inside `bytes`
(`columns.py`). A publication's own bytes pass through untouched; only matchers read them.
"""

from __future__ import annotations

import msgspec

from cluster.messages.base import Message


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive publications of one publisher.

    instance: tells apart the lives of a publisher; (publisher, instance, sequence) names a publication for good.
    client:   who published, for the acknowledgement.
    time_us:  when the connection point took them in, microseconds since 1970.
    stored:   the acknowledgement waits until what matches is in the matched output, and that on disk.
    published_us: when they were published, by the publisher's clock; 0 if it did not say.
    settled:  the publisher sends none at or below this sequence again: it knows that they are acknowledged.
    """

    publisher: str
    instance: int
    client: int
    first_sequence: int
    count: int
    time_us: int
    stored: bool = False
    published_us: int = 0
    settled: int = 0

    @property
    def last_sequence(self) -> int:
        """The last publication's."""
        return self.first_sequence + self.count - 1


class Publications(Message, frozen=True, array_like=True, tag=1, gc=False):
    """CP -> AP. `lengths`: uint32 per publication of all runs in order, its bytes in `payload`."""

    runs: list[Run]
    lengths: bytes
    payload: bytes


class Batch(Message, frozen=True, array_like=True, tag=2, gc=False):
    """AP -> every matcher in `expect`, one encoding for all. Never cut or merged on its way.

    sequence:        of the first publication, dense per access point and incarnation.
    exit_points:     per run, the slot that joins the answers.
    exit_sequences:  per run, the sequence of its first publication, dense per (access point incarnation, exit point).
    """

    epoch: int
    expect: list[int]
    sequence: int
    runs: list[Run]
    exit_points: list[int]
    exit_sequences: list[int]
    lengths: bytes
    payload: bytes


class Result(Message, frozen=True, array_like=True, tag=3, gc=False):
    """Matcher -> EP: what one matcher found in the runs of one batch that this exit point joins.

    Without a hit it is sent all the same: it moves the matcher's watermark for the access point.

    sequence:      the exit sequence of the first publication; the runs are dense from there.
    rejected:      (publication, reason) of those that are not well-formed; the same at every matcher.
    matched:       uint32, which publications (counted through the runs) have hits, ascending. Of one matcher, where
                   everything is written to the output: all that are well-formed (`routing.teller_of`).
    notifications: uint32 per matched publication, how many clients it is for; 0 for one without hits.
    clients:       uint64 per notification, ascending within a publication.
    matches:       uint32 per notification, how many of `numbers` are its own.
    numbers:       uint32 per hit, the client's number of a subscription that matches.
    lengths, payload: of the matched publications.
    """

    epoch: int
    expect: list[int]
    access_point: int
    sequence: int
    runs: list[Run]
    rejected: list[tuple[int, str]]
    matched: bytes
    notifications: bytes
    clients: bytes
    matches: bytes
    numbers: bytes
    lengths: bytes
    payload: bytes


class Deliver(Message, frozen=True, array_like=True, tag=4, gc=False):
    """EP -> CP: notifications for clients of this connection point, sorted by client, then in delivery order.

    runs:        (publisher, instance, time_us, token); the token comes back in Delivered.
    run, sequence, lengths, payload: per publication in this message: index into runs (uint32), the publisher's
                 number (uint64), bytes (uint32).
    sessions:    uint32 per client that gets something; notifications: uint32 per client, how many.
    publication: uint32 per notification, an index into the publications.
    matches:     uint32 per notification, how many of `numbers` are its own.
    numbers:     uint32 per hit, the client's number of a subscription that matches.
    """

    runs: list[tuple[str, int, int, int]]
    run: bytes
    sequence: bytes
    lengths: bytes
    payload: bytes
    sessions: bytes
    notifications: bytes
    publication: bytes
    matches: bytes
    numbers: bytes


class Delivered(Message, frozen=True, array_like=True, tag=5, gc=False):
    """CP -> EP: all notifications of these runs are within their subscribers' queues, or counted as dropped."""

    tokens: list[int]


class Acknowledge(Message, frozen=True, array_like=True, tag=6, gc=False):
    """EP -> CP of a publisher: (client, upto, rejected [(sequence, reason)]), cumulative per client.

    outcomes: for each of these, how many of the publications that it is about were matched, not well-formed, and
              doubles, whatever else these are.
    since:    the epoch of the last Recover that the exit point has heard, or of the view that it began with. After a
              later one this is void, as the publications are sent again: told all the same, a client could subscribe
              to what it knows to be over, and get it.
    """

    acknowledgements: list[tuple[int, int, list[tuple[int, str]]]]
    outcomes: list[tuple[int, int, int]]
    since: int


class NameClients(Message, frozen=True, array_like=True, tag=11, gc=False):
    """CP -> EPs: the client ids of these clients, which have subscriptions; for the matched output.

    ended: these are no more; what matched them may still be on its way.
    """

    names: list[tuple[int, str]]
    ended: list[int]


PublicationMessage = Publications | Batch | Result | Deliver | Delivered | Acknowledge | NameClients
