"""Families of weak learners."""
