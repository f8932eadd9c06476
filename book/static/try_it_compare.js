// Sentences to vectors in each space, and cosines between them.
(function () {
  "use strict";

  const KEPT = 120; // sentences whose vectors are remembered: who edits one box has the other ready

  function cosine(one, two) {
    let [dot, first, second] = [0, 0, 0];
    for (let i = 0; i < one.length; i++) {
      dot += one[i] * two[i];
      first += one[i] * one[i];
      second += two[i] * two[i];
    }
    return dot / Math.sqrt(first * second);
  }

  function makeComparer({ makeTokenizer, makeEncoder, readFitted, model, fitted }) {
    const { rarity, calibrators, shares } = readFitted(fitted);
    const { pieces } = model;
    const tokenize = makeTokenizer(pieces, model.head.longest);
    const encode = makeEncoder(model);
    const spaces = ["raw", "rarity", ...Object.keys(calibrators)];
    const remembered = new Map();

    // What the model makes of a sentence: its pieces, their weights, and a vector in each space.
    function read(text) {
      if (remembered.has(text)) return remembered.get(text);
      const { ids, cut } = tokenize(text);
      const found = {
        ids,
        cut,
        pieces: ids.map((id) => pieces[id]),
        weights: ids.map((id) => rarity[id]),
        empty: ids.length <= 2, // [CLS] and [SEP] alone
        unknown: ids.some((id) => pieces[id] === "[UNK]"),
        broken: /\p{Cs}/u.test(text),
        vectors: null,
      };
      if (!found.empty) {
        const { plain, weighted } = encode(ids, rarity);
        found.vectors = { raw: plain, rarity: weighted };
        for (const name of Object.keys(calibrators)) {
          found.vectors[name] = calibrators[name](plain);
        }
      }
      if (remembered.size >= KEPT) remembered.delete(remembered.keys().next().value);
      remembered.set(text, found);
      return found;
    }

    // {raw, rarity, sn, whiten, flow, shares, pieces, ids, cut, message}. Where a sentence has nothing
    // to read there is a message, and null in place of each number.
    function compare(one, two) {
      const sentences = [one, two].map((text) => read(String(text ?? "")));
      const missing = ["first", "second"].filter((_, k) => sentences[k].empty);
      const found = {
        message: missing.length
          ? `There is nothing to read in the ${missing.join(" and the ")} sentence.`
          : "",
        pieces: sentences.map((each) => each.pieces),
        ids: sentences.map((each) => each.ids),
        cut: sentences.map((each) => each.cut),
        shares: {},
      };
      for (const space of spaces) {
        const [u, v] = sentences.map((each) => each.vectors?.[space]);
        found[space] = found.message ? null : cosine(u, v);
        found.shares[space] = found.message ? null : shares[space](found[space]);
      }
      return found;
    }

    return { tokenize, read, cosine, compare };
  }

  window.bertflowTryIt.makeComparer = makeComparer;
})();
