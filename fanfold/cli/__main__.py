"""`python -m fanfold.cli` is the `fanfold` command."""

from __future__ import annotations

from fanfold.cli.main import main

if __name__ == "__main__":
    main()
