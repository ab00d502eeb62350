"""AIMET's encodings; one file per version of the format."""
