"""Numbers per item: answer-span NLL, divergence from frozen models, re-acquisition."""
