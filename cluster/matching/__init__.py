"""The matching engine: which subscriptions does a publication match?"""

from cluster.matching.answers import answer
from cluster.matching.batch import DEFAULT_BATCH_LIMITS, Batch, BatchLimits
from cluster.matching.hits import Hits
from cluster.matching.index import Index, warm
from cluster.matching.memory import Room
from cluster.matching.scan import Scan

__all__ = ["DEFAULT_BATCH_LIMITS", "Batch", "BatchLimits", "Hits", "Index", "Room", "Scan", "answer", "warm"]
