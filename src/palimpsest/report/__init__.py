"""Tables, figures and pages made from stored results; nothing here trains or loads a model."""
