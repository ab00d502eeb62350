"""AIMET's encodings, a version of the format a file."""
