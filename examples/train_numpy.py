#!/usr/bin/env python3
"""Data-parallel training in NumPy: a small network learns scikit-learn's digits.

Every Slurm task is a rank. Rank 0 listens on MASTER_ADDR:MASTER_PORT, adds up the
gradients of all ranks in their order, and writes a checkpoint after each epoch. A
run that was interrupted ends with the same weights as one that was not.
"""

from __future__ import annotations

import os
import socket

if __name__ == "__main__":
    # Before the imports that take their time: this line says that the rank is there.
    print(
        f"rank {os.environ.get('SLURM_PROCID', '0')} of {os.environ.get('SLURM_NTASKS', '1')}"
        f" up on {socket.gethostname()} attempt {os.environ.get('HPRESUME_ATTEMPT', '1')}",
        flush=True,
    )

import argparse
import hashlib
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import atomic
import digits
import numpy as np

BATCH = 128
HIDDEN = 32
LEARNING_RATE = 0.05
MOMENTUM = 0.9

#: Sizes of the weights in the flat vector that the ranks exchange.
SHAPES = ((64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))


# ---------------------------------------------------------------- the ranks' network


class Ranks:
    """The ranks of one attempt, connected in a star around rank 0.

    A peer that vanishes without a word blocks for ``timeout`` seconds and no
    longer. That is a net below the supervisor, which sees a lost node in a few.
    """

    def __init__(self, rank: int, size: int, address: str, port: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.deadline = time.monotonic() + timeout
        # A process of an earlier attempt that is still alive must not join this one.
        run = [os.environ.get(name, "") for name in ("SLURM_JOB_ID", "HPRESUME_ATTEMPT")]
        self.greeting = hashlib.sha256(f"{run} {size}".encode()).digest()
        if rank == 0:
            self.peers = self._accept(port)
        else:
            self.peers = [self._connect(address, port)]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over all ranks, the same to the last bit on each of them."""
        if self.rank:
            self.peers[0].sendall(values.tobytes())
            return self._receive(self.peers[0], values.size)
        total = values.copy()
        for peer in self.peers:
            total += self._receive(peer, values.size)
        return self.share(total)

    def share(self, values: np.ndarray) -> np.ndarray:
        """The values of rank 0 on every rank."""
        if self.rank:
            return self._receive(self.peers[0], values.size)
        for peer in self.peers:
            peer.sendall(values.tobytes())
        return values

    def _accept(self, port: int) -> list[socket.socket]:
        """One connection from every other rank, in their order."""
        if self.size == 1:
            return []
        peers: dict[int, socket.socket] = {}
        with self._listen(port) as listener:
            while len(peers) < self.size - 1:
                listener.settimeout(self._left(f"{self.size - 1 - len(peers)} ranks are missing"))
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    continue
                try:
                    peer.settimeout(5.0)
                    greeting = _read(peer, len(self.greeting))
                    (rank,) = struct.unpack("!I", _read(peer, 4))
                except OSError:
                    peer.close()
                    continue
                if greeting != self.greeting or not 0 < rank < self.size:
                    peer.close()
                    continue
                peers[rank] = self._ready(peer)
        for peer in peers.values():
            peer.sendall(self.greeting)
        return [peers[rank] for rank in sorted(peers)]

    def _listen(self, port: int) -> socket.socket:
        """A listener on every address: a host may know its own name as 127.0.1.1."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        while True:
            try:
                return socket.create_server(
                    ("", port), family=family, backlog=self.size, dualstack_ipv6=both
                )
            except OSError as error:
                self._left(f"cannot listen on port {port} ({error})")
                time.sleep(0.2)

    def _connect(self, address: str, port: int) -> socket.socket:
        """A connection to rank 0 that rank 0 has accepted."""
        error: OSError | None = None
        while True:
            left = self._left(f"rank 0 at {address}:{port} does not answer ({error})")
            try:
                peer = socket.create_connection((address, port), timeout=min(left, 3.0))
            except OSError as refusal:
                error = refusal
                time.sleep(0.1)
                continue
            try:
                peer.sendall(self.greeting + struct.pack("!I", self.rank))
                self._ready(peer)
                if _read(peer, len(self.greeting)) == self.greeting:
                    return peer
            except OSError as refusal:
                error = refusal
            peer.close()
            time.sleep(0.1)

    def _ready(self, peer: socket.socket) -> socket.socket:
        peer.settimeout(self.timeout)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer

    def _left(self, complaint: str) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise ConnectionError(f"{complaint} after {self.timeout:.0f} s")
        return left

    def _receive(self, peer: socket.socket, count: int) -> np.ndarray:
        return np.frombuffer(_read(peer, 8 * count), dtype=np.float64)


def _read(peer: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        try:
            part = peer.recv(count - len(received))
        except TimeoutError as error:
            raise TimeoutError(f"a rank was silent for {peer.gettimeout():.0f} s") from error
        if not part:
            raise ConnectionError("a rank has ended the connection")
        received += part
    return bytes(received)


# ---------------------------------------------------------------- the model


def unpack(flat: np.ndarray) -> list[np.ndarray]:
    """Views of a flat vector in the shapes of the weights."""
    parts, start = [], 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        parts.append(flat[start : start + size].reshape(shape))
        start += size
    return parts


def first_weights() -> np.ndarray:
    """The weights before any training; the same on every rank."""
    random = np.random.default_rng(0)
    parts = [
        random.normal(0.0, 1.0 / np.sqrt(shape[0]), shape) if len(shape) > 1 else np.zeros(shape)
        for shape in SHAPES
    ]
    return np.concatenate([part.ravel() for part in parts])


def scores(weights: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values of the hidden layer and of the digits."""
    first, first_bias, second, second_bias = unpack(weights)
    hidden = np.tanh(images @ first + first_bias)
    return hidden, hidden @ second + second_bias


def loss_and_gradient(
    weights: np.ndarray, images: np.ndarray, labels: np.ndarray
) -> tuple[float, np.ndarray]:
    """Cross entropy and its gradient, both as sums over the images."""
    hidden, raw = scores(weights, images)
    raw -= raw.max(axis=1, keepdims=True)
    chances = np.exp(raw)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels]).sum()
    chances[rows, labels] -= 1.0
    back = (chances @ unpack(weights)[2].T) * (1.0 - hidden**2)
    parts = (images.T @ back, back.sum(axis=0), hidden.T @ chances, chances.sum(axis=0))
    return float(loss), np.concatenate([part.ravel() for part in parts])


# ---------------------------------------------------------------- training


@dataclass(frozen=True)
class State:
    """All that a resumed run needs; ``epoch`` is the last one that is complete."""

    epoch: int
    weights: np.ndarray
    momentum: np.ndarray

    def flat(self) -> np.ndarray:
        """The state as one vector, as the ranks exchange it."""
        return np.concatenate([[self.epoch], self.weights, self.momentum])

    @classmethod
    def of(cls, flat: np.ndarray) -> State:
        """The state in a vector made by ``flat``."""
        weights, momentum = np.split(flat[1:], 2)
        return cls(int(flat[0]), weights, momentum)


def untrained() -> State:
    """The state before any epoch."""
    weights = first_weights()
    return State(0, weights, np.zeros_like(weights))


def load(checkpoint: Path) -> State:
    """The state to go on from."""
    if not checkpoint.exists():
        return untrained()
    try:
        with np.load(checkpoint) as saved:
            return State(int(saved["epoch"]), saved["weights"], saved["momentum"])
    except (ValueError, KeyError, EOFError, BadZipFile) as error:
        raise SystemExit(f"{checkpoint} is no checkpoint of this program: {error}") from error


def save(checkpoint: Path, state: State) -> None:
    """Write the checkpoint, unless a later one is there.

    A node that was cut off from the network may still reach the storage, and
    its rank 0 may write after the attempt that took over.
    """
    if load(checkpoint).epoch < state.epoch:
        atomic.replace(
            checkpoint,
            lambda file: np.savez(
                file, epoch=state.epoch, weights=state.weights, momentum=state.momentum
            ),
        )


def train_epoch(
    ranks: Ranks, state: State, images: np.ndarray, labels: np.ndarray, seconds: float
) -> tuple[State, float]:
    """One pass over the images in ``seconds`` or more; the new state and the mean loss.

    The order of the images depends on the epoch alone, so that a resumed run
    sees them as the first would have.
    """
    begin, total = time.monotonic(), 0.0
    weights, momentum = state.weights, state.momentum
    order = np.random.default_rng(state.epoch).permutation(digits.TRAINING_IMAGES)
    batches = order.reshape(-1, BATCH)
    for number, batch in enumerate(batches, start=1):
        mine = batch[ranks.rank :: ranks.size]
        loss, gradient = loss_and_gradient(weights, images[mine], labels[mine])
        summed = ranks.sum(np.append(gradient, loss)) / BATCH
        momentum = MOMENTUM * momentum - LEARNING_RATE * summed[:-1]
        weights = weights + momentum
        total += float(summed[-1])
        time.sleep(max(0.0, begin + seconds * number / len(batches) - time.monotonic()))
    return State(state.epoch + 1, weights, momentum), total / len(batches)


def run(ranks: Ranks, checkpoint: Path, epochs: int, epoch_seconds: float) -> None:
    """Train until ``epochs`` are complete, from the checkpoint on if there is one."""
    images, labels = digits.load()
    # Rank 0 reads for all: other nodes may see an older file for a while.
    first = load(checkpoint) if ranks.rank == 0 else untrained()
    state = State.of(ranks.share(first.flat()))
    nodes, attempt = os.environ.get("NNODES", "1"), os.environ.get("HPRESUME_ATTEMPT", "1")
    if ranks.rank == 0 and state.epoch:
        print(f"resumed after epoch={state.epoch} from {checkpoint}", flush=True)
    while state.epoch < epochs:
        state, loss = train_epoch(ranks, state, images, labels, epoch_seconds)
        if ranks.rank == 0:
            save(checkpoint, state)
            print(
                f"epoch={state.epoch} loss={loss:.4f} nodes={nodes} attempt={attempt}", flush=True
            )
    if ranks.rank == 0:
        unseen = slice(digits.TRAINING_IMAGES, None)
        right = scores(state.weights, images[unseen])[1].argmax(axis=1) == labels[unseen]
        print(
            f"done epochs={state.epoch} accuracy={right.mean():.3f} attempt={attempt}", flush=True
        )


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--epoch-seconds", type=float, default=0.0, help="shortest time an epoch takes"
    )
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.npz"))
    parser.add_argument("--peer-timeout", type=float, default=60.0, help="longest wait for a rank")
    options = parser.parse_args()
    rank = int(os.environ.get("SLURM_PROCID", "0"))
    try:
        ranks = Ranks(
            rank,
            size=int(os.environ.get("SLURM_NTASKS", "1")),
            address=os.environ.get("MASTER_ADDR", "127.0.0.1"),
            port=int(os.environ.get("MASTER_PORT", "29500")),
            timeout=options.peer_timeout,
        )
        run(ranks, options.checkpoint, options.epochs, options.epoch_seconds)
    except OSError as error:
        raise SystemExit(f"rank {rank}: {error}") from error


if __name__ == "__main__":
    main()
