// What was fitted without labels: SN, whitening, the flow; and how random pairs come out.
(function () {
  "use strict";

  const { toBytes, floatReader, linear } = window.bertflowTryIt;

  function apply(layer, x) {
    const out = new Float64Array(layer.bias.length);
    linear(x, 1, layer, out);
    return out;
  }

  // SN: each number less its mean, divided by its deviation. `scale` holds 1 / deviation.
  function makeStandardizer({ mean, scale }) {
    return (x) => Float64Array.from(x, (value, i) => (value - mean[i]) * scale[i]);
  }

  // Whitening: the principal directions, each with deviation 1.
  function makeWhitener({ mean, map }) {
    const layer = { weight: map, bias: new Float64Array(map.length / mean.length) };
    return (x) =>
      apply(
        layer,
        Float64Array.from(x, (value, i) => value - mean[i]),
      );
  }

  // The flow's layers, as in bertflow_lite/flow.py, from data to latent.
  const LAYERS = {
    actnorm:
      ({ shift, scale }) =>
      (x) =>
        Float64Array.from(x, (value, i) => (value + shift[i]) * scale[i]),
    order:
      ({ order }) =>
      (x) =>
        Float64Array.from(order, (i) => x[i]),
    // The first half stays; a small network of it is added to the second half.
    coupling: ({ layers }) => {
      const [first, second, third] = layers;
      const relu = (value) => Math.max(value, 0);
      return function (x) {
        const kept = Math.ceil(x.length / 2);
        const hidden = apply(second, apply(first, x.subarray(0, kept)).map(relu)).map(relu);
        const shift = apply(third, hidden);
        return x.map((value, i) => (i < kept ? value : value + shift[i - kept]));
      };
    },
  };

  function makeFlow(steps) {
    const layers = steps.map((step) => (step.kind === "split" ? null : LAYERS[step.kind](step)));
    return function (x) {
      const finished = [];
      for (const layer of layers) {
        if (layer) x = layer(x);
        else {
          // Between two levels half of the numbers are finished; the others go on.
          const kept = Math.ceil(x.length / 2);
          finished.push(...x.subarray(kept));
          x = x.subarray(0, kept);
        }
      }
      return Float64Array.from([...finished, ...x]);
    };
  }

  // A function from a cosine to the share of random pairs below it, 0 to 1. `quantiles` are evenly
  // spaced, from the smallest cosine to the largest.
  function makeShare(quantiles) {
    const last = quantiles.length - 1;
    return function (cosine) {
      if (cosine <= quantiles[0]) return 0;
      if (cosine >= quantiles[last]) return 1;
      let [low, high] = [0, last]; // quantiles[low] < cosine <= quantiles[high]
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (quantiles[middle] < cosine) low = middle;
        else high = middle;
      }
      const part = (cosine - quantiles[low]) / (quantiles[high] - quantiles[low]);
      return (low + part) / last;
    };
  }

  function readFitted({ head, data }) {
    const floats = floatReader(toBytes(data));
    // Every {at, count} of the description becomes its numbers; the rest stays as it is.
    function read(entry) {
      if (Array.isArray(entry)) return entry.map(read);
      if (entry === null || typeof entry !== "object") return entry;
      if ("count" in entry) return floats(entry);
      return Object.fromEntries(Object.entries(entry).map(([name, part]) => [name, read(part)]));
    }
    const { rarity, sn, whiten, flow, shares } = read(head);
    return {
      rarity,
      calibrators: {
        sn: makeStandardizer(sn),
        whiten: makeWhitener(whiten),
        flow: makeFlow(flow),
      },
      shares: Object.fromEntries(
        Object.entries(shares).map(([name, quantiles]) => [name, makeShare(quantiles)]),
      ),
    };
  }

  window.bertflowTryIt.readFitted = readFitted;
})();
