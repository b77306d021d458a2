"""The colours of pictures, from Okabe and Ito's palette."""

RAISES, LOWERS = "#0072B2", "#D55E00"
"""Of what removing a group raises and lowers, and of any other two things."""

EXACT = "#F0E442"
"""Of what was retrained, on top of the other two."""
