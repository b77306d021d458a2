"""Reverse and forward gradient matching, as the paper describes them."""
