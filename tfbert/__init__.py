"""tfbert: raw text in, trained BERT classifier and labelled rows out.

Importing this package imports neither TensorFlow nor Keras: the preprocessing side stays light.
"""

__version__ = "0.1.0"
