"""The `fanfold` command."""
