"""The known-label models, one file for each family; the package above says how to add one."""
