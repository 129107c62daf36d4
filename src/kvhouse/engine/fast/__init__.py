"""Our own forward pass for the common decoder blocks, beside transformers' for every other.

A model is understood by its structure and by the names that its code uses (``recognise``,
``ends``, ``vocabulary``), and each part is then tried against the original on what the original was
given (``watch``, ``trial``). What fails leaves the model as it is, and ``paths`` says why.
"""
