"""A training loop of your own, with and without a defense: python examples/own_loop.py

Ten clients train on handwritten digits and send their state_dicts. From round 10 on, three of them send the reversed
update, five times as long. The loop uses nothing of cosdefense but `defense.apply`.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cosdefense import Defense, presets
from cosdefense.data import load

State = dict[str, Tensor]
ROUNDS, N_CLIENTS, MALICIOUS, ATTACK_START = 30, 10, (0, 1, 2), 10

digits = load("digits")
images, labels = digits.train_inputs.float() / 255, digits.train_targets
test_images, test_labels = digits.test_inputs.float() / 255, digits.test_targets
shares = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).chunk(N_CLIENTS)


def train(model: nn.Module, share: Tensor) -> State:
    """What an honest client does: three steps on its own samples."""
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(local(images[share]), labels[share]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return local.state_dict()


def reverse(start: State, trained: State) -> State:
    """What a malicious client does."""
    return {name: start[name] - 5 * (trained[name] - start[name]) for name in start}


def run(defense: Defense) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    memory = None
    for number in range(ROUNDS):
        start = model.state_dict()
        received = [train(model, share) for share in shares]
        if number >= ATTACK_START:
            for client in MALICIOUS:
                received[client] = reverse(start, received[client])
        new_state, verdict, memory = defense.apply(start, received, memory, seed=number)
        model.load_state_dict(new_state)
        if (number + 1) % 10 == 0:
            accuracy = float((model(test_images).argmax(dim=1) == test_labels).float().mean())
            rejected = (verdict.weights == 0).nonzero().flatten().tolist()
            print(f"  round {number + 1}: accuracy {accuracy:.2f}, rejected {rejected}")


print("the mean of all models:")
run(presets.fedavg())
print("Factions:")
run(presets.factions())
