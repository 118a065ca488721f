#!/usr/bin/env python3
"""DistributedDataParallel on scikit-learn's digits, started by torchrun.

gloo between CPUs, nccl between GPUs. Rank 0 writes a checkpoint after each epoch;
a run that finds one goes on after its epoch.
"""

from __future__ import annotations

import os
import socket

if __name__ == "__main__":
    # Before the imports that take their time: this line says that the rank is there.
    print(
        f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} up on {socket.gethostname()}"
        f" attempt {os.environ.get('HPRESUME_ATTEMPT', '1')}",
        flush=True,
    )

import argparse
import time
from datetime import timedelta
from pathlib import Path

import atomic
import digits
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 128


def load(checkpoint: Path) -> dict:
    """The saved state, or one before any epoch."""
    if not checkpoint.exists():
        return {"epoch": 0}
    return torch.load(checkpoint, map_location="cpu", weights_only=True)


def save(checkpoint: Path, state: dict) -> None:
    """Write the checkpoint, unless a later one is there.

    A node that was cut off from the network may still reach the storage, and
    its rank 0 may write after the attempt that took over.
    """
    if load(checkpoint)["epoch"] < state["epoch"]:
        atomic.replace(checkpoint, lambda file: torch.save(state, file))


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train until all epochs are complete, from the checkpoint on if there is one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(part) for part in digits.load())
    images, labels = images.float().to(device), labels.to(device)
    network = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).to(device)
    # Rank 0 reads for all: other nodes may see an older file for a while.
    received = [load(options.checkpoint) if rank == 0 else None]
    dist.broadcast_object_list(received, device=device)
    saved = received[0]
    if saved["epoch"]:
        network.load_state_dict(saved["network"])
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if saved["epoch"]:
        optimizer.load_state_dict(saved["optimizer"])
        if rank == 0:
            print(f"resumed after epoch={saved['epoch']} from {options.checkpoint}", flush=True)
    nodes, attempt = os.environ.get("NNODES", "1"), os.environ.get("HPRESUME_ATTEMPT", "1")
    for epoch in range(saved["epoch"] + 1, options.epochs + 1):
        begin, total = time.monotonic(), torch.zeros((), device=device)
        # The order depends on the epoch alone: a resumed run sees what the first would have.
        order = torch.randperm(
            digits.TRAINING_IMAGES, generator=torch.Generator().manual_seed(epoch)
        )
        for batch in order.split(BATCH):
            mine = batch[rank::size].to(device)
            loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(mine) / digits.TRAINING_IMAGES
        dist.all_reduce(total)
        time.sleep(max(0.0, begin + options.epoch_seconds - time.monotonic()))
        if rank == 0:
            state = {
                "epoch": epoch,
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            save(options.checkpoint, state)
            print(f"epoch={epoch} loss={total:.4f} nodes={nodes} attempt={attempt}", flush=True)
    if rank == 0:
        unseen = slice(digits.TRAINING_IMAGES, None)
        right = network(images[unseen]).argmax(dim=1) == labels[unseen]
        print(
            f"done epochs={options.epochs} accuracy={right.float().mean():.3f} attempt={attempt}",
            flush=True,
        )


def main() -> None:
    """Read the command line, join the other ranks and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--epoch-seconds", type=float, default=0.0, help="shortest time an epoch takes"
    )
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.pt"))
    options = parser.parse_args()
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    # Longer than the supervisor needs to see a lost node, shorter than PyTorch's half hour.
    dist.init_process_group(backend, timeout=timedelta(minutes=2))
    try:
        train(options, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
