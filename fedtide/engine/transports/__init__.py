"""Transports send instructions to clients and collect replies: inline, over Ray, over Flower's Grid."""
