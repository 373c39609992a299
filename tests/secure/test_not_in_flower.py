"""A Flower server that sees every update must not look as if it did not."""

from __future__ import annotations

import pytest

from cosdefense import get
from cosdefense.secure import Secure

pytest.importorskip("flwr", reason="flwr is not installed")


def test_a_server_that_sees_updates_refuses_it() -> None:
    from flwr.serverapp.strategy import FedAvg

    from cosdefense.flower import Defended

    for defense in (Secure(get("cosdefense")), Secure(get("cosdefense")).plain):
        with pytest.raises(ValueError, match="sees every update, and Secure must not"):
            Defended(FedAvg(), defense)
