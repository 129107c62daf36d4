"""A report page: one HTML file that needs nothing else."""

from kvhouse.views.page.build import page
from kvhouse.views.page.texts import LANGUAGES

__all__ = ["LANGUAGES", "page"]
