"""The section [data] of an experiment: which samples, and how they are spread over which clients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..catalog.options import ConfigError, check_options, coerce, unknown_name_error
from ..catalog.registry import build, describe_by
from ..core.experiment_folder import reading_from
from ..data import DATASETS, DataError, Dataset, Progress, datasets
from ..data.partition import PARTITIONS, ByClient, Dirichlet, Iid, LabelSkew, Partition

if TYPE_CHECKING:
    from .experiment import Experiment

T = TypeVar("T")

N_CLIENTS, N_SAMPLED = 100, 10  # where an experiment does not say
MAX_ALL = 50  # clients that the data name; so many all take part in every round, unless an experiment says otherwise


@dataclass(frozen=True)
class Data:
    """Which samples, and how they are spread over which clients. `Data.of` chooses what fits a dataset of your own."""

    dataset: str = "digits"
    clients: int = N_CLIENTS  # in a file: as many as the data name, if they name some
    malicious: float = 0.3  # the share of malicious clients
    partition: Partition = LabelSkew()  # in a file: what fits the data
    trusted: int = 0  # training samples the server holds, and no client; some defenses need about a hundred
    shared: int = 0  # of its own samples, how many each client shares with the server, once
    options: tuple[tuple[str, Any], ...] = ()  # of the reader of a dataset of one's own
    digest: str = ""  # of the content of a dataset of one's own
    loaded: Dataset | None = field(default=None, compare=False, repr=False)  # that dataset, if it was read already

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS and not self.digest:
            raise unknown_name_error("dataset", self.dataset, DATASETS)
        if self.clients < 1:
            raise ValueError(f"clients must be at least 1, got {self.clients}")
        if not 0 <= self.malicious < 1:
            raise ValueError(f"malicious must be in [0, 1), got {self.malicious}")
        for name in ("trusted", "shared"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    @classmethod
    def of(
        cls,
        dataset: str | Dataset = "digits",
        *,
        clients: int | None = None,
        malicious: float = 0.3,
        partition: Partition | None = None,
        trusted: int = 0,
        shared: int = 0,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> Data:
        """The section for any dataset: a name of the catalog, a path, "package.module:function", or a `Dataset`.

        `options` are those of its reader. Without `clients` and `partition` the clients are those that the data name;
        where they name none, the samples are spread over 100 clients with a skew of labels that fits their number.
        """
        if isinstance(dataset, str) and dataset in DATASETS:
            name, digest, loaded, n_classes = dataset, "", None, len(DATASETS[dataset].classes)
            if options:
                raise ConfigError(f"dataset {dataset} takes no options, got {', '.join(options)}")
        else:
            loaded = datasets.load(dataset, **options) if isinstance(dataset, str) else dataset
            name, digest, n_classes = dataset if isinstance(dataset, str) else loaded.name, loaded.digest, 0
            if loaded.train_targets.ndim == 1:
                n_classes = loaded.n_classes
        known = len(loaded.clients) if loaded is not None else 0
        clients = clients or (known if known and partition in (None, ByClient()) else N_CLIENTS)
        partition = partition or _choose_partition(known, clients, n_classes)
        plain = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in options.items())
        return cls(name, clients, malicious, partition, trusted, shared, plain, digest, loaded)

    def default_sampled(self) -> int:
        """How many clients take part in a round where an experiment does not say."""
        names_clients = isinstance(self.partition, ByClient) and self.clients <= MAX_ALL
        return self.clients if names_clients else min(N_SAMPLED, self.clients)

    def to_table(self) -> dict[str, Any]:
        """The section again, every option written out."""
        own = {"name": self.dataset, **dict(self.options), "digest": self.digest}
        return {
            "dataset": own if self.digest else self.dataset,
            "clients": self.clients,
            "malicious": self.malicious,
            "partition": describe_by(PARTITIONS, self.partition),
            "trusted": self.trusted,
            "shared": self.shared,
        }


def _choose_partition(n_known: int, n_clients: int, n_classes: int) -> Partition:
    if n_known and n_clients <= n_known:
        return ByClient()
    if not n_classes:
        return Iid()
    return LabelSkew() if n_clients >= n_classes else Dirichlet()


def _section(
    clients: int = N_CLIENTS,
    malicious: float = 0.3,
    partition: Mapping[str, Any] | None = None,
    trusted: int = 0,
    shared: int = 0,
    dataset: str | Mapping[str, Any] = "digits",
) -> None:
    """The keys of the section; only the signature is used."""


def read_data(table: Mapping[str, Any]) -> Data:
    """The section from a table. A dataset of one's own is read, because its content is part of the experiment."""
    given = check_options(_section, table, "data")
    if "partition" in table:
        given["partition"] = build(PARTITIONS, table["partition"], Partition, "data.partition")  # type: ignore[type-abstract]
    source = given.pop("dataset", "digits")
    options = {} if isinstance(source, str) else dict(source)
    name = source if isinstance(source, str) else coerce(options.pop("name", None), str, "data.dataset.name")
    digest = options.pop("digest", None)
    try:
        data = Data.of(name, **given, options=options)
    except DataError as error:
        raise ConfigError(f"data.dataset: {error}") from error
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"data: {error}") from error
    _check_digest(data.digest, digest, name)
    return data


def _check_digest(found: str, needed: str | None, name: str) -> None:
    if needed and found != needed:
        raise ConfigError(
            f"data.dataset {name}: needed content with the digest {needed}, found {found}: it was changed"
        )


def load_dataset(experiment: Experiment, data_dir: Path | None = None, progress: Progress | None = None) -> Dataset:
    """The dataset of an experiment, which may be read already."""
    data = experiment.data
    if data.loaded is not None:
        return data.loaded
    with reading_from(experiment.source):
        dataset = datasets.load(data.dataset, data_dir, progress, **dict(data.options))
    _check_digest(dataset.digest if data.digest else "", data.digest, data.dataset)
    return dataset


def identify_dataset(experiment: Experiment) -> Hashable:
    """The same for experiments that share a dataset."""
    data = experiment.data
    return data.dataset, data.options, data.digest, experiment.source if data.digest else None


class DatasetLoader(Generic[T]):
    """Loads the dataset of an experiment, each once."""

    def __init__(self, load: Callable[[Experiment], T]) -> None:
        self._load, self._loaded = load, dict[Hashable, T]()

    def __call__(self, experiment: Experiment) -> T:
        key = identify_dataset(experiment)
        if key not in self._loaded:
            self._loaded[key] = self._load(experiment)
        return self._loaded[key]
