"""What programs write, read in pieces: no more of it is read as JSON at once than a node has the time for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from executor_node.agents.command.own import OwnForm
from executor_node.agents.command.readers import MAX_VALUE_BYTES, Lines, OneValue, Reader
from executor_node.agents.command.report import Report
from executor_node.told import Progress
from fanfold.model.step import TextWritten

MOST = 2 * MAX_VALUE_BYTES


def lines(folder: Path, told: list[Progress]) -> Lines:
    report = Report(told.append, folder, max_bytes=0)
    return Lines(report, OwnForm(report).take, MOST, keeps_all=True)


def one_value(folder: Path, told: list[Progress]) -> OneValue:
    report = Report(told.append, folder, max_bytes=0)
    return OneValue(report, report.result, MOST)


def fed(reader: Reader, data: bytes) -> None:
    for first in range(0, len(data), 2**16):
        assert reader.add(data[first : first + 2**16])


@pytest.mark.contract("F2", "F11")
@pytest.mark.parametrize("beyond", [0, 1])
def test_a_line_of_more_than_can_be_read_at_once_is_text(tmp_path: Path, beyond: int) -> None:
    told: list[Progress] = []
    reader = lines(tmp_path, told)
    start, end = b'{"result": "', b'"}'
    text = b"x" * (MAX_VALUE_BYTES + beyond - len(start) - len(end))
    fed(reader, start + text + end + b"\n")
    result = reader.result()
    assert result.output == (text if not beyond else start + text + end + b"\n").decode()
    assert bool(told) is bool(beyond)


@pytest.mark.contract("F2", "F11")
def test_a_value_of_more_than_can_be_read_at_once_is_the_output_as_text(tmp_path: Path) -> None:
    for size in (MAX_VALUE_BYTES // 2, MAX_VALUE_BYTES):
        reader = one_value(tmp_path, [])
        value = "[" + "0," * (size // 2 - 1) + "0]"
        fed(reader, value.encode())
        result = reader.result()
        assert (result.structured_json is None) is (len(value) > MAX_VALUE_BYTES)
        assert json.loads(result.output) == json.loads(value)


@pytest.mark.contract("C11")
def test_lines_are_found_wherever_the_pieces_are_cut(tmp_path: Path) -> None:
    written = b'{"text": "\xc3\xa9"}\n\n no json \xff\n{"result": [1]}'
    told: list[Progress] = []
    reader = lines(tmp_path, told)
    for byte in written:
        assert reader.add(bytes([byte]))
    assert reader.result().structured_json == "[1]"
    assert told == [TextWritten(text="é"), TextWritten(text="no json \ufffd\n")]
