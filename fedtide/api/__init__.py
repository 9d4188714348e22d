"""The Python interface, for scripts and notebooks: what `import fedtide` offers."""
