"""The colours of pictures. Colour says good or bad, never the sign: the direction of a bar shows the sign."""

NEUTRAL, ACCENT = "#5B6B7B", "#0072B2"
"""Colours without a meaning: for effects of either sign, and for a second series beside them."""

GOOD, BAD = "#009E73", "#D55E00"
"""Okabe and Ito's green and vermilion, which colour-blind people can tell apart."""

WITHIN_NOISE = "#CBD1D7"
"""Colour of effects that may be noise."""
