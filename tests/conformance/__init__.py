"""Others' clients against a door with the demo model; `make conformance` runs them in an environment of their own."""
