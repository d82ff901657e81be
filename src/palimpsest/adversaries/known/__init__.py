"""The known-label models, one file for each family; ``registry.py`` says how to add one."""
