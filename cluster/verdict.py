"""What became of a publication on its way to a subscription, from what the connection points know: a code and a text.

    rejected            the matchers refused the publication; nobody got it
    consumed            delivered, and the client has reported it as consumed
    delivered           written to the client's socket
    waiting_for_credit  in the client's queue: it must consume something first
    queued              in the client's queue: it does not read, is not connected, or it is written this moment
    dropped             removed from the client's queue, and by which policy
    not_matching        the filter does not hold for it
    not_published       its publisher has not sent this sequence
    under_way           taken in, not acknowledged yet
    before_subscription taken in before the client asked for the subscription, or for its present filter
    not_seen            none of these: it is older than what is remembered, or its publisher, or its session, has gone
    unknown_client      nobody is logged in under this id
    unknown_subscription  the client has no such subscription open

What is remembered is bounded (`recent.py`): the columns of the last notifications of a connection point, 8 MiB of those
sent and 8 MiB of those dropped, the last 4,096 frames of publications and the last 4,096 refused ones; beyond that the
answer is `not_seen`. A publication goes by its publisher's name and sequence; of two lives of a publisher under one
name the later one is meant. Times are the connection points' own: where they run on machines whose clocks differ,
`before_subscription` may be wrong by as much.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from cluster.language import explain, tree_of_normal
from cluster.language.encoding import decode_normal

Document = dict[str, Any]


class Verdict(NamedTuple):
    """One of the codes above, and why in words."""

    code: str
    detail: str


def judged(facts: Document, attributes: Mapping[str, Any], sequence: int | None) -> Document:
    """Return the facts with what they come to: see Admin.why. sequence: None if no publisher was asked about."""
    document: Document = {"matches": None, "filter": None, "explanation": None, "delivery": None, **facts}
    missing = absent(facts)
    if missing is not None:
        return document | {"delivery": missing._asdict()}
    tree = tree_of_normal(decode_normal(base64.b64decode(facts["subscriber"]["subscription"]["normal_form"])))
    matches = True
    if tree is not None:
        explanation = explain(tree, attributes)
        matches = explanation.value is True
        document |= {"filter": explanation.text, "explanation": explanation.to_json()}
    document["matches"] = matches
    if sequence is not None:
        document["delivery"] = verdict(facts, matches, sequence)._asdict()
    return document


def absent(facts: Document) -> Verdict | None:
    """Return what is missing so that nothing can be explained; None if the subscription is there."""
    subscriber = facts.get("subscriber")
    if subscriber is None:
        return Verdict("unknown_client", "no such client is logged in")
    if subscriber["subscription"] is None:
        count = subscriber["subscriptions"]
        return Verdict(
            "unknown_subscription", f"{subscriber['client_id']!r} has no such subscription among its {count}"
        )
    return None


def verdict(facts: Document, matches: bool, sequence: int) -> Verdict:
    """Return what became of the publication that the facts are about. matches: whether the filter holds for it now."""
    missing = absent(facts)
    if missing is not None:
        return missing
    publisher = facts.get("publisher", {})
    if "rejected" in publisher:
        return Verdict("rejected", publisher["rejected"])
    subscriber = facts["subscriber"]
    subscription = subscriber["subscription"]
    notification = subscriber["notification"]
    if notification is not None and subscription["number"] in notification["numbers"]:
        found = _on_its_way(subscriber, notification)
        if not matches:
            return Verdict(
                found.code, f"{found.detail}; the filter was another one then, or the attributes are not what it had"
            )
        return found
    if not matches:
        return Verdict("not_matching", "the filter does not hold for it")
    taken_us = notification["taken_us"] if notification is not None else publisher.get("taken_us")
    asked_us = subscription["asked_us"]
    if taken_us is not None and asked_us is not None and taken_us < asked_us:
        seconds = (asked_us - taken_us) / 1e6
        return Verdict(
            "before_subscription", f"taken in {seconds:.3f} s before the client asked for it, or for its present filter"
        )
    if notification is not None:
        return Verdict(
            "not_seen",
            "the client got it for other subscriptions only; this one was not in force yet, or the attributes are not "
            "what it had",
        )
    published = publisher.get("published")
    if "acknowledged" in publisher and (published is None or sequence > published):
        return Verdict("not_published", f"the publisher's last sequence is {0 if published is None else published}")
    if "acknowledged" in publisher and sequence > publisher["acknowledged"]:
        return Verdict("under_way", f"acknowledged up to {publisher['acknowledged']} so far")
    if not subscription["confirmed"]:
        return Verdict("before_subscription", "the subscription is not in force yet")
    return Verdict("not_seen", "older than what is remembered, or its publisher or the session has begun anew since")


def _on_its_way(subscriber: Document, notification: Document) -> Verdict:
    match notification["state"]:
        case "consumed":
            return Verdict("consumed", "the client has reported it as consumed")
        case "sent":
            waits = subscriber["sent"] - subscriber["consumed"]
            return Verdict("delivered", f"written to the client's socket; {waits} are not reported as consumed")
        case "dropped":
            return Verdict("dropped", f"removed from the client's queue: {notification['reason']}")
        case state:
            assert state == "waiting", state
            waiting = f"{subscriber['queued']} wait for the client"
            if not subscriber["connected"]:
                return Verdict("queued", f"{waiting}, which is not connected")
            if not subscriber["reads"]:
                return Verdict("queued", f"{waiting}, which does not read its socket")
            if subscriber["credit"]:
                return Verdict("queued", waiting)
            return Verdict("waiting_for_credit", f"{waiting}, which has yet to consume what it was sent")
