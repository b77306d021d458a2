"""Answers to questions: attributions, traces, shares of samples, diagnoses."""
