"""What development needs beside the package: generated code, the contract's proofs."""
