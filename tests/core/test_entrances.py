"""`Defense.apply` on state_dicts and `Defense.aggregate` on bare updates: what a training loop of one's own calls."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cosdefense import Cohort, Defense, Filter, Layout, MissingTrustedData, TooFewClients, TrustedData, get, presets
from cosdefense.aggregators import Mean, Median
from cosdefense.core import UnknownLayer
from cosdefense.filters import CosDefense, FoolsGold, PCAClusters
from shapes import unchecked

N = 5
HALF = (torch.bfloat16, torch.float16)


def network() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(1, 4, 3), norm=nn.BatchNorm2d(4), relu=nn.ReLU(), flat=nn.Flatten(), fc=nn.Linear(4 * 36, 3)
        )
    )


def train(model: nn.Module, seed: int) -> nn.Module:
    """A client: a few steps on random images."""
    model = copy.deepcopy(model).train()
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        images, labels = torch.randn(8, 1, 8, 8, generator=rng), torch.randint(0, 3, (8,), generator=rng)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def server() -> nn.Module:
    torch.manual_seed(0)
    return train(network(), 99)  # so that BatchNorm's statistics are not all the same


@pytest.fixture(scope="module")
def trained(server: nn.Module) -> list[nn.Module]:
    return [train(server, seed) for seed in range(N)]


def state_dicts(models: list[nn.Module]) -> list[dict[str, Tensor]]:
    return [dict(model.state_dict()) for model in models]


@pytest.mark.parametrize(
    ("defense", "combine"),
    [
        (Defense((), Mean(), buffers="aggregator"), lambda rows: rows.mean(dim=0)),
        (Defense((), Median()), lambda rows: rows.median(dim=0).values),
    ],
    ids=["mean", "median"],
)
def test_apply_combines_every_tensor(
    defense: Defense, combine: Callable[[Tensor], Tensor], server: nn.Module, trained: list[nn.Module]
) -> None:
    """Five clients: the median is one of their numbers."""
    start, clients = server.state_dict(), state_dicts(trained)
    result, verdict, _ = defense.apply(start, clients)
    assert list(result) == list(start)
    assert verdict.skipped is None
    for key, tensor in result.items():
        assert tensor.dtype == start[key].dtype
        if key == "norm.num_batches_tracked":
            assert torch.equal(tensor, start[key])
            assert not torch.equal(tensor, clients[0][key])
        else:
            expected = combine(torch.stack([client[key].double() for client in clients]))
            assert torch.allclose(tensor.double(), expected, atol=1e-6), key
    network().load_state_dict(result)


def test_apply_changes_nothing_that_it_is_given(server: nn.Module, trained: list[nn.Module]) -> None:
    start, clients = server.state_dict(), state_dicts(trained)
    before = copy.deepcopy((dict(start), clients))
    result, _, _ = presets.factions().apply(start, clients)
    for name in start:
        assert torch.equal(start[name], before[0][name])
        result[name].zero_()  # shares no memory
        assert torch.equal(start[name], before[0][name])
        assert all(torch.equal(now[name], then[name]) for now, then in zip(clients, before[1], strict=True))


def test_apply_is_what_a_cohort_gives(server: nn.Module, trained: list[nn.Module]) -> None:
    """Every step of it by hand, for a rule that looks at the head."""
    layout, defense = Layout.of(server), presets.cosdefense()
    params = layout.flatten(server.state_dict())
    rows = torch.stack([layout.flatten(client.state_dict()) - params for client in trained])
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    expected, _ = defense(Cohort.of(rows, params, layout, weights=weights), defense.init())
    result, verdict, _ = defense.apply(server.state_dict(), state_dicts(trained), weights=weights.tolist())
    assert torch.equal(verdict.weights, expected.weights)
    assert torch.equal(layout.flatten(result), params + expected.update)
    assert 0 < int((verdict.weights == 0).sum()) < N
    other, _, _ = defense.apply(server, trained, weights=weights, head="conv.weight")
    assert not torch.equal(layout.flatten(other), layout.flatten(result))


def test_apply_keeps_the_memory_of_clients_by_identity(server: nn.Module, trained: list[nn.Module]) -> None:
    defense, clients = presets.foolsgold(), state_dicts(trained)
    start = server.state_dict()
    _, first, memory = defense.apply(start, clients, clients=[7, 3, 9, 1, 5])
    assert memory[0].clients.tolist() == [1, 3, 5, 7, 9]
    _, again, _ = defense.apply(start, clients[::-1], memory, clients=torch.tensor([5, 1, 9, 3, 7]))
    _, straight, _ = defense.apply(start, clients, memory, clients=[7, 3, 9, 1, 5])
    assert torch.allclose(again.weights.flip(0), straight.weights, atol=1e-6)
    with pytest.raises(ValueError, match=r"clients must be distinct whole numbers, got \[1, 1, 2, 3, 4\]"):
        defense.apply(start, clients, memory, clients=[1, 1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"clients need shape \(5,\), got \(2,\)"):
        defense.apply(start, clients, memory, clients=[1, 2])
    assert first.evidence.keys() == {"FoolsGold"}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["fedavg", "median", "cosdefense", "factions", "krum", "trimmed-mean", "foolsgold"])
def test_half_precision_is_computed_in_float32(
    name: str, dtype: torch.dtype, server: nn.Module, trained: list[nn.Module]
) -> None:
    narrow = [{key: t.to(dtype) if t.is_floating_point() else t for key, t in m.state_dict().items()} for m in trained]
    start = {key: t.to(dtype) if t.is_floating_point() else t for key, t in server.state_dict().items()}
    result, verdict, _ = get(name).apply(start, narrow)
    wide = [{key: t.float() if t.is_floating_point() else t for key, t in client.items()} for client in narrow]
    expected, same, _ = get(name).apply({k: t.float() if t.is_floating_point() else t for k, t in start.items()}, wide)
    assert torch.equal(verdict.weights, same.weights)
    for key, tensor in result.items():
        assert tensor.dtype == start[key].dtype
        assert torch.equal(tensor, expected[key].to(tensor.dtype))


def test_precisions_may_be_mixed(server: nn.Module, trained: list[nn.Module]) -> None:
    kinds = {"conv.weight": torch.bfloat16, "fc.weight": torch.float16, "fc.bias": torch.float64}

    def mix(model: nn.Module) -> dict[str, Tensor]:
        return {key: tensor.to(kinds.get(key, tensor.dtype)) for key, tensor in model.state_dict().items()}

    result, verdict, _ = get("fedavg").apply(mix(server), [mix(client) for client in trained])
    assert {key: tensor.dtype for key, tensor in result.items() if key in kinds} == kinds
    assert verdict.update.dtype == torch.float64
    biases = torch.stack([mix(client)["fc.bias"] for client in trained])
    assert torch.allclose(result["fc.bias"], biases.mean(dim=0), atol=1e-15)


def test_numbers_stay_finite_in_half_precision() -> None:
    start = {"w": torch.full((2, 2), 6e4, dtype=torch.float16)}
    result, verdict, _ = get("weak-dp", max_norm=1e4, std=1e5).apply(start, [start, start])
    assert bool(verdict.update.isfinite().all())
    assert bool(result["w"].isfinite().all())
    assert float(result["w"].abs().max()) == torch.finfo(torch.float16).max


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.lm_head = nn.Linear(4, 7, bias=False)
        self.lm_head.weight = self.embed.weight


def test_tied_weights_stay_tied_and_count_once() -> None:
    server, clients = Tied(), [Tied() for _ in range(3)]
    result, verdict, _ = get("fedavg").apply(server.state_dict(), [client.state_dict() for client in clients])
    assert list(result) == ["embed.weight", "lm_head.weight"]
    assert len(verdict.update) == 28
    assert torch.equal(result["embed.weight"], result["lm_head.weight"])
    mean = torch.stack([client.embed.weight for client in clients]).mean(dim=0)
    assert torch.allclose(result["embed.weight"], mean, atol=1e-6)
    # A client that lost the second name on its way here (safetensors leaves it out) is understood.
    once = [{"embed.weight": client.embed.weight.detach()} for client in clients]
    assert torch.equal(get("fedavg").apply(server, once)[0]["lm_head.weight"], result["lm_head.weight"])


def test_frozen_parameters_of_a_module_do_not_count_in_scores(server: nn.Module, trained: list[nn.Module]) -> None:
    """A client that changes what is frozen looks like all others, if the module says what is frozen."""
    frozen = copy.deepcopy(server)
    frozen.get_parameter("conv.weight").requires_grad_(False)
    changed = state_dicts(trained)
    changed[2]["conv.weight"] = changed[2]["conv.weight"] + 100.0
    assert float(get("multi-krum", keep=4).apply(server.state_dict(), changed)[1].weights[2]) == 0
    plain = get("krum").apply(frozen, trained)[1]
    assert torch.equal(get("krum").apply(frozen, changed)[1].evidence["Krum"], plain.evidence["Krum"])


def test_adapters_alone() -> None:
    rng = torch.Generator().manual_seed(0)

    def adapter() -> dict[str, Tensor]:
        shapes = {"q.lora_A.weight": (2, 8), "q.lora_B.weight": (8, 2)}
        return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}

    start, clients = adapter(), [adapter() for _ in range(6)]
    for name in ("fedavg", "median", "krum", "factions", "nnm", "norm-clipping"):
        result, _, _ = get(name).apply(start, clients)
        assert result.keys() == start.keys()
    with pytest.raises(UnknownLayer, match=r"pass head=\.\.\. .*, one of \['q.lora_A.weight', 'q.lora_B.weight'\]"):
        get("cosdefense").apply(start, clients)
    assert get("cosdefense").apply(start, clients, head="q.lora_B.weight")[1].skipped is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here")
def test_results_stay_on_the_device(server: nn.Module, trained: list[nn.Module]) -> None:
    there = [copy.deepcopy(model).cuda() for model in (server, *trained)]
    result, _, _ = presets.factions().apply(there[0], there[1:], clients=[3, 1, 4, 0, 5])
    expected, _, _ = presets.factions().apply(server, trained)
    for name, tensor in result.items():
        assert tensor.is_cuda
        assert torch.allclose(tensor.cpu(), expected[name], atol=1e-5)
    with pytest.raises(ValueError, match="needs device cuda:0, got cpu"):
        get("fedavg").apply(there[0], trained)
    rows = ROWS.cuda()
    assert get("median").aggregate(rows, weights=[1.0] * 7).is_cuda
    assert all(tensor.is_cuda for tensor in get("median").aggregate([[row[:4], row[4:]] for row in rows]))


def with_tensor(state: dict[str, Tensor], **changes: Tensor | None) -> dict[str, Tensor]:
    changed = {**state, **{name.replace("_", "."): tensor for name, tensor in changes.items()}}
    return {name: tensor for name, tensor in changed.items() if tensor is not None}


W, B = torch.zeros(3, 2), torch.zeros(3)
GOOD = {"fc.weight": W, "fc.bias": B}


@pytest.mark.parametrize(
    ("start", "clients", "complaint"),
    [
        (GOOD, [], "at least one state_dict, got an empty list"),
        (GOOD, [GOOD, with_tensor(GOOD, fc_bias=None)], r"client 1 must have .* misses \['fc.bias'\]"),
        (GOOD, [with_tensor(GOOD, more=B)], r"client 0 must have .* has unknown \['more'\]"),
        (GOOD, [with_tensor(GOOD, more=B, fc_bias=None)], r"misses \['fc.bias'\] and has unknown \['more'\]"),
        (GOOD, [with_tensor(GOOD, fc_bias=W)], r"client 0: tensor 'fc.bias' needs shape \(3,\), got \(3, 2\)"),
        (GOOD, [with_tensor(GOOD, fc_bias=B.double())], "needs dtype torch.float32, got torch.float64"),
        (GOOD, [with_tensor(GOOD, fc_bias=B.to("meta"))], "'fc.bias' needs device cpu, got meta"),
        (with_tensor(GOOD, fc_bias=B.to("meta")), [GOOD], r"on one device, got \['cpu', 'meta'\]"),
        ({"n": torch.zeros(1, dtype=torch.int64)}, [], "at least one trainable floating-point tensor"),
    ],
)
def test_wrong_state_dicts_are_named(
    start: dict[str, Tensor], clients: list[dict[str, Tensor]], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        get("fedavg").apply(start, clients)


@pytest.mark.parametrize(
    ("start", "clients", "complaint"),
    [
        ([W, B], [GOOD], "the global model must be a state_dict or an nn.Module, got list"),
        (GOOD, [[W, B]], "client 0 must be a state_dict or an nn.Module, got list"),
        (GOOD, GOOD, "must be a list of state_dicts, one per client, got dict"),
        (GOOD, nn.Linear(2, 3), "must be a list of state_dicts, one per client, got Linear"),
        (GOOD, [{"fc.weight": W.numpy(), "fc.bias": B}], "client 0: 'fc.weight' must be a torch.Tensor, got ndarray"),
        ({"fc.weight": W.to(torch.complex64)}, [GOOD], "'fc.weight' must be real, got torch.complex64"),
    ],
)
def test_wrong_types_are_named(start: Any, clients: Any, complaint: str) -> None:
    with unchecked(), pytest.raises(TypeError, match=complaint):
        get("fedavg").apply(start, clients)


def test_too_few_clients_and_missing_data_are_errors(server: nn.Module, trained: list[nn.Module]) -> None:
    with pytest.raises(TooFewClients, match="Krum needs more than 2 clients"):
        get("krum").apply(server, trained[:1])
    with pytest.raises(MissingTrustedData, match="clean data at the server"):
        get("fltrust").apply(server, trained)

    class First(TrustedData):
        def update(self, params: Tensor, seed: int) -> Tensor:
            return torch.full_like(params, float(seed))

    verdict = get("fltrust").apply(server, trained, seed=3, trusted_data=First())[1]
    assert set(verdict.evidence) == {"FLTrust"}


def test_hooks_are_refused(server: nn.Module, trained: list[nn.Module]) -> None:
    """They run on clients; to leave them out in silence would be another defense."""
    with pytest.raises(
        ValueError, match=r"apply cannot run what clients do .*FLWBC.*use Defense\(filters, aggregator\)"
    ):
        get("fl-wbc").apply(server, trained)
    with pytest.raises(ValueError, match="aggregate cannot run"):
        get("fl-wbc").aggregate(torch.zeros(3, 2))


# ---- bare updates

ROWS = torch.randn(7, 11, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALF])
def test_a_matrix_gives_a_vector(dtype: torch.dtype) -> None:
    rows = ROWS.to(dtype)
    for defense in (get("median"), Defense((), Median())):
        update = defense.aggregate(rows)
        assert update.dtype == dtype
        assert torch.equal(update, rows.sort(dim=0).values[3])
    mean = get("fedavg").aggregate(rows, weights=[1.0, *[0.0] * 5, 3.0])
    assert torch.allclose(mean.double(), (0.25 * rows[0] + 0.75 * rows[6]).double(), atol=2 * torch.finfo(dtype).eps)


def test_lists_of_arrays_give_a_list_of_arrays() -> None:
    clients = [[row[:6].reshape(2, 3).numpy().astype(np.float64), row[6:10].numpy(), np.array(5)] for row in ROWS]
    clients[0][0].flags.writeable = False  # as arrays from a message are
    update = get("fedavg").aggregate(clients)
    assert [(array.shape, array.dtype) for array in update] == [(a.shape, a.dtype) for a in clients[0]]
    for place in (0, 1):
        np.testing.assert_allclose(update[place], np.mean([client[place] for client in clients], axis=0), atol=1e-6)
    assert update[2] == 0  # a counter has no update
    assert all(isinstance(array, np.ndarray) for array in update)


def test_lists_of_tensors_give_a_list_of_tensors() -> None:
    clients = [[row[:4].reshape(2, 2).half(), row[4:]] for row in ROWS]
    update = get("median").aggregate(clients)
    assert [tensor.dtype for tensor in update] == [torch.float16, torch.float32]
    for place in (0, 1):
        assert torch.equal(update[place], torch.stack([client[place] for client in clients]).median(dim=0).values)


def test_one_malicious_client_does_not_move_what_is_robust() -> None:
    rows = ROWS.clone()
    rows[0] = 1e6
    update = presets.factions().aggregate(rows)
    assert float((update - ROWS[1:].mean(dim=0)).norm()) < float(ROWS.norm(dim=1).max())
    rows[1] = torch.nan
    assert bool(get("median").aggregate(rows).isfinite().all())
    assert get("median").aggregate(torch.full((3, 2), torch.nan)).tolist() == [0, 0]


@pytest.mark.parametrize("rule", [CosDefense(), CosDefense("fc.weight"), FoolsGold(head_only=True), PCAClusters()])
def test_rules_that_look_at_a_layer_need_the_model(rule: Filter) -> None:
    with pytest.raises(UnknownLayer, match=r"needs more than updates: use apply\(global_state_dict"):
        Defense((rule,), Mean()).aggregate(ROWS)


def test_rules_that_look_at_clean_data_need_the_model() -> None:
    with pytest.raises(MissingTrustedData, match=r"needs more than updates: use apply\(global_state_dict"):
        get("fltrust").aggregate(ROWS)


A, C = np.zeros((2, 3), np.float32), np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("updates", "error", "complaint"),
    [
        (torch.zeros(7), ValueError, r"shape \(n, d\), at least one row and floats, got \(7,\) of torch.float32"),
        (torch.zeros(0, 7), ValueError, r"at least one row and floats, got \(0, 7\)"),
        (torch.zeros(2, 2, dtype=torch.int64), ValueError, "got .* of torch.int64"),
        (A, TypeError, r"a tensor of shape \(n, d\) or a list of lists, got ndarray"),
        ([], ValueError, "at least one client with one floating-point array"),
        ([[np.array(1)]], ValueError, "at least one client with one floating-point array"),
        ([[A, C], [A]], ValueError, "client 1 must have 2 arrays as client 0 has, got 1"),
        ([[A, C], [A, A]], ValueError, r"client 1, array 1 needs shape \(4,\) as client 0 has, got \(2, 3\)"),
        ([[A], [A.astype(np.float64)]], ValueError, "array 0 needs dtype float32 as client 0 has, got float64"),
        ([[A], [torch.zeros(2, 3)]], ValueError, "client 1, array 0 needs"),
        ([[A, 1.0]], TypeError, "client 0, array 1 must be an ndarray or a tensor, got float"),
        ([torch.zeros(3), torch.zeros(3)], TypeError, r"client 0 must be a list .* got Tensor: stack them"),
        ([{"w": A}], TypeError, "client 0 must be a list of arrays, got dict"),
    ],
)  # fmt: skip
def test_wrong_updates_are_named(updates: Any, error: type[Exception], complaint: str) -> None:
    with unchecked(), pytest.raises(error, match=complaint):
        get("fedavg").aggregate(updates)
