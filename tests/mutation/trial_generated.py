"""The tests catch mutmut's changes in modules that decide about money: `tests.mutation.generated`."""

from pathlib import Path

import pytest

from tests.mutation import generated


@pytest.mark.trial(long=1)
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [name for name in generated.PARTS if name not in generated.OPEN])
def test_a_generated_fault_is_caught_unless_it_changes_nothing(name: str, tmp_path: Path):
    pytest.importorskip("mutmut", reason="pip install mutmut")

    found, _ = generated.survivors(generated.PARTS[name], tmp_path)

    assert found - generated.known() == set()
