"""The ports over gRPC: whoever holds one cannot tell it from a local implementation."""
