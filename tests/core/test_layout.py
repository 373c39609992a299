"""Layout: the order of a vector, where the head is, and what travels as a buffer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cosdefense import Layout


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))


def test_weights_first_then_buffers_and_no_counters() -> None:
    layout = Layout.of(network())
    assert [name for name, _ in layout.shapes] == [
        "0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "1.running_mean", "1.running_var",
    ]  # fmt: skip
    assert layout.n_trainable == 36 + 4 + 4 + 4 + 48 + 3
    assert layout.size == layout.n_trainable + 8
    assert layout.head == "3.weight"
    assert layout.variances == (slice(layout.size - 4, layout.size),)


def test_module_and_state_dict_agree() -> None:
    model = network()
    assert Layout.of(model) == Layout.of(model.state_dict())


def test_round_trip() -> None:
    model = network()
    layout, tensors = Layout.of(model), model.state_dict()
    vector = layout.flatten(tensors)
    for name, tensor in layout.unflatten(vector).items():
        assert torch.equal(tensor, tensors[name])


def test_unflatten_gives_views_and_keeps_leading_dimensions() -> None:
    layout = Layout.of(network())
    rows = torch.zeros(5, layout.size)
    views = layout.unflatten(rows)
    assert views["3.weight"].shape == (5, 3, 16)
    views["3.weight"][2] = 1
    assert float(rows.sum()) == 48


def test_head_by_name() -> None:
    assert Layout.of(network(), head="0.weight").head == "0.weight"
    with pytest.raises(ValueError, match=r"head must be one of .*'3.weight'.*, got 'fc.weight'"):
        Layout.of(network(), head="fc.weight")


def test_frozen_parameters_travel_but_do_not_vote() -> None:
    model = network()
    model.get_parameter("0.weight").requires_grad_(False)
    layout = Layout.of(model)
    assert layout.n_trainable == 4 + 4 + 4 + 48 + 3
    assert "0.weight" not in layout.trainable
    assert layout.slices["0.weight"].start == layout.n_trainable


def test_head_of_a_model_without_matrices() -> None:
    assert Layout.of({"scale": torch.zeros(3), "shift": torch.zeros(3)}).head == "shift"


def test_flower_arrays() -> None:
    common = pytest.importorskip("flwr.common", reason="flwr is not installed")
    model = network()
    record = common.ArrayRecord(model.state_dict())
    layout = Layout.of(record)
    assert layout == Layout.of(model)
    assert torch.equal(layout.flatten(record), layout.flatten(model.state_dict()))


def test_single_numbers() -> None:
    layout = Layout.of({"w": torch.zeros(2), "temperature": torch.tensor(0.0)})
    vector = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(layout.unflatten(vector)["temperature"], torch.tensor(3.0))
    assert layout.unflatten(torch.stack([vector, -vector]))["temperature"].tolist() == [3.0, -3.0]
    assert torch.equal(layout.flatten(layout.unflatten(vector)), vector)


def test_numpy_arrays() -> None:
    arrays: dict[str, np.ndarray] = {"w": np.ones((2, 3), np.float32), "count": np.zeros(1, np.int64)}
    layout = Layout.of(arrays)
    assert layout.shapes == (("w", (2, 3)),)
    vector = layout.flatten(arrays)
    vector[0] = 5
    assert arrays["w"][0, 0] == 1  # ours, not a window into theirs


def test_mistakes_are_named() -> None:
    layout = Layout.of({"w": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match=r"tensor 'w' is missing, got \['v'\]"):
        layout.flatten({"v": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match=r"tensor 'w' needs shape \(2, 3\), got \(3, 2\)"):
        layout.flatten({"w": torch.zeros(3, 2)})
    with pytest.raises(ValueError, match="at least one trainable"):
        Layout.of({"count": torch.zeros(1, dtype=torch.int64)})
