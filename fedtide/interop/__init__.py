"""Strategies of Flower in our engine, and our strategies on Flower's Message API."""
