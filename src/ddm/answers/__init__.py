"""Answers to questions: attributions, traces, shares of samples, and diagnoses."""
