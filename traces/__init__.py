"""Traces: which clients participate in which round, and how much of their work they complete."""

from collections.abc import Callable

from traces.base import RoundAvailability, SeededTrace, Trace, finished_steps
from traces.compose import Combined
from traces.membership import Membership, parse_rounds, written_rounds
from traces.patterns.additions import Late, Lost, MinSeparation
from traces.patterns.completions import Pools, Stragglers
from traces.patterns.markov import Markov
from traces.patterns.mimic import Levels, RoundRobin, TimeVarying
from traces.patterns.sessions import ComeAndGo
from traces.patterns.sleep import Sleep
from traces.patterns.speeds import Speeds
from traces.patterns.turns import Diurnal, Periodic
from traces.rates import Always, Bernoulli, Labels, Rates, Sine
from traces.recorded.device_log import Recorded
from traces.recorded.device_run import DeviceRun
from traces.recorded.failure_archive import FailureArchive
from traces.recorded.fedscale import Phones
from traces.recorded.flash import Flash
from traces.recorded.flhetbench import FLHetBench
from traces.recorded.round_table import RoundTable

# Name -> factory. A factory takes (num_clients, seed); its keyword-only parameters are the user's options,
# except `label_shares`: the share of each label in each client's data, shape (N, L); and `client_names`: the
# data's names of the clients, N or none.
TRACES: dict[str, Callable[..., Trace]] = {
    "always": Always,
    "bernoulli": Bernoulli,
    "levels": Levels,
    "round-robin": RoundRobin,
    "time-varying": TimeVarying,
    "diurnal": Diurnal,
    "sleep": Sleep,
    "markov": Markov,
    "sine": Sine,
    "rates": Rates,
    "labels": Labels,
    "periodic": Periodic,
    "pools": Pools,
    "stragglers": Stragglers,
    "lost": Lost,
    "late": Late,
    "min-separation": MinSeparation,
    "phones": Phones,
    "recorded": Recorded,
    "flash": Flash,
    "flhetbench": FLHetBench,
    "fta": FailureArchive,
    "sessions": ComeAndGo,
    "speeds": Speeds,
    "table": RoundTable,
    "run": DeviceRun,
}

__all__ = [
    "TRACES",
    "Always",
    "Bernoulli",
    "Combined",
    "Membership",
    "Pools",
    "RoundAvailability",
    "SeededTrace",
    "Trace",
    "finished_steps",
    "parse_rounds",
    "written_rounds",
]
