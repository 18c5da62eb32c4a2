"""The parts of a connection point, one a file: `connection_point.py` puts them together and says who does what.

What they all look at is `Shared`; whatever else a part keeps is its own, and the others ask it. A part is given those
it asks when it is made, so the list of its arguments is the list of what it depends on.

    connections, turns            sockets, and whose frames are read next
    sessions, login, attaching    clients that have logged in; durable sessions, which outlive their connections
    publishing, books             from Publish to Acknowledged, and what became of it
    subscribing, changes          from Subscribe to Done, and what a recovery needs to do it again
    gathering                     what both of them send to access points, in its order
    delivering, notifying         from Deliver to Notify
    giving                        what is valid, to a new subscription
    leaving                       clients move away before this connection point goes
    handing, taking               durable sessions go to another connection point
"""
