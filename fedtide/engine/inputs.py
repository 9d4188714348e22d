"""What a run reads on the machine that it was started on, so that it can run on others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedtide.tasks import FederatedData
from traces import Trace


class Inputs(NamedTuple):
    """Data, trace, and the hashes of files of the user's own; see `fedtide.engine.sources.own_sources`."""

    data: FederatedData
    trace: Trace
    sources: Mapping[str, str]
