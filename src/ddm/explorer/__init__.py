"""``ddm explore``: a local page to ask a run questions. Nothing here imports Gradio but ``page`` and ``serving``."""
