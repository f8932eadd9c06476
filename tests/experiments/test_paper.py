"""The paper's numbers: carried over whole, and its own arithmetic."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertflow_lite.experiments import paper
from bertflow_lite.files import data_file

SCORES = st.dictionaries(st.sampled_from(list(paper.SETS)), st.floats(-100, 100), min_size=1)


def numbers(content: object) -> list[float]:
    if isinstance(content, dict):
        return [n for value in content.values() for n in numbers(value)]
    if isinstance(content, list):
        return [n for value in content for n in numbers(value)]
    return [content] if isinstance(content, int | float) else []


def test_the_gains_of_the_text_follow_from_table_2() -> None:
    claims = paper.text_claims()
    assert claims["BERT-base"]["average"] == pytest.approx(5.88, abs=0.005)
    assert claims["BERT-large"]["average"] == pytest.approx(8.16, abs=0.005)
    for claim in claims.values():
        assert claim["average"] == pytest.approx(claim["stated"], abs=0.005)
    # "up to 12.70 points": on STS-B, with BERT-large.
    assert max(claim["largest"] for claim in claims.values()) == pytest.approx(12.70, abs=0.005)
    assert claims["BERT-large"]["largest_on"] == "stsb"


def test_flow_on_target_lowers_one_set_though_the_text_says_consistently() -> None:
    own = paper.load_paper_table(2)["own"]
    gain = paper.measure_gain(own["BERT-base-last2avg"], own["BERT-base-flow (target)"])
    assert [name for name, points in gain.by_set.items() if points < 0] == ["sick-r"]


@pytest.mark.parametrize(("number", "n_taken_over", "n_own"), [(2, 3, 8), (3, 6, 8)])
def test_rows_have_all_sets_and_an_aggregation(number, n_taken_over, n_own) -> None:
    rows = paper.paper_rows(number)
    assert [row.aggregation for row in rows] == ["all"] * n_taken_over + ["wmean"] * n_own
    for row in rows:
        assert list(row.scores) == list(paper.SETS)
        assert all(10 < score < 90 for score in row.scores.values())


def test_tables_that_show_the_same_experiment_agree() -> None:
    """Tables 2, 5 and 6 all have BERT-base on STS-B; Tables 3 and 8 do not (other seeds)."""
    own = paper.load_paper_table(2)["own"]
    table5 = paper.load_paper_table(5)["spearman"]
    assert table5["BERT-base"] == own["BERT-base"]["stsb"]
    # Table 5's flow is on the last layer, Table 2's on last2avg.
    assert table5["BERT-base-flow (target)"] < own["BERT-base-flow (target)"]["stsb"]


def test_others_are_labelled() -> None:
    rows = paper.load_others()
    assert all(row.source and row.aggregation in ("all", "mean", "wmean") for row in rows)
    assert all(set(row.scores) <= set(paper.SETS) for row in rows)
    by_label = {row.label: row for row in rows}
    assert len(by_label) == len(rows), "a label names one row"
    # BERT-whitening's first-last (first block and last) is what the paper's table calls last2avg.
    last2avg = paper.load_paper_table(2)["own"]["BERT-base-last2avg"]
    first_last = by_label["BERT-base, first-last (first block + last)"]
    assert first_last.aggregation == "wmean"
    assert first_last.scores == pytest.approx(last2avg, abs=0.021)


def test_rows_of_simcse_have_the_averages_that_it_prints() -> None:
    """Its Tables 5, B.2, C.1 and its issue 285 print the mean of each row: a check of copying."""
    by_label = {row.label: row for row in paper.load_others()}
    raw = "BERT-base, first-last"
    for label, printed in {
        f"{raw} (embedding layer + last)": 56.70,
        f"{raw} (first block + last), all": 60.73,
        "BERT-flow (NLI)": 66.55,
        "BERT-flow (target)": 66.31,
        "BERT-whitening (NLI)": 66.28,
        "BERT-whitening (target)": 64.26,
        "BERT-whitening (NLI), wmean": 67.59,
        "BERT-whitening (target), wmean": 69.19,
        "unsupervised SimCSE": 76.25,
    }.items():
        assert by_label[label].average == pytest.approx(printed, abs=0.006)
    # STS-B and SICK-R have no subsets, so the aggregations agree there.
    for label in (f"{raw} (first block + last)", "BERT-whitening (NLI)", "BERT-whitening (target)"):
        other = f"{label}, {'all' if label.startswith(raw) else 'wmean'}"
        for name in ("stsb", "sick-r"):
            one, two = by_label[label].scores[name], by_label[other].scores[name]
            assert one == pytest.approx(two, abs=0.011)


def test_papers_with_code_lists_the_best_of_table_2() -> None:
    own = paper.load_paper_table(2)["own"]
    listed = [row for row in paper.load_others() if row.source.startswith("Papers with Code")]
    assert {name for row in listed for name in row.scores} == set(paper.SETS)
    for row in listed:
        for name, score in row.scores.items():
            assert own[row.label][name] == score == max(r[name] for r in own.values())


def test_every_table_is_there_and_finite() -> None:
    content = json.loads(data_file("paper_tables.json").read_text(encoding="utf-8"))
    assert [key for key in content if key.startswith("table")] == [f"table{n}" for n in range(1, 9)]
    for number in range(1, 9):
        table = paper.load_paper_table(number)
        assert table["caption"] and (numbers(table) or number == 7)
    table1 = paper.load_paper_table(1)
    assert all(len(row) == 4 for row in table1["mean_knn_l2_dist"].values())
    # Its observations 1 and 2: rare words are longer and farther from their neighbors.
    assert table1["mean_l2_norm"] == sorted(table1["mean_l2_norm"])


def test_a_caller_may_change_what_it_got() -> None:
    paper.load_paper_table(2)["own"].clear()
    assert paper.load_paper_table(2)["own"]


@pytest.mark.parametrize("number", [0, 9, "2"])
def test_another_table_is_an_error(number) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        paper.load_paper_table(number)
    with pytest.raises(ValueError, match="2 and 3"):
        paper.paper_rows(5)


@given(SCORES, SCORES)
def test_gain_turns_its_sign(before: dict[str, float], after: dict[str, float]) -> None:
    if not before.keys() & after.keys():
        with pytest.raises(ValueError, match="in common"):
            paper.measure_gain(before, after)
        return
    there, back = paper.measure_gain(before, after), paper.measure_gain(after, before)
    assert there.average == pytest.approx(-back.average)
    assert there.by_set.keys() == before.keys() & after.keys()
    assert there.largest == there.by_set[there.largest_on] == max(there.by_set.values())
    assert there.average <= there.largest + 1e-9
