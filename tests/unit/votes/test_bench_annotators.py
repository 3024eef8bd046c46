"""The benchmark of many votes fits what the asset fits: it breaks with the asset's frames, not at a
million votes hours into a run.
"""

import pytest

from benchmarks.bench_annotators import FITS, only_big


@pytest.mark.parametrize("fit", FITS)
def test_each_fit_reports_its_cost(fit: str, capsys: pytest.CaptureFixture[str]) -> None:
    only_big(600, fit)
    cpu_s, gigabytes, before, n, *_ = told = [
        float(word) for word in capsys.readouterr().out.split()
    ]
    assert len(told) == 7
    assert cpu_s > 0
    assert gigabytes >= before > 0
    assert n == 600
