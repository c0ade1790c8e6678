"""Lists the rules of docs/contract.md and the tests that name them: `python -m tools.contract [--all]`."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RULES = ROOT / "docs" / "contract.md"
TESTS = ROOT / "tests"

_RULE = re.compile(r"^\*\*(C\d+)\b(.*(?:\n.+)*)|^\| (F\d+) \|([^|]*)", re.MULTILINE)
_WIDTH = 100


def main(arguments: list[str]) -> int:
    """Print the rules without a proof, or all rules with theirs; 1 if a test names a rule that does not exist."""
    rules = read_rules(RULES.read_text())
    proofs = read_proofs(TESTS)
    for rule, words in rules.items():
        if "--all" in arguments:
            print(f"{rule:4} {len(proofs[rule]):3} tests  {words}")
            for test in sorted(proofs[rule]):
                print(f"          {test}")
        elif not proofs[rule]:
            print(f"{rule:4} {words}")
    proved = sum(bool(proofs[rule]) for rule in rules)
    print(f"{proved} of {len(rules)} rules are named by a test", file=sys.stderr)
    invented = sorted(set(proofs) - set(rules))
    for rule in invented:
        print(f"{rule} is no rule, but is named by {', '.join(sorted(proofs[rule]))}", file=sys.stderr)
    return int(bool(invented))


def read_rules(text: str) -> dict[str, str]:
    """Each rule's number and first words, in the order of the document."""
    return {match[1] or match[3]: _first_words(match[2] or match[4]) for match in _RULE.finditer(text)}


def _first_words(text: str) -> str:
    sentence = " ".join(text.replace("**", "").split()).partition(". ")[0].rstrip(".")
    return textwrap.shorten(sentence, _WIDTH, placeholder=" ...")


def read_proofs(tests: Path) -> defaultdict[str, set[str]]:
    """For each rule the tests that are marked with it, as path::name."""
    proofs: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(tests.rglob("test_*.py")):
        module = ast.parse(path.read_text())
        everywhere = [rule for node in module.body if _is_pytestmark(node) for rule in _rules_in(node)]
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                marked = [rule for decorator in node.decorator_list for rule in _rules_in(decorator)]
                for rule in [*marked, *(everywhere if node.name.startswith("test_") else [])]:
                    proofs[rule].add(f"{path.relative_to(tests.parent)}::{node.name}")
    return proofs


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]


def _rules_in(node: ast.AST) -> Iterator[str]:
    """The rules that `pytest.mark.contract` names anywhere within."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.contract":
            for argument in call.args:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
