"""Many virtual clients in one process: their jobs, trained in cohorts, and what comes of them."""
