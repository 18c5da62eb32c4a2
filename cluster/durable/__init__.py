"""A durable session: what it holds and is owed outlives its connections, and any one crash.

It lives at one connection point, its home, and in the file of that slot, so that a later incarnation goes on with it.

    position   each notification has one, dense from 1 on, given once and for good
    unsettled  the client has not acknowledged it: it is kept, on disk and here, and delivered again on the next
               connection; the other ones are settled, whatever the reason
    underway   sent on the present connection and unsettled; bounded by the client's window, and in bytes

The order of things, from which the promises follow:

    a notification is on disk       before its run is Delivered, and before it is sent
    that the client is connected    is on disk, with its window, before anything is sent to it
    that a position is settled      is on disk before another notification takes its place in the window

So after a crash of the connection point everything is there that was Delivered, and at most a window of it may have
been sent without our knowing: these are the first unsettled ones, as they are sent in order and refused ones go first.
They count as delivered once more and are flagged when they come again: nothing comes twice without the flag, and no
more than a window of it.

The parts, of which none asks one below it:

    entries      a notification, in the queue, on disk, and as the client gets it
    queue        the notifications that are not settled, and which positions are
    places       subscriptions that are given what is valid
    sending      the connection: what goes next, what is underway, how often it went
    losses       what is removed, and what the client is to be told of it
    settling     acknowledgements, quota, subscriptions that are closed
    marks        what a session that has moved was offered before
    state        all that, but for the notifications, in one piece for the disk
    session      puts them together; the one that others call
"""

from __future__ import annotations

from cluster.durable.entries import Entry, Held, OneEntry, Portion
from cluster.durable.places import RESERVED
from cluster.durable.queue import Room
from cluster.durable.session import DurableSession

__all__ = ["RESERVED", "DurableSession", "Entry", "Held", "OneEntry", "Portion", "Room"]
