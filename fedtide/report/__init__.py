"""Reports: pages about runs, comparisons and traces."""
