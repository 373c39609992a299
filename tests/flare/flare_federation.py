"""A federation in FLARE's simulator: python flare_federation.py WORKSPACE"""

from __future__ import annotations

import sys

from flare_steps import Step
from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

from cosdefense.nvflare import DefendedAggregator, UpdateFilter

N_CLIENTS, N_ROUNDS, MALICIOUS = 4, 2, ["site-2"]

if __name__ == "__main__":
    job = FedJob("steps", min_clients=N_CLIENTS)
    job.to(NPModelPersistor(model=[[0.0] * 4] * 3), SERVER_SITE_NAME, id="persistor")
    aggregator = DefendedAggregator("factions", {"max_mean_ratio": 1.5})
    job.to(FedAvg(num_clients=N_CLIENTS, num_rounds=N_ROUNDS, aggregator=aggregator), SERVER_SITE_NAME)
    job.to(
        UpdateFilter("clip", {"max_norm": 12.0}), SERVER_SITE_NAME, filter_type=FilterType.TASK_RESULT, tasks=["train"]
    )
    job.to_clients(Step(MALICIOUS), tasks=["train"])
    job.simulator_run(sys.argv[1], n_clients=N_CLIENTS, threads=N_CLIENTS)
