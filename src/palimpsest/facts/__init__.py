"""What is asked: triples, phrasings, the sealed pool, the injection stream, a user's own facts."""
