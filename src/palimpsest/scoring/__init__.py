"""Numbers per item: answer-span NLL, divergence from frozen models, the round trip."""
