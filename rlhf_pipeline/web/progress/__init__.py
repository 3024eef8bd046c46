"""How much work is done and open."""
