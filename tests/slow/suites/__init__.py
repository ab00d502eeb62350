"""Test suites of imitated libraries, one a file: where to fetch it, what it imports, what it should pass."""
