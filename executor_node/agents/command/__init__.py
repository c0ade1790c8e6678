"""Agents of kind command: any program, and coding agents of the command line that are known by name (presets).

`agents` carries out steps, `program` is one program while it runs, `folders` makes the folder that it works in. What it
writes is read by `readers`, in one of the forms of `own`, `mapped` and `presets`, which tell it to a `Report`.
"""
