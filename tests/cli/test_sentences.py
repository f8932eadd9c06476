import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bertflow_lite import Whitener, load_encoder, load_sts, save
from bertflow_lite.cli.common import app

pytestmark = pytest.mark.usefixtures("minilm")


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Sentences and pairs as somebody's own files, with a calibrator fitted on them."""
    folder = tmp_path_factory.mktemp("own files é")
    pairs = load_sts("mini-sts")
    (folder / "sentences.txt").write_text("\n".join(pairs.sentences) + "\n", encoding="utf-8")
    rows = zip(pairs.sentences1, pairs.sentences2, pairs.gold, strict=True)
    (folder / "pairs.tsv").write_text(
        "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{g}\n" for a, b, g in rows),
        encoding="utf-8",
    )
    args = ("--model", "minilm", "--layers", "4", "--threads", "1", "--calibrate", "whiten:64")
    result = run("fit", folder / "sentences.txt", "--out", folder / "flow.safetensors", *args)
    assert result.exit_code == 0, result.output
    assert "saved: flow.safetensors" in result.stdout
    return folder


def test_encode_uses_what_was_fitted(own, tmp_path):
    out = tmp_path / "v.npy"
    result = run("encode", own / "sentences.txt", "--with", own / "flow.safetensors", "--out", out)
    assert result.exit_code == 0, result.output
    vectors = np.load(out, allow_pickle=False)
    assert vectors.shape == (840, 64) and vectors.dtype == np.float32
    again = run("encode", own / "sentences.txt", "--with", own / "flow.safetensors", "--out", out)
    assert again.exit_code == 1 and "--overwrite" in again.stderr


def test_a_query_may_begin_with_a_dash(own):
    where = ("--in", own / "sentences.txt", "--with", own / "flow.safetensors")
    assert run("similar", *where, "--", "-5 degrees in the city").exit_code == 0
    assert "it may begin with a dash" in " ".join(run("similar", "--help").stdout.split())


def test_similar_finds_the_sentence_itself(own):
    query = load_sts("mini-sts").sentences[7]
    args = (
        "--in",
        own / "sentences.txt",
        "--with",
        own / "flow.safetensors",
        "--top",
        "3",
        "--json",
    )
    result = run("similar", query, *args)
    assert result.exit_code == 0, result.output
    hits = json.loads(result.stdout)["hits"]
    assert len(hits) == 3
    assert hits[0]["sentence"] == query and hits[0]["line"] == 8 and hits[0]["cosine"] > 0.999


def test_check_says_what_it_sees_and_what_cannot_be_known(own):
    args = (own / "sentences.txt", "--model", "minilm", "--layers", "4", "--calibrate", "sn")
    result = run("check", *args)
    assert result.exit_code == 0, result.output
    assert "cannot tell from the space alone" in result.stdout
    assert "without ratings" in result.stdout
    content = json.loads(run("check", *args, "--json").stdout)
    assert content["mean_cosine"] > 0.4 > 0.1 > abs(content["mean_cosine_calibrated"])


def test_evaluate_equals_the_library(own):
    from bertflow_lite import load_encoder, score_sts

    args = ("--model", "minilm", "--layers", "4", "--calibrate", "none,sn", "--json")
    result = run("evaluate", own / "pairs.tsv", *args)
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    pairs = load_sts("mini-sts")
    raw = score_sts(pairs, load_encoder("minilm").encode(pairs.sentences, 4)).all
    assert content["pairs"] == 420
    assert content["results"][0]["spearman"] == pytest.approx(raw, abs=1e-3)
    saved = run(
        "evaluate", own / "pairs.tsv", "--with", own / "flow.safetensors", "--calibrate", "none"
    )
    assert "saved in flow" in saved.stdout


def test_evaluate_searches_too(own):
    args = ("--model", "minilm", "--layers", "4", "--calibrate", "none,whiten:64")
    result = run("evaluate", own / "pairs.tsv", *args, "--search", "4", "--json")
    assert result.exit_code == 0, result.output
    rows = {row["calibrator"]: row for row in json.loads(result.stdout)["results"]}
    assert {"spearman", "search"} <= rows["none"].keys() and rows["none"]["search"]["gain"] is None
    pairs = load_sts("mini-sts")
    vectors = load_encoder("minilm").encode(pairs.sentences, 4)
    z = Whitener(64).fit(vectors).transform(vectors)  # rows that are repeated change little
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    others = list(dict.fromkeys(pairs.sentences2))
    of = {text: unit[len(pairs) + pairs.sentences2.index(text)] for text in others}
    rated = zip(pairs.sentences1, pairs.sentences2, pairs.gold, strict=True)
    good = {a: b for a, b, gold in rated if gold >= 4}
    first = []
    for row, asked in enumerate(pairs.sentences1):
        if pairs.gold[row] >= 4:
            cosines = {text: of[text] @ unit[row] for text in others if text != asked}
            first.append(max(cosines, key=cosines.get) == good[asked])
    found = rows["whiten:64"]["search"]
    assert found["recall@1"] == pytest.approx(100 * np.mean(first), abs=2)
    low, high = found["gain"][1:]
    assert low < found["ndcg@10"] - rows["none"]["search"]["ndcg@10"] < high


def test_evaluate_searches_where_all_that_is_rated_is_right(own, tmp_path):
    lines = (own / "pairs.tsv").read_text(encoding="utf-8").splitlines()[1:40]
    asked = "".join("\t".join([*line.split("\t")[:2], "1"]) + "\n" for line in lines)
    (tmp_path / "asked.tsv").write_text("query\tsentence\trelevance\n" + asked, encoding="utf-8")
    args = ("--model", "minilm", "--calibrate", "none,sn", "--fit-on", own / "sentences.txt")
    result = run("evaluate", tmp_path / "asked.tsv", *args, "--search", "1")
    assert result.exit_code == 0, result.output
    assert "39 first sentences search" in result.stdout
    refused = run("evaluate", tmp_path / "asked.tsv", *args, "--search", "2")
    assert refused.exit_code == 1 and "the highest rating is 1" in refused.stderr


def test_evaluate_says_what_was_fitted_and_what_is_gained(own, tmp_path):
    from bertflow_lite import bootstrap_difference, load_encoder

    pairs = load_sts("mini-sts")
    twice = tmp_path / "twice.tsv"
    lines = [f"{i}\t{s}\n" for i, s in enumerate(pairs.sentences * 2)]
    twice.write_text("id\tmine\n" + "".join(lines), encoding="utf-8")
    args = ("--model", "minilm", "--layers", "4", "--calibrate", "none,whiten:64")
    args = ("evaluate", own / "pairs.tsv", *args, "--fit-on", twice, "--column", "mine")
    result = run(*args)
    assert result.exit_code == 0, result.output
    assert "fitted on 840 different sentences of twice.tsv" in result.stdout
    assert "gain over none" in result.stdout and result.stderr == ""
    content = json.loads(run(*args, "--json").stdout)
    assert content["fitted_on"] == 840
    raw = load_encoder("minilm").encode(pairs.sentences, 4)
    gain = bootstrap_difference(pairs, Whitener(64).fit_transform(raw), raw)
    none, row = content["results"]
    assert none["gain"] is None
    assert [row["gain"], row["gain_low"], row["gain_high"]] == pytest.approx(
        [gain.estimate, gain.low, gain.high], abs=1e-3
    )


def test_another_encoder_is_refused(own):
    args = (
        "--in",
        own / "sentences.txt",
        "--with",
        own / "flow.safetensors",
        "--model",
        "random-minilm",
    )
    result = run("similar", "A query.", *args)
    assert result.exit_code == 1
    assert "fitted with the encoder 'minilm'" in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("fit", "sentences.txt", "--out", "x.safetensors", "--calibrate", "none"), "fits nothing"),
        (("fit", "sentences.txt", "--out", "flow.safetensors"), "--overwrite"),
        (("fit", "sentences.txt", "--out", "x.safetensors", "--calibrate", "flow:papr"), "paper"),
        (("fit", "missing.txt", "--out", "x.safetensors"), "missing.txt"),
        (("encode", "sentences.txt", "--out", "x.txt"), ".npy"),
        (("similar", " ", "--in", "sentences.txt"), "empty"),
        (("evaluate", "sentences.txt"), "rated pairs"),
        (("check", "sentences.txt", "--calibrate", "none"), "changes nothing"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(own, monkeypatch, args, words):
    monkeypatch.chdir(own)
    result = run(*args)
    assert result.exit_code == 1
    assert words in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not (own / "x.safetensors").exists()


@pytest.mark.parametrize("options", [(), ("--workers",)])
def test_export_loads_in_sentence_transformers(own, tmp_path, options):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    out = tmp_path / "model"
    result = run("export", own / "flow.safetensors", "--out", out, *options)
    assert result.exit_code == 0, result.output
    run(
        "encode",
        own / "sentences.txt",
        "--with",
        own / "flow.safetensors",
        "--out",
        tmp_path / "v.npy",
    )
    model = sentence_transformers.SentenceTransformer(str(out), device="cpu")
    sentences = load_sts("mini-sts").sentences[:20]
    assert np.allclose(model.encode(sentences), np.load(tmp_path / "v.npy")[:20], atol=1e-4)


def test_an_export_that_fails_leaves_nothing_behind(own, tmp_path, monkeypatch):
    sentence_transformers = pytest.importorskip("sentence_transformers")

    def stop(self, path, **options):
        (Path(path)).mkdir()
        raise OSError("the disk is full")

    monkeypatch.setattr(sentence_transformers.SentenceTransformer, "save", stop)
    result = run("export", own / "flow.safetensors", "--out", tmp_path / "models" / "m")
    assert result.exit_code == 1 and "the disk is full" in result.stderr
    assert list((tmp_path / "models").iterdir()) == []


def test_a_calibrator_that_names_no_encoder_asks_for_one(own, tmp_path):
    raw = np.random.default_rng(0).normal(size=(40, 384))
    save(Whitener(8).fit(raw), tmp_path / "nameless.safetensors")
    out = tmp_path / "v.npy"
    args = (
        "encode",
        own / "sentences.txt",
        "--out",
        out,
        "--with",
        tmp_path / "nameless.safetensors",
    )
    result = run(*args)
    assert result.exit_code == 1 and "name it by --model" in result.stderr
    assert not out.exists()
    assert "--layers" in run(*args, "--model", "minilm").stderr
    result = run(*args, "--model", "minilm", "--layers", "4")
    assert result.exit_code == 0, result.output


def test_an_encoder_that_was_a_folder_is_asked_for(own, tmp_path, tiny_bert_folder):
    model = ("--model", tiny_bert_folder, "--max-length", "24", "--calibrate", "whiten:2")
    fitted = tmp_path / "fitted.safetensors"
    assert run("fit", own / "sentences.txt", "--out", fitted, *model).exit_code == 0
    search = ("similar", "the cat sat", "--in", own / "sentences.txt", "--with", fitted)
    result = run(*search)
    assert result.exit_code == 1 and "say by --model where it is" in result.stderr
    assert run(*search, "--model", tiny_bert_folder).exit_code == 0


def test_weights_are_fitted_saved_used_scored_and_exported(own, tmp_path):
    from sentence_transformers import SentenceTransformer

    from bertflow_lite import load_encoder, score_sts

    pairs = load_sts("mini-sts")
    encoder = load_encoder("minilm")
    texts = list(pairs.sentences)
    weights = encoder.token_weights(list(dict.fromkeys(texts)))
    expected = encoder.encode(texts, 4, weights=weights)
    args = ("--model", "minilm", "--layers", "4", "--weights", "idf", "--calibrate", "none")
    path = tmp_path / "w.safetensors"
    result = run("fit", own / "sentences.txt", "--out", path, *args)
    assert result.exit_code == 0, result.output
    assert "fitted idf weights, none, on 840 different sentences" in result.stdout
    out = tmp_path / "v.npy"
    assert run("encode", own / "sentences.txt", "--with", path, "--out", out).exit_code == 0
    np.testing.assert_allclose(np.load(out), expected, atol=1e-5)
    result = run("evaluate", own / "pairs.tsv", *args, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    none, idf = content["results"]
    assert [none["calibrator"], idf["calibrator"]] == ["none", "idf, none"]
    assert content["fitted_on"] == 840
    assert idf["spearman"] == pytest.approx(score_sts(pairs, expected).all, abs=1e-3)
    assert idf["gain"] == pytest.approx(idf["spearman"] - none["spearman"], abs=1e-3)
    saved = run("evaluate", own / "pairs.tsv", "--with", path, "--calibrate", "none", "--json")
    assert json.loads(saved.stdout)["results"][1]["spearman"] == idf["spearman"]
    assert run("export", path, "--out", tmp_path / "model").exit_code == 0
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    np.testing.assert_allclose(model.encode(texts[:20]), expected[:20], atol=1e-4)
    wrong = run("fit", own / "sentences.txt", "--out", tmp_path / "x.safetensors", *args[:-4],
                "--weights", "tfidf")  # fmt: skip
    assert wrong.exit_code == 1 and "no token weights 'tfidf'" in wrong.stderr


@pytest.fixture
def flat(monkeypatch):
    """Lay out maps by two dimensions: UMAP takes minutes, and has its own test."""
    from bertflow_lite.experiments import maps

    monkeypatch.setattr(
        maps, "_lay_out", lambda spaces, seed: [100 * np.abs(x[:, :2]) for x in spaces]
    )


def test_map_writes_one_page_that_asks_nothing(own, tmp_path, flat):
    texts = (own / "sentences.txt").read_text("utf-8").splitlines()[:30]
    few, out = tmp_path / "few.txt", tmp_path / "map.html"
    few.write_text("\n".join([*texts, texts[0]]), encoding="utf-8")
    with_ = ("--with", "flow,sn", "--weights", "idf", "--model", "minilm", "--out", out)
    result = run("map", few, *with_)
    assert result.exit_code == 0, result.output
    assert "map.html: 30 sentences, none, idf, flow, sn" in result.stdout
    page = out.read_text("utf-8")
    assert all(json.dumps(text, ensure_ascii=False) in page for text in texts)
    assert "http:" not in page and "https:" not in page and " src=" not in page
    assert "default-src 'none'" in page and page.count("<script>") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.txt", "map.html"]
    again = run("map", few, *with_)
    assert again.exit_code == 1 and "--overwrite" in again.stderr
    saved = ("--with", own / "flow.safetensors", "--out", out, "--overwrite")
    assert "none, flow" in run("map", few, *saved).stdout


def test_map_says_what_is_missing(own, tmp_path, monkeypatch):
    from bertflow_lite.experiments import maps

    few = tmp_path / "few.txt"
    few.write_text("\n".join(f"Sentence {k % 29}." for k in range(58)), encoding="utf-8")
    for args, words in (
        ((few,), "name the page to write: --out map.html"),
        ((few, "--out", tmp_path / "map.pdf"), "the ending must be .html"),
        ((few, "--out", tmp_path / "map.html"), "29 different sentences are too few for a map"),
        ((tmp_path / "none.txt", "--out", tmp_path / "map.html"), "none.txt"),
        ((own / "sentences.txt", "--out", tmp_path / "a.html", "--with", "flwo"), "flow"),
    ):
        result = run("map", *args)
        assert result.exit_code == 1 and words in result.stderr, result.output

    def none(name):
        raise maps.PackageNotFoundError(name)

    monkeypatch.setattr(maps, "version", none)
    result = run("map", own / "sentences.txt", "--out", tmp_path / "map.html")
    assert result.exit_code == 1 and "pip install 'bertflow-lite[maps]'" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["few.txt"]
