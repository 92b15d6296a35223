"""How a failed state send becomes a failure of its request."""

from __future__ import annotations

from enum import Enum


class Settlement(Enum):
    #: send_aux always follows maybe_send_extra, and what it returns is used: it returns failure.
    BY_AUX = "send_aux"
    #: Up to 0.5.6.post2 only the last pipeline stage sends aux data. The status that is passed on is turned as well.
    BY_STATUS = "update_status and sync_status_to_decode_endpoint"
