"""The methods of `fanfold.v1.Coordinator`, by what they are about; `coordinator/servicer.py` puts them together."""
