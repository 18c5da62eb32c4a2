"""Every transcript comes out as it is written down."""

from __future__ import annotations

import pytest

from tests.transcripts.runner import FOLDER, replay

TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 3


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_conversation_is_the_one_written_down(path: object) -> None:
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert replay(text).splitlines() == text.splitlines(), "see tests/transcripts/runner.py, --rewrite"
