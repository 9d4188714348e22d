"""What strategies, clients and traces are put together with: contract, settings, tasks and engine."""
