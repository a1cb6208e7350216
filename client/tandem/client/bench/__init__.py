"""A load of requests on services that run somewhere, and what it measured: `tandem bench`."""
