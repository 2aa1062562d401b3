"""PyTensor graphs: which arrays they contain, subsets of their rows, gradients by row."""
