"""What other engines hold for a model, by their own rules."""

from kvhouse.planner.engines.registry import ENGINES, view
from kvhouse.planner.engines.view import EngineView, Group

__all__ = ["ENGINES", "EngineView", "Group", "view"]
