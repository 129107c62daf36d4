"""Which remedy pays on this very traffic: each is replayed, ranked, and named with its price."""

from kvhouse.replayer.remedies.figures import Figures
from kvhouse.replayer.remedies.fitting import Fitting, FittingRow, fitting, unfit
from kvhouse.replayer.remedies.limit import Limit
from kvhouse.replayer.remedies.ranking import remedies
from kvhouse.replayer.remedies.report import Report, Row
from kvhouse.replayer.remedies.tries import Tries

__all__ = [
    "Figures",
    "Fitting",
    "FittingRow",
    "Limit",
    "Report",
    "Row",
    "Tries",
    "fitting",
    "remedies",
    "unfit",
]
