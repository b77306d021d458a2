"""Split the training set into groups."""

from ddm.groups.columns import by_content, by_date, by_quantile

__all__ = ["by_content", "by_date", "by_quantile"]
