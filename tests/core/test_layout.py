"""Layout: the order of a vector, where the head is, and what travels as a buffer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cosdefense import Layout
from cosdefense.core import UnknownLayer
from shapes import unchecked


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


def linear(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out, bias=False)


HEADS = {
    "a ResNet": ({"conv1": nn.Conv2d(3, 8, 3), "bn1": nn.BatchNorm2d(8), "fc": nn.Linear(8, 5)}, "fc.weight"),
    "a VGG": ({"features": nn.Conv2d(3, 8, 3), "classifier": nn.Sequential(linear(8, 6), linear(6, 5))},
              "classifier.1.weight"),
    "a ViT": ({"encoder": nn.TransformerEncoderLayer(8, 2, 16), "heads": nn.ModuleDict({"head": linear(8, 5)})},
              "heads.head.weight"),
    "a BERT": ({"embeddings": nn.Embedding(50, 8), "encoder": nn.TransformerEncoderLayer(8, 2, 16),
                "pooler": linear(8, 8), "classifier": linear(8, 2)}, "classifier.weight"),
    "names that say nothing": ({"a": nn.Conv2d(3, 8, 3), "b": linear(8, 8), "c": linear(8, 5)}, "c.weight"),
    "as many classes as features": ({"a": linear(5, 8), "b": linear(8, 5)}, "b.weight"),
    "an LSTM": ({"rnn": nn.LSTM(4, 8), "out": linear(8, 5)}, "out.weight"),
    "a classifier beside adapters": ({"lora_A": linear(8, 2), "lora_B": linear(2, 8), "classifier": linear(8, 5)},
                                     "classifier.weight"),
    "a classifier before adapters": ({"classifier": linear(8, 5), "lora_A": linear(8, 2), "lora_B": linear(2, 8)},
                                     "classifier.weight"),
    # Which one it is cannot be known: rules that need it ask.
    "a classifier registered first": ({"classifier": linear(8, 5), "body": linear(20, 8)}, None),
    "a VGG's classifier registered first": ({"classifier": linear(8, 5), "features": nn.Conv2d(3, 8, 3)}, None),
    "a nameless classifier registered first": ({"a": linear(8, 5), "b": linear(20, 8)}, None),
    "a misleading name": ({"classifier": linear(8, 5), "fc": linear(20, 8)}, None),
    "a transformer's classifier registered first": ({"a": linear(8, 5), "b": nn.TransformerEncoderLayer(8, 2, 16)},
                                                    None),
    "adapters only": ({"q.lora_A": linear(8, 2), "q.lora_B": linear(2, 8)}, None),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "head"), HEADS.values(), ids=HEADS)
def test_the_head_is_right_or_asked_for(parts: dict[str, nn.Module], head: str | None) -> None:
    model = nn.Module()
    for name, part in parts.items():
        model.register_module(name.replace(".", "_"), part)
    layout = Layout.of(model)
    assert layout.head == head
    assert Layout.of(model.state_dict()).head == head
    if head is None:
        with pytest.raises(UnknownLayer, match=r"classifier's weight matrix.*pass head=\.\.\. .*, one of \["):
            Layout.of(model).require_head()
        for name, shape in layout.shapes:
            assert len(shape) < 2 or Layout.of(model, head=name).require_head() == name


def test_a_model_without_matrices_has_no_head() -> None:
    layout = Layout.of({"scale": torch.zeros(3), "shift": torch.zeros(3)})
    assert layout.head is None
    with pytest.raises(UnknownLayer, match=r"one of \['scale', 'shift'\]"):
        layout.require_head()


class Tied(nn.Module):
    """A language model in small: the embedding is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 7, bias=False)
        self.lm_head.weight = self.embed.weight


def test_tied_weights_are_in_the_vector_once() -> None:
    model = Tied()
    layout = Layout.of(model)
    assert layout.size == 7 * 4 + 4 * 4 + 4
    assert layout == Layout.of(model.state_dict())
    assert layout.head == "embed.weight"  # the matrix that is also called lm_head.weight
    assert Layout.of(model, head="lm_head.weight") == layout
    assert torch.equal(layout.flatten(model.state_dict())[:28], model.lm_head.weight.flatten())


def test_views_of_one_storage_are_not_tied() -> None:
    whole = torch.arange(8.0).reshape(2, 4)
    layout = Layout.of({"all": whole, "first": whole[0], "second": whole[1], "turned": whole.T})
    assert layout.size == 8 + 4 + 4 + 8


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
    with unchecked(), pytest.raises(TypeError, match=r"an nn.Module or a dict of named tensors, got list"):
        Layout.of([torch.zeros(3)])  # type: ignore[arg-type]


def test_a_layout_of_some_tensors() -> None:
    layout = Layout((("a", (2, 3)), ("b", (4,)), ("c", (5, 4)), ("norm.running_var", (4,))), "c", 30)
    short = layout.only({"norm.running_var", "c"})
    assert short == Layout((("c", (5, 4)), ("norm.running_var", (4,))), "c", 20)
    assert layout.only({"a"}) == Layout((("a", (2, 3)),), None, 6)
    assert short.find_layer() == short.find_layer("c") == "c"
    with pytest.raises(UnknownLayer, match="must be one of"):
        short.find_layer("norm.running_var")
