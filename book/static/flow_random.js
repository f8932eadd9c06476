// Random numbers from a seed: the same seed gives the same points, flow and batches.
(function () {
  "use strict";
  const flow = (window.bertflowFlow = window.bertflowFlow || {});

  flow.random = function (seed) {
    let state = (Math.imul(seed + 1, 0x9e3779b1) ^ 0x5bd1e995) | 1;
    let spare = null;

    function uniform() { // in [0, 1): three shifts that visit every state but 0
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
      return (state >>> 0) / 4294967296;
    }

    function normal() { // a direction and a length give two independent normal numbers
      if (spare !== null) {
        const kept = spare;
        spare = null;
        return kept;
      }
      const length = Math.sqrt(-2 * Math.log(1 - uniform()));
      const angle = 2 * Math.PI * uniform();
      spare = length * Math.sin(angle);
      return length * Math.cos(angle);
    }

    function order(n) {
      const found = Array.from({ length: n }, function (_, k) { return k; });
      for (let k = n - 1; k > 0; k--) {
        const other = Math.floor(uniform() * (k + 1));
        [found[k], found[other]] = [found[other], found[k]];
      }
      return found;
    }

    for (let k = 0; k < 16; k++) uniform(); // seeds that are close part ways
    return { uniform: uniform, normal: normal, order: order };
  };
})();
