"""The recipe: everything that decides what a bundle is, as one closed schema."""
