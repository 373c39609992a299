"""Replies whose updates a filter has changed: what the strategy reads, and what is held for it."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
import pytest
from federations import model, reply, send_round, trained
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from malformed import honest_body

from cosdefense.filters import Clip
from cosdefense.flower import Defended
from cosdefense.flower.rewritten_array import RewrittenArray

WEIGHTS = ("body.weight", "head.weight", "head.bias")


class Reader(FedAvg):
    """Keeps the records that it gets, and computes in place."""

    records: list[ArrayRecord]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        messages = list(replies)
        self.records = [message.content.array_records["arrays"] for message in messages]
        for record in self.records:
            for array in record.values():
                array.numpy()[...] = np.nan  # what it is given is its own
        return super().aggregate_train(server_round, messages)


def test_a_strategy_reads_the_clipped_update_and_no_copy_of_it_is_held() -> None:
    start, strategy, limit = model(), Reader(), 1e-3
    defended = Defended(strategy, Clip(limit), seed=1)
    messages = send_round(defended, start)
    replies = [reply(m, honest_body(trained(start, m.metadata.dst_node_id))) for m in messages]
    arrays, _ = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert len(strategy.records) == len(messages)
    for record in strategy.records:
        update = np.concatenate([(record[name].numpy() - start[name]).ravel() for name in WEIGHTS])
        assert np.linalg.norm(update) == pytest.approx(limit, rel=1e-3)
        for name in WEIGHTS:
            array = record[name]
            assert isinstance(array, RewrittenArray)
            assert "data" not in vars(array)
            read = np.load(io.BytesIO(array.data))
            assert read.dtype == start[name].dtype
            assert np.array_equal(read, array.numpy())
            assert (array.dtype, array.shape) == (str(read.dtype), read.shape)
