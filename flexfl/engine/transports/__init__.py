"""How instructions reach clients and replies come back: inline, Ray, Flower's Grid."""
