"""How the gradients of one client or of a cohort are computed; the rules do not depend on it."""
