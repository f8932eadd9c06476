"""Chapters show what is stored; their checks stay quiet, refuse wrong answers, accept solutions.

A chapter's cells run once, for both. What runs is the hand-out, the chapter without its solutions,
so that both are known to work; each answer then gets a copy of the names as its check found them.
"""

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import handouts
import nbformat
import pytest
import rerun
import torch
from notebooks import BOOK, KERNEL_ENV, from_source, sources
from threadpoolctl import threadpool_limits

CHAPTERS = [source for source in sources() if handouts.solutions(source)]
BLANKS = rerun.patterns(Path(__file__).with_name("nbval_sanitize.cfg"))
NOT_TRIED = re.compile(r"Exercise (\d+): not tried yet")

# Chapter and exercise, and an answer that is wrong: one that takes no work, a number that stands
# elsewhere in the chapter, or a slip. The code runs where the solution would. One line each.
WRONG = [
    ("1.1", "rho = 1.0"),
    ("1.1", "rho = np.corrcoef(a, b)[0, 1]  # of values, not of ranks"),
    ("1.2", "centered = language_model"),
    ("1.2", "centered = np.random.default_rng(0).normal(size=language_model.shape)"),
    ("1.2", "centered = language_model - language_model.mean(axis=1, keepdims=True)"),
    ("1.2", "centered = bf.Standardizer().fit_transform(language_model)"),
    ("2.1", "inner_mean = masked_mean"),
    ("2.1", "inner_mean = lambda state, mask: state[:, 1:-1].mean(dim=1)  # forgets the padding"),
    ("2.2", "best = (0, 1)"),
    ("2.2", "best = (encoder.n_layers, encoder.n_layers)"),
    ("3.1", "w2 = fit.w"),
    ("3.1", "w2 = fit.w @ A"),
    ("3.1", "A, h2, w2 = np.eye(5), fit.h, fit.w"),
    ("3.2", "flat_parts = 0.0"),
    ("3.2", "flat_parts = parts"),
    ("3.2", "flat_parts = decompose(world.conditional, world.conditional, world.p_word)"),
    ("4.1", "mean = 1.0"),
    ("4.1", "mean = bf.cosine(block4[:-1], block4[1:]).mean()  # of some pairs only"),
    ("4.1", "mean = mean_cosine(block4).estimate * (1 - 1 / len(block4)) + 1 / len(block4)"),
    ("4.2", "ratio = 11"),
    ("4.2", "ratio = 160"),
    ("5.1", "answer = 10.0"),
    ("5.1", "answer = np.log2(10)"),
    ("5.2", "stuck = flow"),
    ("5.2", "stuck = Flow([part for part in make_flow(Coupling).layers if [*part.parameters()]])"),
    ("5.2", "stuck = Flow([part for part in flow.layers if isinstance(part, ActNorm)])"),
    ("5.3", "hard, gap = torch.zeros(2, 2), 1.0"),
    ("5.3", "hard, rivals, gap = points, (flow, affine), bits - affine_bits"),
    ("5.3", "hard, rivals, gap = points, (affine, flow), 0.5"),
    ("5.3", "hard, gap, rivals = points, 0.2, (make_flow(Coupling), make_flow(AffineCoupling))"),
    ("6.1", "deviations = np.ones(latent.shape[1])"),
    ("6.1", "deviations = raw.std(axis=0)"),
    ("6.2", "no_coupling = 35.2"),
    (
        "6.2",
        "stiff, no_coupling = bf.Standardizer().fit(raw), bf.score_sts(pairs, standardized).all",
    ),
    ("6.2", "stiff, no_coupling = flow, by_seed[0]"),
    ("6.2", "stiff, no_coupling = bf.FlowCalibrator(coupling=False).fit(raw), 38"),
    ("7.1", "nli_gain = 0.0"),
    ("7.1", "nli_gain = 8.16  # that of flow (target)"),
    ("7.2", "chosen_k, reported = 1, 0.0"),
    ("7.2", "chosen_k, reported = 20, 0.5"),
    ("8.1", "sizes = (3 * 768, 2 * 768)"),
    ("8.1", "sizes = (3 * 3 * 768, 3 * 768)"),
    ("8.2", "products = (0.0, 0.0)"),
    ("8.2", "products = (found['[|u - v|]'], found['[u, v, |u - v|]'])"),
    ("8.2", "products = (accuracy(u * v), accuracy(np.hstack([u, v, u * v])))"),
    ("9.1", "owed = 0.0"),
    ("9.1", "owed = bf.spearman(ranked['raw'], edits)  # the plain correlation"),
    ("9.2", "distance = lambda a, b: abs(len(a) - len(b))"),
    ("9.2", "distance = lambda a, b: max(len(a), len(b)) - len(set(a) & set(b))"),
    ("9.3", "backward = 1.0"),
    ("9.3", "backward = ranked['flow'].mean()"),
    ("10.1", "parameters = lambda dim, levels, depth=3, width=32: 0"),
    (
        "10.1",
        "parameters = lambda dim, levels, depth=3, width=32: count(Glow(dim, 1, depth, width))",
    ),
    ("10.2", "mended = 0.0"),
    ("10.2", "change, mended = {'epochs': 10}, 40.12"),
    ("11.1", "agreement = 1.0"),
    ("11.1", "whitened, agreement = similarity['untrained network, flow'], 0.95"),
    ("11.2", "above = [0.0, 0.0]"),
    ("11.2", "above = [0.5, 0.5]"),
    ("11.3", "weighted = bf.score_sts(pairs, small.encode(sentences, layers=4)).all"),
    ("11.3", "weighted, both = 41.9, 42.4  # plain, and the flow on plain vectors"),
    ("12.1", "doubled, ratio = block4, 0.0"),
    ("12.1", "ratio = 1.0"),
    ("12.2", "fair = 0.0"),
    ("12.2", "fair = 0.8  # the same threshold as before"),
    ("13.1", "ends = (9.0, 34.0)  # those of the chapter's hundred"),
    ("13.1", "ends = (-1.0, 1.0)"),
    ("13.2", "by_size = [0, 0, 0, 0]"),
    (
        "13.2",
        "by_size = [0, 0, 0, bf.score_sts(pairs, bf.Whitener().fit_transform(everything)).all]",
    ),
    ("13.2", "by_size = 4 * [bf.score_sts(pairs, bf.Whitener().fit_transform(everything)).all]"),
    ("14.1", "flat, flat_correlation = [], 0.0"),
    ("14.1", "flat, flat_correlation = sentences, natural"),
    ("14.2", "shrunk, plain_lm, without_decay = 1.0, tiny_lm, natural"),
    (
        "14.2",
        "shrunk = np.exp(-recipe['weight_decay'] * recipe['learning_rate'] / 2 * training['steps'])"
        "\nplain_lm, without_decay = tiny_lm, natural",
    ),
    ("14.3", "apart = (0.1, -0.1)"),
    ("14.3", "apart = (natural, natural)"),
]


def number_of(source: Path) -> int:
    return int(found.group()) if (found := re.match(r"\d+", source.name)) else 0


def is_check(cell: Any) -> bool:
    return cell.cell_type == "code" and "check" in cell.metadata.get("tags", [])


def test_there_are_exercises() -> None:
    assert len(CHAPTERS) >= 7


def test_each_check_has_two_wrong_answers_and_each_wrong_answer_a_check() -> None:
    checks = {
        f"{number_of(source)}.{found}"
        for source in CHAPTERS
        for cell in from_source(source).cells
        if is_check(cell)
        for found in NOT_TRIED.findall(cell.source)
    }
    answers = [exercise for exercise, _ in WRONG]
    assert not set(answers) - checks, "there is no such check"
    assert not [exercise for exercise in checks if answers.count(exercise) < 2]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums on one thread come out the same on every run, and as near to the stored as on two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("source", sources(), ids=lambda path: path.stem)
def test_chapter_shows_what_is_stored_and_its_checks_know_right_from_wrong(
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    one_thread: None,
    every_layer: None,
) -> None:
    monkeypatch.chdir(BOOK)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    for name in KERNEL_ENV.keys() - os.environ.keys():
        monkeypatch.setenv(name, KERNEL_ENV[name])
    notebook, taken = handouts.split(source)
    before: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    with rerun.shell() as shell:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                if is_check(cell):
                    before[cell.id] = dict(shell.user_ns)
                shown = shell.show(cell.source)
                if shown.error and "raises-exception" not in cell.metadata.get("tags", []):
                    raise AssertionError(f"this cell stopped:\n\n{cell.source}") from shown.error
                wrong += unlike_stored(source, cell, shown)
        wrong += misjudged(source, notebook, taken, before)
        for solution in taken:  # to open exercises, which have no check
            if solution.cell is None and solution.code:
                answered(solution.code, shell.user_ns)
    assert not wrong, "\n".join(wrong)


def unlike_stored(source: Path, cell: Any, shown: rerun.Shown) -> Iterator[str]:
    """Yield in words how what a cell shows differs from what its notebook has stored."""
    stored = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    outputs = {one.id: one.outputs for one in stored.cells if one.cell_type == "code"}
    if cell.id not in outputs:
        yield f"this cell is not in the notebook; run `make run`:\n{cell.source}"
    elif "nbval-ignore-output" not in cell.metadata.get("tags", []):
        for difference in rerun.differences(shown.outputs, outputs[cell.id], BLANKS):
            yield f"`make run` would change what this cell shows:\n{cell.source}\n{difference}"


def misjudged(
    source: Path, notebook: Any, taken: list[handouts.Solution], before: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Yield what a chapter's checks judge wrongly.

    ``before`` has the names that each check found.  A solution may use those of the ones before it.
    """
    answers = {solution.cell: solution.code for solution in taken if solution.cell}
    answer, solved, checked = "", dict[str, Any](), 0
    for cell in notebook.cells:
        answer = answers.pop(cell.id, answer)
        if not is_check(cell):
            continue
        space = before[cell.id] | solved
        found = NOT_TRIED.search(answered(cell.source, dict(space)))
        assert found, "a check should begin with its number and 'not tried yet'"
        assert answer, "a check cell needs an exercise cell with a folded solution before it"
        exercise = f"{number_of(source)}.{found.group(1)}"
        for other, code in WRONG:
            if other == exercise and not is_refused(code, cell.source, space):
                yield f"the check of {exercise} accepts what is wrong: {code}"
        right = dict(space)
        answered(answer, right)
        if not answered(cell.source, right).strip().endswith("right"):
            yield f"the check of {exercise} does not accept its solution"
        solved |= {k: v for k, v in right.items() if k not in space or space[k] is not v}
        answer, checked = "", checked + 1
    assert checked == len(before)
    assert checked or not taken
    assert not answers


def answered(code: str, space: dict[str, Any]) -> str:
    """Run code among some names; return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, space)
    return printed.getvalue()


def is_refused(code: str, check: str, space: dict[str, Any]) -> bool:
    """Say whether a check cell refuses an answer, in words; the chapter's names stay as they are.

    Functions of the chapter still see the chapter's names, not those of the answer.
    """
    trial = dict(space)
    exec(compile(code, f"<wrong answer: {code}>", "exec"), trial)
    try:
        exec(check, trial)
    except AssertionError as refusal:
        return bool(str(refusal))
    return False
