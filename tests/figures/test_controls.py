"""Figures of the controls: the numbers drawn are those of the rows, for every button."""

from __future__ import annotations

import pytest

from bertflow_lite.figures.controls import GAINS, gain_dots


def rows(scale: float, sets: tuple[str, ...]) -> list[dict[str, object]]:
    return [
        {
            "data": data,
            "layers": "4",
            "what": what,
            "difference": [scale * (k + n), scale * (k + n) - 1, scale * (k + n) + 2],
        }
        for n, data in enumerate(sets, start=1)
        for k, what in enumerate(GAINS)
    ]


def test_gains_and_intervals_are_those_of_the_chosen_set() -> None:
    runs = {"one": rows(1.0, ("stsb", "sick-r", "mean")), "two": rows(2.0, ("stsb", "mean"))}
    fig = gain_dots(runs, title="t")
    labels = [button.label for button in fig.layout.updatemenus[0].buttons]
    assert labels == ["mean of the sets", "STS-B"]  # what both runs have
    for label, n in (("mean of the sets", 3), ("STS-B", 1)):
        (button,) = (one for one in fig.layout.updatemenus[0].buttons if one.label == label)
        change = button.args[0]
        for k, trace in enumerate(fig.data):
            n_two = 2 if label.startswith("mean") else 1
            assert list(change["x"][k]) == [k + n, 2 * (k + n_two)]
            assert list(change["error_x.array"][k]) == [2, 2]
            assert list(change["error_x.arrayminus"][k]) == [1, 1]
            assert list(trace.y) == ["one", "two"] and trace.error_x.symmetric is False
        flow = list(GAINS).index("+ flow")
        assert "100 % of the flow" in change["customdata"][flow][0]
        if label.startswith("mean"):  # what is drawn before a button is pressed
            assert [list(trace.x) for trace in fig.data] == [list(x) for x in change["x"]]
    with pytest.raises(ValueError, match="There is no run"):
        gain_dots({})
