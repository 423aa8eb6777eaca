"""How long a step table takes where a message, a byte on a link and a byte added up each cost so much."""

from collections.abc import Iterator

from benchsuite.probe.comm.step_tables import Receive, Send, Table


def time_s(
    table: Table, num_bytes: float, alpha_s: float, beta_s_per_byte: float, gamma_s_per_byte: float = 0.0
) -> float:
    """Seconds that it takes where a message costs alpha, a byte on a rank's link beta, and one added up gamma.

    Messages wait for both ends, and pass each rank's two ports, one in and one out, one after the other.
    """
    replay = _Replay(table)
    while any(replay.is_busy(rank) for rank in range(table.num_ranks)):
        for rank in filter(replay.is_busy, range(table.num_ranks)):
            for send, receive in replay.ready(rank):
                size = (send.chunks[1] - send.chunks[0]) / table.num_chunks * num_bytes
                passes = alpha_s + size * beta_s_per_byte
                replay.pass_on(rank, send.peer, passes, size * gamma_s_per_byte * receive.adds)
        for rank in filter(replay.is_busy, range(table.num_ranks)):
            replay.step_on(rank)
    return max(replay.begun)


class _Replay:
    """Where each rank of a table stands, and since when."""

    def __init__(self, of: Table) -> None:
        self.steps = [of.of_rank(rank) for rank in range(of.num_ranks)]
        self.at = [0] * of.num_ranks
        self.begun, self.out, self.into = ([0.0] * of.num_ranks for _ in range(3))
        self.sent, self.received = ([set[int]() for _ in range(of.num_ranks)] for _ in range(2))

    def is_busy(self, rank: int) -> bool:
        return self.at[rank] < len(self.steps[rank])

    def ready(self, rank: int) -> Iterator[tuple[Send, Receive]]:
        """Messages of a rank's step that have not passed and that their receiver waits for."""
        for send in self.steps[rank][self.at[rank]].sends:
            if send.peer not in self.sent[rank] and self.is_busy(send.peer) and rank not in self.received[send.peer]:
                for receive in self.steps[send.peer][self.at[send.peer]].receives:
                    if receive.peer == rank:
                        yield send, receive

    def pass_on(self, rank: int, peer: int, passes_s: float, adds_s: float) -> None:
        """One message, from the moment on that both ends and both ports are free."""
        end = max(self.out[rank], self.into[peer], self.begun[rank], self.begun[peer]) + passes_s
        self.out[rank], self.into[peer] = end, end + adds_s
        self.sent[rank].add(peer)
        self.received[peer].add(rank)

    def step_on(self, rank: int) -> None:
        """Begin the next step where all messages of this one have passed."""
        step = self.steps[rank][self.at[rank]]
        if len(self.sent[rank]) == len(step.sends) and len(self.received[rank]) == len(step.receives):
            self.begun[rank] = max(self.begun[rank], self.out[rank], self.into[rank])
            self.at[rank], self.sent[rank], self.received[rank] = self.at[rank] + 1, set(), set()
