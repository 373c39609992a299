"""Simulate a federation with a model and data of your own: python examples/simulation.py

Ten percent of the clients send the reversed mean of the honest updates. The Factions defense rejects them.
The handwritten digits that are installed with cosdefense stand for your data.
"""

from __future__ import annotations

import torch
from torch import nn

from cosdefense import LocalSGD, Task, World, presets, simulate
from cosdefense.attacks import InnerProduct
from cosdefense.data import load

# Your data: images in [0, 1] and their labels, on the device where training happens.
digits = load("digits")
train_images, train_labels = digits.train_inputs.float() / 255, digits.train_targets
test_images, test_labels = digits.test_inputs.float() / 255, digits.test_targets

# Your model: any module that maps images to logits.
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

# The federation: 30 clients, a tenth of them malicious.
task = Task.of(model)
world = World.of(task, train_images, train_labels, n_clients=30, malicious=0.1, trainer=LocalSGD(lr=0.5))

# The simulation: ten clients take part in each round.
for round_ in simulate(world, InnerProduct(), presets.factions(), rounds=100, sampled=10, batch=32, seed=0):
    if (round_.number + 1) % 10 == 0:
        answers = task.logits(round_.after.params, test_images).argmax(dim=1)
        accuracy = float((answers == test_labels).float().mean())
        rejected = round_.clients[round_.verdict.weights == 0].tolist()
        malicious = round_.clients[round_.malicious].tolist()
        print(f"round {round_.number + 1}: accuracy {accuracy:.2f}, rejected {rejected}, malicious {malicious}")
