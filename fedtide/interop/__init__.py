"""Strategies of Flower in our engine."""
