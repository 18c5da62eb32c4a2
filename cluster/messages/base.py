"""What all messages between roles have in common."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="message", gc=False):
    """The base of all messages between roles; a message travels alone in one lane frame."""
