"""``ddm explore``: a local page to ask a run questions. Only ``layout``, ``page`` and ``server`` import Gradio."""
