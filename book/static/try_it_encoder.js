// Word pieces to two vectors: mini-bert, a BERT with a few blocks, forward only.
// Rows of numbers lie one after the other in flat arrays: x[t * width + i] is number i of token t.
(function () {
  "use strict";

  function toBytes(base64) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
    const text = atob(base64);
    const out = new Uint8Array(text.length);
    for (let i = 0; i < out.length; i++) out[i] = text.charCodeAt(i);
    return out;
  }

  // A function that gives the float32 numbers at a place of the bytes.
  function floatReader(bytes) {
    return ({ at, count }) => new Float32Array(bytes.buffer, bytes.byteOffset + at, count);
  }

  // out[t, j] = scale[j] * (sum over i of x[t, i] * weight[j, i]) + bias[j]
  // Four tokens and two rows at a time, so that each number is read once for several products. Where
  // tokens or rows are left over, the last one is done again.
  function linear(x, tokens, { weight, scale, bias }, out) {
    const high = bias.length;
    const wide = weight.length / high;
    for (let j = 0; j < high; j += 2) {
      const i = Math.min(j + 1, high - 1);
      const byJ = scale ? scale[j] : 1;
      const byI = scale ? scale[i] : 1;
      for (let t = 0; t < tokens; t += 4) {
        const t1 = Math.min(t + 1, tokens - 1);
        const t2 = Math.min(t + 2, tokens - 1);
        const t3 = Math.min(t + 3, tokens - 1);
        let p = t * wide;
        let p1 = t1 * wide;
        let p2 = t2 * wide;
        let p3 = t3 * wide;
        let q = i * wide;
        let sumJ = 0;
        let sumJ1 = 0;
        let sumJ2 = 0;
        let sumJ3 = 0;
        let sumI = 0;
        let sumI1 = 0;
        let sumI2 = 0;
        let sumI3 = 0;
        for (let k = j * wide, end = k + wide; k < end; k++) {
          const w = weight[k];
          const v = weight[q++];
          const a = x[p++];
          const a1 = x[p1++];
          const a2 = x[p2++];
          const a3 = x[p3++];
          sumJ += w * a;
          sumJ1 += w * a1;
          sumJ2 += w * a2;
          sumJ3 += w * a3;
          sumI += v * a;
          sumI1 += v * a1;
          sumI2 += v * a2;
          sumI3 += v * a3;
        }
        out[t * high + j] = sumJ * byJ + bias[j];
        out[t1 * high + j] = sumJ1 * byJ + bias[j];
        out[t2 * high + j] = sumJ2 * byJ + bias[j];
        out[t3 * high + j] = sumJ3 * byJ + bias[j];
        out[t * high + i] = sumI * byI + bias[i];
        out[t1 * high + i] = sumI1 * byI + bias[i];
        out[t2 * high + i] = sumI2 * byI + bias[i];
        out[t3 * high + i] = sumI3 * byI + bias[i];
      }
    }
  }

  // Each token's vector to mean 0 and deviation 1, then scaled and shifted; in place.
  function normalize(x, tokens, { weight, bias }, epsilon) {
    const width = weight.length;
    for (let t = 0; t < tokens; t++) {
      const at = t * width;
      let mean = 0;
      for (let i = 0; i < width; i++) mean += x[at + i] / width;
      let variance = 0;
      for (let i = 0; i < width; i++) variance += (x[at + i] - mean) ** 2 / width;
      const by = 1 / Math.sqrt(variance + epsilon);
      for (let i = 0; i < width; i++) x[at + i] = (x[at + i] - mean) * by * weight[i] + bias[i];
    }
  }

  function add(x, more) {
    for (let i = 0; i < x.length; i++) x[i] += more[i];
  }

  // The error function by Abramowitz and Stegun's 7.1.26, off by 1.5e-7 at most.
  function erf(x) {
    const t = 1 / (1 + 0.3275911 * Math.abs(x));
    let sum = 1.061405429 * t;
    sum = (sum - 1.453152027) * t;
    sum = (sum + 1.421413741) * t;
    sum = (sum - 0.284496736) * t;
    sum = (sum + 0.254829592) * t;
    const y = 1 - sum * Math.exp(-x * x);
    return x < 0 ? -y : y;
  }

  function gelu(x) {
    for (let i = 0; i < x.length; i++) x[i] *= 0.5 * (1 + erf(x[i] * Math.SQRT1_2));
  }

  // qkv holds query, key and value of each token, side by side; out gets, for each head, the mean
  // of the values, weighted by how well the keys fit the token's query.
  function attend(qkv, tokens, heads, out) {
    const width = out.length / tokens;
    const size = width / heads;
    const weights = new Float64Array(tokens);
    for (let head = 0; head < heads; head++) {
      for (let t = 0; t < tokens; t++) {
        const query = t * 3 * width + head * size;
        let highest = -Infinity;
        for (let s = 0; s < tokens; s++) {
          const key = (s * 3 + 1) * width + head * size;
          let dot = 0;
          for (let i = 0; i < size; i++) dot += qkv[query + i] * qkv[key + i];
          weights[s] = dot / Math.sqrt(size);
          highest = Math.max(highest, weights[s]);
        }
        let total = 0;
        for (let s = 0; s < tokens; s++) {
          weights[s] = Math.exp(weights[s] - highest);
          total += weights[s];
        }
        const at = t * width + head * size;
        out.fill(0, at, at + size);
        for (let s = 0; s < tokens; s++) {
          const value = (s * 3 + 2) * width + head * size;
          const by = weights[s] / total;
          for (let i = 0; i < size; i++) out[at + i] += by * qkv[value + i];
        }
      }
    }
  }

  // A function from numbers of pieces, and a weight for each of the vocabulary, to the plain and the
  // weighted mean of the tokens' vectors, averaged over the blocks that are pooled.
  function makeEncoder({ head, data }) {
    const bytes = toBytes(data);
    const floats = floatReader(bytes);
    const whole = ({ at, rows }, width) => new Int8Array(bytes.buffer, at, rows * width);
    const { width, heads, inner, epsilon } = head;

    // Whole numbers stay as they are: as floats they would take four times the memory and would be
    // no faster.
    const readLinear = (entry, wide) => ({
      weight: whole(entry, wide),
      scale: floats({ at: entry.scale, count: entry.rows }),
      bias: floats(entry.bias),
    });
    const readNorm = ({ weight, bias }) => ({ weight: floats(weight), bias: floats(bias) });
    const words = whole(head.words, width);
    const wordScale = floats({ at: head.words.scale, count: head.words.rows });
    const positions = floats(head.positions);
    const firstNorm = readNorm(head.norm);
    const blocks = head.blocks.map((block) => ({
      attend: readLinear(block.attend, width),
      mix: readLinear(block.mix, width),
      norm1: readNorm(block.norm1),
      up: readLinear(block.up, width),
      down: readLinear(block.down, inner),
      norm2: readNorm(block.norm2),
    }));

    function embed(ids) {
      const x = new Float32Array(ids.length * width);
      ids.forEach(function (id, t) {
        for (let i = 0; i < width; i++) {
          x[t * width + i] = words[id * width + i] * wordScale[id] + positions[t * width + i];
        }
      });
      normalize(x, ids.length, firstNorm, epsilon);
      return x;
    }

    return function encode(ids, vocabularyWeights) {
      const tokens = ids.length;
      const x = embed(ids);
      const qkv = new Float32Array(tokens * 3 * width);
      const mixed = new Float32Array(tokens * width);
      const more = new Float32Array(tokens * width);
      const up = new Float32Array(tokens * inner);
      const plain = new Float64Array(width);
      const weighted = new Float64Array(width);
      let total = 0;
      for (const id of ids) total += vocabularyWeights[id];

      function pool(state) {
        if (!head.pooled.includes(state)) return;
        for (let t = 0; t < tokens; t++) {
          const even = 1 / (tokens * head.pooled.length);
          const byWeight = vocabularyWeights[ids[t]] / (total * head.pooled.length);
          for (let i = 0; i < width; i++) {
            plain[i] += even * x[t * width + i];
            weighted[i] += byWeight * x[t * width + i];
          }
        }
      }

      pool(0);
      blocks.forEach(function (block, index) {
        linear(x, tokens, block.attend, qkv);
        attend(qkv, tokens, heads, mixed);
        linear(mixed, tokens, block.mix, more);
        add(x, more);
        normalize(x, tokens, block.norm1, epsilon);
        linear(x, tokens, block.up, up);
        gelu(up);
        linear(up, tokens, block.down, more);
        add(x, more);
        normalize(x, tokens, block.norm2, epsilon);
        pool(index + 1);
      });
      return { plain, weighted };
    };
  }

  Object.assign((window.bertflowTryIt ??= {}), { toBytes, floatReader, linear, makeEncoder });
})();
