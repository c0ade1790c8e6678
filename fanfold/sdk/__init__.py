"""What a Python user imports: `Mesh` for asyncio, `SyncMesh` for everybody else."""
