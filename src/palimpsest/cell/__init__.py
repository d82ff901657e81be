"""The one runner: inputs and settings become steps over models that are given or trained here."""
