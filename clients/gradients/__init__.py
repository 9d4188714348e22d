"""How the gradients of one client or of a cohort are computed; the rules are the same for all ways."""
