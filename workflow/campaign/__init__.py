"""Reproducible LLM-serving performance campaigns: the package that the workflow's rules call."""
