"""What the settings accept, by flag."""

from typing import Any

from clients.gradients.oracles import COHORTS
from fedtide.loggers.registry import LOGGERS
from fedtide.plan import METHODS
from fedtide.tasks import MODELS, PARTITIONS, SIZES, TASKS
from strategies import SCHEDULES
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS
from traces import TRACES

KNOWN: dict[str, Any] = {
    "--strategy": METHODS,
    "--task": TASKS,
    "--model": MODELS,
    "--partition": PARTITIONS,
    "--sizes": SIZES,
    "--trace": TRACES,
    "--lr-schedule": SCHEDULES,
    "--server-opt": SERVER_OPTIMIZERS,
    "--cohort": COHORTS,
    "--log": LOGGERS,
    "--engine": ["ray", "inline"],
    "--evaluate-on": ["test", "present", "objective", "everybody"],
}
