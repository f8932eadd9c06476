"""STS tasks of MTEB over sentence pairs that are on this machine, in place of the hub's copy."""

from __future__ import annotations

from typing import Any

from bertflow_lite.datasets.pairs import SentencePairs

__all__ = ["local_sts_task"]


def local_sts_task(name: str, pairs: SentencePairs) -> Any:
    """Give one of MTEB's STS tasks with its data replaced by ours.

    MTEB fetches a task's data from the hub.  The same pairs are often on disk already (SentEval's
    folder), or a set of one's own shall be scored in MTEB's way; the task then takes them as if it
    had loaded them itself, and everything else, from prompts to scores, is MTEB's.

    Parameters
    ----------
    name : str
        A task of type STS: ``"STSBenchmark"`` (its data are ``load_sts("stsb")``, the test split),
        ``"SICK-R"`` (``load_sts("sick-r", split="all")``: MTEB scores all 9,927 pairs as one test
        set), ``"STS12"``...
    pairs : SentencePairs
        Gold scores on the task's scale.

    Returns
    -------
    mteb.AbsTask
        For ``mteb.evaluate(model, task, cache=None)``; pass no cache, since a cached result would
        be filed under the name of the hub's data.

    Raises
    ------
    ImportError
        If mteb is not installed.
    ValueError
        If the task is not of type STS, or a gold score lies outside its scale.

    Examples
    --------
    >>> from bertflow_lite import load_sts
    >>> task = local_sts_task("STSBenchmark", load_sts("mini-sts"))         # doctest: +SKIP
    >>> result = mteb.evaluate(model, task, cache=None)                     # doctest: +SKIP
    >>> result.task_results[0].scores["test"][0]["cosine_spearman"]         # doctest: +SKIP
    """
    try:
        import mteb
        from datasets import Dataset, DatasetDict
    except ImportError as error:
        raise ImportError("this needs mteb. Run: pip install 'mteb>=2'") from error
    task: Any = mteb.get_task(name)
    if task.metadata.type != "STS":
        raise ValueError(f"the MTEB task {name!r} is of type {task.metadata.type}, not STS.")
    if not len(pairs) or pairs.gold.min() < task.min_score or pairs.gold.max() > task.max_score:
        raise ValueError(
            f"{pairs!r} does not fit {name!r}, whose scores are from {task.min_score} to "
            f"{task.max_score}."
        )
    columns = {
        "sentence1": list(pairs.sentences1),
        "sentence2": list(pairs.sentences2),
        "score": pairs.gold.tolist(),
    }
    task.dataset = DatasetDict(
        {split: Dataset.from_dict(columns) for split in task.metadata.eval_splits}
    )
    task.data_loaded = True
    return task
