"""The tests of the state machine catch what mutmut changes in it: see `tests.mutation.generated`."""

from pathlib import Path

import pytest

from tests.mutation import generated


@pytest.mark.trial(long=1)
@pytest.mark.timeout(7200)
def test_a_generated_fault_is_caught_unless_it_changes_nothing(tmp_path: Path):
    pytest.importorskip("mutmut", reason="pip install mutmut")

    found, _ = generated.survivors(tmp_path)

    assert found - generated.known() == set()
