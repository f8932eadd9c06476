"""Streams: any cut into blocks gives the same fit; memory stays bounded; bad input is named."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from bertflow_lite import FlowCalibrator, Standardizer, TopDirectionRemover, Whitener
from bertflow_lite.calibrators.base import DeadDimensionWarning, RowSample, RunningMoments
from bertflow_lite.streaming import EmbeddingStream

LINEAR = [Standardizer(), TopDirectionRemover(2), Whitener(), Whitener(3)]
FLOW = FlowCalibrator(1, 2, 8, device="cpu")
each_linear = pytest.mark.parametrize("calibrator", LINEAR, ids=str)
each = pytest.mark.parametrize("calibrator", [*LINEAR, FLOW], ids=str)


def embeddings(n: int = 300, dim: int = 6, seed: int = 0) -> np.ndarray:
    """Correlated rows whose mean is large beside their deviation, as embeddings' can be."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) + 30).astype(np.float32)


def shards(folder: Path, x: np.ndarray, sizes: tuple[int, ...] = (90, 1, 209)) -> Path:
    folder.mkdir()
    for number, part in enumerate(np.split(x, np.cumsum(sizes)[:-1])):
        np.save(folder / f"part-{number}.npy", part)
    return folder


def forms(tmp_path: Path, x: np.ndarray) -> dict[str, object]:
    """Give the same embeddings in every form that `fit` takes."""
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(x))
    blocks = np.array_split(x, 7)
    return {
        "memory-mapped": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "slice of a map": np.load(tmp_path / "fortran.npy", mmap_mode="r")[:],
        "plain view of a map": np.asarray(np.load(tmp_path / "x.npy", mmap_mode="r")),
        "path": tmp_path / "x.npy",
        "name": str(tmp_path / "x.npy"),
        "folder": shards(tmp_path / "shards", x),
        "generator": (block for block in blocks),
        "tensors": iter(map(torch.from_numpy, blocks)),
        "stream": EmbeddingStream(blocks, block_bytes=100),
        "function": EmbeddingStream(lambda: iter(blocks)),
        "array": EmbeddingStream(x, block_bytes=1000),
    }


@each
def test_every_form_gives_the_fit_of_the_array(tmp_path, calibrator):
    x = embeddings()
    expected = clone(calibrator).fit(x).transform(x)
    for form, data in forms(tmp_path, x).items():
        z = clone(calibrator).fit(data).transform(x)
        assert z.dtype == np.float32
        assert_allclose(np.abs(z), np.abs(expected), atol=1e-5, err_msg=form)


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 300), max_size=12),
    first=st.sampled_from(["fit", "partial_fit"]),
    seed=st.integers(0, 5),
    calibrator=st.sampled_from(LINEAR),
)
def test_any_cut_into_batches_gives_the_in_memory_fit(cuts, first, seed, calibrator):
    x = embeddings(seed=seed)
    whole = clone(calibrator).fit(x)
    blocks = [part for part in np.split(x, sorted(cuts)) if len(part)]
    cut = clone(calibrator)
    if first == "fit":  # then go on from it
        half = max(2, len(x) // 2)
        cut.fit(x[:half]).partial_fit(x[half:])
    else:
        for block in blocks:
            cut.partial_fit(block)
    streamed = clone(calibrator).fit(EmbeddingStream(blocks, block_bytes=777))
    for other in (cut, streamed):
        assert_allclose(np.abs(other.transform(x)), np.abs(whole.transform(x)), atol=1e-5)


def test_moments_merge_as_if_they_had_been_summed_up_together():
    x = embeddings(100).astype(np.float64) + 1e6  # a sum of squares about 0 would lose it all
    parts = []
    for rows in np.array_split(x, 4):
        part = RunningMoments(full=True)
        part.update(rows)
        parts.append(part)
    total = RunningMoments(full=True)
    for part in [RunningMoments(full=True), *parts, RunningMoments(full=True)]:
        total.merge(part)
    assert total.count == 100 and total.varied
    assert_allclose(total.mean, x.mean(axis=0), rtol=1e-14)
    assert_allclose(total.covariance, np.cov(x.T, bias=True), rtol=1e-9)
    assert_allclose(total.std, x.std(axis=0), rtol=1e-9)


def test_equal_rows_in_two_processes_that_differ_are_noticed():
    a, b = RunningMoments(), RunningMoments()
    a.update(np.ones((3, 2)))
    b.update(np.full((3, 2), 2.0))
    assert not a.varied and not b.varied
    a.merge(b)
    assert a.varied


def test_a_sample_is_uniform_and_without_replacement():
    counts = np.zeros(60)
    for seed in range(400):
        sample = RowSample(10, seed)
        for block in np.array_split(np.arange(60)[:, None], 7):
            sample.update(block)
        rows = sample.rows()[:, 0]
        assert len(set(rows)) == 10
        counts[rows] += 1
    # Each row is in 400/6 = 67 samples, with a deviation of 7.5.
    assert counts.min() > 67 - 32 and counts.max() < 67 + 32
    few = RowSample(10)
    few.update(np.zeros((4, 1)))
    assert few.rows().shape == (4, 1)


@each
def test_a_large_stream_is_trained_in_windows(tmp_path, calibrator):
    x = embeddings(4000)
    np.save(tmp_path / "x.npy", x)
    small = {"block_bytes": 700, "window_bytes": 6000}  # 29 rows and 250
    stream = EmbeddingStream(tmp_path / "x.npy", **small)
    fitted = clone(calibrator).fit(stream)
    if isinstance(calibrator, FlowCalibrator):
        assert fitted.history_.steps == 4000 // 32
        whole = clone(calibrator).fit(x)
        assert fitted.bits_per_dim(x) == pytest.approx(whole.bits_per_dim(x), abs=0.05)
        again = clone(calibrator).fit(EmbeddingStream(tmp_path / "x.npy", **small))
        assert_array_equal(fitted.transform(x), again.transform(x))
        other = clone(calibrator).set_params(random_state=1).fit(stream)
        assert not np.allclose(fitted.transform(x), other.transform(x))
    z = fitted.transform(stream).save(tmp_path / "z.npy")
    assert isinstance(z, np.memmap)
    assert_allclose(z, fitted.transform(x), atol=1e-5)


@pytest.mark.parametrize("n", [1, 31, 100, 1000])
@pytest.mark.parametrize("source", ["array", "items", "generator"])
def test_batches_hold_each_row_once_in_another_order(n, source):
    x = np.arange(n, dtype=np.float64)[:, None]
    made = {"array": x, "items": np.array_split(x, 5), "generator": iter(np.array_split(x, 5))}
    stream = EmbeddingStream(made[source], block_bytes=80, window_bytes=800)
    rows = [batch[:, 0] for batch in stream.batches(8, seed=3)]
    assert all(len(batch) == 8 for batch in rows) and len(rows) == n // 8
    if rows:
        joined = np.concatenate(rows)
        assert len(set(joined)) == len(joined)
    if n == 1000:
        assert not np.array_equal(joined, np.sort(joined))
        assert np.abs(np.corrcoef(joined, np.arange(n))[0, 1]) < (0.2 if source == "array" else 1)
        window = joined[:80]  # rows of one window stand in random order
        assert np.abs(np.corrcoef(window[:-1], window[1:])[0, 1]) < 0.5


def test_the_window_of_a_file_mixes_blocks_from_everywhere(tmp_path):
    x = np.arange(10_000, dtype=np.float64)[:, None]
    stream = EmbeddingStream(x, block_bytes=80, window_bytes=8000)
    first = next(iter(stream.batches(500, seed=0)))[:, 0]
    assert 3000 < np.median(first) < 7000 and np.ptp(first) > 9000


def test_epochs_differ_in_order_and_an_iterator_has_one(tmp_path):
    x = embeddings(1000)
    stream = EmbeddingStream(x, block_bytes=480, window_bytes=2400)
    two = clone(FLOW).set_params(epochs=2).fit(stream)
    assert two.history_.steps == 62 and len(two.history_.epoch_loss) == 2
    assert two.history_.loss[31] != pytest.approx(two.history_.loss[0], abs=1e-6)
    enough = clone(FLOW).set_params(min_steps=40).fit(stream)
    assert enough.history_.steps == 62
    once = EmbeddingStream(iter(np.array_split(x, 9)), window_bytes=2400)
    with pytest.raises(ValueError, match="epochs is 2, but an iterator can be read only once"):
        clone(FLOW).set_params(epochs=2).fit(once)
    once = EmbeddingStream(iter(np.array_split(x, 9)), window_bytes=2400)
    assert clone(FLOW).fit(once).history_.steps == 31


def test_an_iterator_is_read_once_and_says_so():
    stream = EmbeddingStream(iter([embeddings()]))
    Standardizer().fit(stream)
    with pytest.raises(ValueError, match="has been read, which can be done only once"):
        Standardizer().fit(stream)


def test_pipelines_pass_streams_on(tmp_path):
    x = embeddings()
    np.save(tmp_path / "x.npy", x)
    stream = EmbeddingStream(tmp_path / "x.npy", block_bytes=600)
    pipe = make_pipeline(Standardizer(), TopDirectionRemover(1), clone(FLOW))
    z = clone(pipe).fit(stream).transform(stream)
    assert isinstance(z, EmbeddingStream) and z.n_rows == 300
    assert_allclose(z.read(), pipe.fit(x).transform(x), atol=1e-4)


def test_a_path_and_an_iterator_are_transformed_to_streams_a_map_to_an_array(tmp_path):
    x = embeddings()
    np.save(tmp_path / "x.npy", x)
    fitted = Whitener(2).fit(x)
    expected = fitted.transform(x)
    for data in (tmp_path / "x.npy", iter([x[:100], x[100:]]), EmbeddingStream(x)):
        z = fitted.transform(data)
        assert isinstance(z, EmbeddingStream)
        assert_allclose(z.read(), expected, atol=1e-5)
    mapped = fitted.transform(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert type(mapped) is np.ndarray
    assert_allclose(mapped, expected, atol=1e-5)


def test_a_stream_is_no_frame(tmp_path):
    x = embeddings()
    fitted = Standardizer().set_output(transform="pandas").fit(x)
    with pytest.raises(ValueError, match="makes a frame, and a stream cannot be one"):
        fitted.transform(EmbeddingStream(x))
    np.save(tmp_path / "x.npy", x)
    assert fitted.transform(np.load(tmp_path / "x.npy", mmap_mode="r")).shape == x.shape


def test_the_float_type_of_a_stream_is_kept():
    for dtype in (np.float32, np.float64):
        x = embeddings().astype(dtype)
        stream = EmbeddingStream([x[:100], x[100:]], block_bytes=640, window_bytes=1000)
        for calibrator in (*LINEAR, FLOW):
            fitted = clone(calibrator).fit(stream)
            assert fitted.transform(stream).read().dtype == dtype
        assert next(fitted.flow_.parameters()).numpy().dtype == dtype
    half = EmbeddingStream([embeddings().astype(np.float16)])
    assert Standardizer().fit(half).transform(half).read().dtype == np.float32


@each
def test_bad_values_are_named_with_their_rows(calibrator):
    x = embeddings()
    x[205, 1] = np.nan
    stream = EmbeddingStream(x, block_bytes=100 * 24)
    with pytest.raises(ValueError, match=r"in rows 200 to 299: Input X contains NaN"):
        clone(calibrator).fit(stream)
    fitted = clone(calibrator).fit(embeddings())
    with pytest.raises(ValueError, match=r"in rows 200 to 299: Input X contains NaN"):
        fitted.transform(stream).read()


@each
def test_streams_that_cannot_be_fitted_are_refused(calibrator, tmp_path):
    x = embeddings()
    for data, message in (
        (iter([]), "there are no embeddings"),
        (iter([x[:0]]), "there are no embeddings"),
        (iter([x[:1]]), "there is one row only"),
        (iter([x[:1]] * 5), "all 5 rows are equal"),
        (iter([x, x[:, :5]]), "block from row 300 on has 5 columns, those before it 6"),
        (iter([x, x[0]]), r"block from row 300 on has shape \(6,\); it must be 2-D"),
        (iter([[["a", "b"]]]), "could not convert string to float"),
    ):
        with pytest.raises(ValueError, match=message):
            clone(calibrator).fit(data)
    (tmp_path / "empty").mkdir()
    for path in ("nowhere.npy", "empty"):
        with pytest.raises(FileNotFoundError, match=r"there is no (file or folder|\.npy file in)"):
            clone(calibrator).fit(tmp_path / path)


def test_the_width_of_another_stream_is_refused():
    fitted = Standardizer().fit(embeddings())
    stream = EmbeddingStream([embeddings()[:, :5]])
    with pytest.raises(ValueError, match="X has 5 features, but Standardizer is expecting 6"):
        fitted.transform(stream).read()
    with pytest.raises(ValueError, match="X has 5 features, but Standardizer is expecting 6"):
        fitted.partial_fit(stream)


def test_files_of_other_shapes_and_cut_files_are_named(tmp_path):
    x = embeddings()
    folder = shards(tmp_path / "shards", x)
    np.save(folder / "part-1.npy", x[:1, :4])
    with pytest.raises(ValueError, match=r"part-1\.npy has 4 columns, those before it 6"):
        EmbeddingStream(folder)
    np.save(folder / "part-1.npy", x[0])
    with pytest.raises(ValueError, match=r"part-1.npy has shape \(6,\); it must be 2-D"):
        EmbeddingStream(folder)
    content = (folder / "part-0.npy").read_bytes()
    (folder / "part-0.npy").write_bytes(content[:-3])
    with pytest.raises(ValueError, match=r"part-0\.npy cannot be read"):
        EmbeddingStream(folder)
    for bad in (np.array(["a"]), 3, None):
        with pytest.raises(ValueError, match=r"cannot read embeddings from|must be 2-D"):
            EmbeddingStream(bad)
    for sizes in ({"block_bytes": 0}, {"window_bytes": -1}):
        with pytest.raises(ValueError, match="it must be 1 or more"):
            EmbeddingStream(x, **sizes)


@pytest.mark.parametrize("calibrator", [Standardizer(), FLOW], ids=str)
def test_dead_dimensions_are_found_in_the_stream(calibrator):
    x = embeddings(2000)
    x[:, 3] = 5
    x[:1500, 1] = 2  # lives only late
    stream = EmbeddingStream(x, block_bytes=2400, window_bytes=9600)
    with pytest.warns(DeadDimensionWarning, match="1 of 6 .* unchanged: 3"):
        fitted = clone(calibrator).fit(stream)
    assert_array_equal(np.flatnonzero(~fitted.live_), [3])
    z = fitted.transform(x)
    assert np.isfinite(z).all()
    assert_allclose(z[:, 3], 0, atol=1e-6)  # centered
    assert_allclose(fitted.inverse_transform(z), x, atol=1e-3)


@each_linear
def test_partial_fit_waits_for_rows_that_differ(calibrator):
    x = embeddings()
    partial = clone(calibrator).partial_fit(x[:1]).partial_fit(x[:1])
    with pytest.raises(NotFittedError):
        partial.transform(x)
    partial.partial_fit(x[1:]).transform(x)


@each_linear
def test_bad_input_to_partial_fit_leaves_the_calibrator_as_it_was(calibrator):
    x = embeddings()
    bad = x.copy()
    bad[250] = np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = clone(calibrator).fit(x[:100])
    with pytest.raises(ValueError, match="infinity"):
        fitted.partial_fit(EmbeddingStream(bad, block_bytes=600))
    fitted.partial_fit(x[100:])
    expected = clone(calibrator).fit(x).transform(x)
    assert_allclose(np.abs(fitted.transform(x)), np.abs(expected), atol=1e-5)


def test_partial_fit_of_a_loaded_calibrator_is_refused():
    fitted = Standardizer().fit(embeddings())
    loaded = Standardizer()
    for name in ("mean_", "scale_", "live_", "n_features_in_"):
        setattr(loaded, name, getattr(fitted, name))
    with pytest.raises(ValueError, match="cannot be fitted further"):
        loaded.partial_fit(embeddings())


def test_an_interrupted_fit_keeps_the_flow_of_the_last_step(monkeypatch, caplog):
    x = embeddings()
    flow = clone(FLOW)
    steps = []

    def interrupt(self, postfix=None, refresh=True, **values):
        steps.append(values)
        if len(steps) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("bertflow_lite.train.tqdm.set_postfix", interrupt)
    with pytest.raises(KeyboardInterrupt):
        flow.fit(x)
    assert flow.history_.steps == 5 and "the flow after 5 steps is kept" in caplog.text
    assert_allclose(flow.inverse_transform(flow.transform(x)), x, atol=1e-3)
    monkeypatch.undo()
    first = x.copy()
    again = clone(FLOW).fit(first)
    assert_allclose(again.history_.loss[:5], flow.history_.loss)


def test_an_interrupted_save_leaves_no_file(tmp_path):
    def blocks() -> Iterator[np.ndarray]:
        yield embeddings()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EmbeddingStream(blocks, block_bytes=600).save(tmp_path / "z.npy")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"'z.bin' must end in .npy"):
        EmbeddingStream(blocks).save(tmp_path / "z.bin")


def test_a_file_may_be_rewritten_through_itself(tmp_path):
    x = embeddings()
    np.save(tmp_path / "x.npy", x)
    z = EmbeddingStream(tmp_path / "x.npy", block_bytes=600).map(lambda b: 2 * b)
    assert_array_equal(z.save(tmp_path / "x.npy"), 2 * x)


def test_the_array_of_an_iterator_may_be_used_again():
    x, buffer = embeddings(), np.empty((50, 6), np.float32)

    def blocks() -> Iterator[np.ndarray]:
        for part in np.array_split(x, 6):
            buffer[:] = part
            yield buffer

    for size in (600, 10_000):
        assert_array_equal(EmbeddingStream(blocks, block_bytes=size).read(), x)


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_shares_are_everything_once(tmp_path, processes):
    x = embeddings()
    np.save(tmp_path / "x.npy", x)
    for source in (tmp_path / "x.npy", np.array_split(x, 4)):
        stream = EmbeddingStream(source, block_bytes=600).map(lambda block: block + 1)
        parts = [block for i in range(processes) for block in stream.share(i, processes)]
        joined = np.concatenate(parts)
        assert_array_equal(np.sort(joined[:, 0]), np.sort(x[:, 0] + 1))
        whole = list(stream)
        for block, other in zip(stream.share(processes - 1, processes),
                                whole[processes - 1 :: processes], strict=True):  # fmt: skip
            assert_array_equal(block, other)


def test_changes_to_a_copy_on_write_map_survive(tmp_path):
    np.save(tmp_path / "x.npy", embeddings())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    mapped[7] = 99
    Standardizer().fit(mapped)
    assert (mapped[7] == 99).all()
    writable = np.load(tmp_path / "x.npy", mmap_mode="r+")
    writable[7] = 99
    Standardizer().fit(writable)
    assert (writable[7] == 99).all()


MEASURE = """
import resource, sys
import numpy as np
from bertflow_lite import FlowCalibrator, Standardizer, Whitener
from bertflow_lite.streaming import EmbeddingStream

def work(path, window_bytes):
    Standardizer().fit(np.load(path, mmap_mode="r"))
    Whitener(8).fit(path)
    flow = FlowCalibrator(1, 1, 4, batch_size=4096, device="cpu")
    stream = EmbeddingStream(path, window_bytes=window_bytes)
    flow.fit(stream).transform(stream).save(path + ".z.npy")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

before = work(sys.argv[1], 2**24)  # libraries take their own share the first time
print(work(sys.argv[2], 2**24) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere mapped pages are counted otherwise")
def test_memory_does_not_grow_with_the_file(tmp_path):
    rows = np.random.default_rng(0).normal(size=(1000, 256)).astype(np.float32)
    files = {"small.npy": 20, "large.npy": 220}  # thousand rows, megabytes
    for name, size in files.items():
        shape = (1000 * size, 256)
        x = np.lib.format.open_memmap(tmp_path / name, "w+", np.float32, shape)
        x[:] = rows.repeat(size, axis=0)
        x.flush()
    command = [sys.executable, "-c", MEASURE, *(str(tmp_path / name) for name in files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40, "more megabytes for a file that is 200 larger"


def test_a_function_that_loses_rows_is_found():
    stream = EmbeddingStream(np.ones((10, 3)), block_bytes=4 * 3 * 8)
    with pytest.raises(ValueError, match=r"gave 3 rows for the 4 rows from 0 on"):
        stream.map(lambda block: block[1:]).read()


def test_files_of_different_types_are_refused(tmp_path):
    for name, kind in (("a", np.float32), ("b", np.float64)):
        np.save(tmp_path / f"{name}.npy", np.ones((3, 2), dtype=kind))
    with pytest.raises(ValueError, match=r"b.npy holds float64, those before it float32"):
        EmbeddingStream(tmp_path)
