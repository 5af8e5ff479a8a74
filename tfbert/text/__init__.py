"""Raw text to token ids: clean, tokenize, truncate, pack. No TensorFlow."""
