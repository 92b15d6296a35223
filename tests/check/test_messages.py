"""docs/messages.md has a row for every message of the package, and no row for a message that is gone."""

from __future__ import annotations

import messages


def test_every_message_has_a_row() -> None:
    rows = messages.rows()

    missing = {
        pattern: file
        for pattern, file in messages.patterns().items()
        if not any(messages.describes(row, pattern) for row in rows)
    }

    assert not missing, "say in docs/messages.md what it means and what to do"


def test_every_row_has_a_message() -> None:
    patterns = messages.patterns()

    assert not [row for row in messages.rows() if not any(messages.describes(row, pattern) for pattern in patterns)]


def test_every_row_is_filled_in() -> None:
    rows = messages.rows()

    assert len(rows) > 90
    assert [row for row, cells in rows.items() if len(cells) < 2 or not all(cells)] == []


def test_the_kinds_of_messages_are_found() -> None:
    """The reader of the source must not go blind: one message of each kind that it knows."""
    found = messages.patterns()

    for part in (
        "is not understood",  # _say
        "room … fails: …",  # say
        "state page indices",  # say, on several lines
        "plain slice",  # Refused
        "could not be worked out",  # a variable handed to _fail
        "not a known signature",  # Unreadable
        "never reads",  # Verdict
        "the hook failed",  # report.problem
        "does not fit",  # returned
        "conn-edited",  # Obstacle
        "cp-ranks",  # Hazard
        "belongs to somebody else",  # Unseen
    ):
        assert any(part in pattern for pattern in found), part


def test_a_new_message_is_missed() -> None:
    assert not any(messages.describes(row, "room …: something new of which no row tells") for row in messages.rows())
