"""How the gradients of one client or a cohort are computed; the rules of the methods do not know."""
