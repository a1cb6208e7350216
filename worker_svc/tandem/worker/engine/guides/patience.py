"""How long a step waits for guides' processes when others are in it: no longer than the step itself takes. Pure."""

from __future__ import annotations

SHORTEST_WAIT_SECONDS = 0.002  # nearly all masks take less, their process's wake-up included
LONGEST_WAIT_SECONDS = 0.02  # a row that is computed and left out costs a step


class Patience:
    """Learns what steps take without what they waited."""

    def __init__(self) -> None:
        self.seconds = SHORTEST_WAIT_SECONDS  # that the next step may wait for others' sake
        self._waited = 0.0

    def begin(self) -> None:
        """Begins a step."""
        self._waited = 0.0

    def waited(self, seconds: float) -> None:
        """Records that the step has waited for guides."""
        self._waited += seconds

    def stepped(self, seconds: float, *, hidden: bool = False) -> None:
        """Records what the step took, its waits included; they were `hidden` if the device was busy all the time."""
        took = seconds if hidden else seconds - self._waited
        self.seconds = min(max(took, SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)
