"""What is put to trial with Palimpsest and is not needed to audit a model."""
