// The layers of bertflow_lite/flow.py, with their gradients by hand.
//
// A batch is one Float64Array, row after row. Each layer has
//   forward(u, logDet, cache)    data to latent; adds to logDet[row]; keeps in cache what backward
//                                needs (logDet and cache may be null)
//   inverse(z)                   latent to data
//   backward(dz, dLogDet, cache) the loss's gradient at z, and the one at every row's logDet, which
//                                is one number; adds to this.gradients, gives the gradient at u
// this.parameters and this.gradients are lists of arrays, in the order in which torch has them.
(function () {
  "use strict";
  const flow = window.bertflowFlow;
  const LOG_SCALE_FACTOR = 3; // Glow's code learns log-scales divided by this
  const STD_EPSILON = 1e-6;

  function zerosLike(arrays) {
    return arrays.map(function (array) { return new Float64Array(array.length); });
  }

  function filled(length, draw) {
    return Float64Array.from({ length: length }, draw);
  }

  // z = (u + bias) * exp(3 * logScale)
  class ActNorm {
    constructor(dim, random) {
      const limit = Math.sqrt(6 / (1 + dim));
      const draw = function () { return (2 * random.uniform() - 1) * limit; };
      this.dim = dim;
      this.bias = filled(dim, draw);
      this.logScale = filled(dim, draw);
      this.parameters = [this.bias, this.logScale];
      this.gradients = zerosLike(this.parameters);
    }

    scales() {
      return this.logScale.map(function (value) { return Math.exp(LOG_SCALE_FACTOR * value); });
    }

    // Set bias and scale so that this sample leaves with mean 0 and deviation 1.
    initialize(sample) {
      const n = sample.length / this.dim;
      for (let j = 0; j < this.dim; j++) {
        let mean = 0, square = 0;
        for (let k = j; k < sample.length; k += this.dim) mean += sample[k] / n;
        for (let k = j; k < sample.length; k += this.dim) square += (sample[k] - mean) ** 2 / n;
        this.bias[j] = -mean;
        this.logScale[j] = -Math.log(Math.sqrt(square) + STD_EPSILON) / LOG_SCALE_FACTOR;
      }
    }

    forward(u, logDet, cache) {
      const { dim, bias } = this, scale = this.scales(), z = new Float64Array(u.length);
      for (let row = 0; row < u.length; row += dim) {
        for (let j = 0; j < dim; j++) z[row + j] = (u[row + j] + bias[j]) * scale[j];
      }
      if (logDet) {
        let sum = 0;
        for (let j = 0; j < dim; j++) sum += LOG_SCALE_FACTOR * this.logScale[j];
        for (let i = 0; i < logDet.length; i++) logDet[i] += sum;
      }
      if (cache) cache.z = z;
      return z;
    }

    inverse(z) {
      const { dim, bias } = this, scale = this.scales(), u = new Float64Array(z.length);
      for (let row = 0; row < z.length; row += dim) {
        for (let j = 0; j < dim; j++) u[row + j] = z[row + j] / scale[j] - bias[j];
      }
      return u;
    }

    backward(dz, dLogDet, cache) {
      const { dim } = this, scale = this.scales(), z = cache.z, du = new Float64Array(dz.length);
      const [dBias, dLogScale] = this.gradients;
      for (let row = 0; row < dz.length; row += dim) {
        for (let j = 0; j < dim; j++) {
          du[row + j] = dz[row + j] * scale[j];
          dBias[j] += du[row + j];
          dLogScale[j] += LOG_SCALE_FACTOR * (dz[row + j] * z[row + j] + dLogDet);
        }
      }
      return du;
    }
  }

  // Reorder the dimensions. The volume stays, so logDet does.
  class Permutation {
    constructor(dim, kind, random) {
      const straight = Array.from({ length: dim }, function (_, k) { return k; });
      this.order = kind === "random" ? random.order(dim) : straight.reverse();
      this.parameters = [];
      this.gradients = [];
    }

    forward(u) {
      const { order } = this, z = new Float64Array(u.length);
      for (let row = 0; row < u.length; row += order.length) {
        for (let j = 0; j < order.length; j++) z[row + j] = u[row + order[j]];
      }
      return z;
    }

    inverse(z) {
      const { order } = this, u = new Float64Array(z.length);
      for (let row = 0; row < z.length; row += order.length) {
        for (let j = 0; j < order.length; j++) u[row + order[j]] = z[row + j];
      }
      return u;
    }

    backward(dz) { // where a number came from, its gradient goes
      return this.inverse(dz);
    }
  }

  // Keep the first half; shift the second by a function of it, and (affine) scale it by another.
  class Coupling {
    constructor(dim, width, kind, random) {
      this.dim = dim;
      this.kept = Math.ceil(dim / 2);
      this.moved = dim - this.kept;
      this.affine = kind === "affine";
      this.outputs = this.affine ? 2 * this.moved : this.moved; // log-scales first, then shifts
      this.network = new flow.CouplingNetwork(this.kept, this.outputs, width, random);
      this.parameters = this.network.parameters;
      this.gradients = this.network.gradients;
    }

    firstHalf(u) {
      const { dim, kept } = this, half = new Float64Array((u.length / dim) * kept);
      for (let i = 0; i < u.length / dim; i++) {
        for (let j = 0; j < kept; j++) half[i * kept + j] = u[i * dim + j];
      }
      return half;
    }

    initialize(sample) {
      this.network.initialize(this.firstHalf(sample));
    }

    forward(u, logDet, cache) {
      const { dim, kept, moved, outputs } = this, z = u.slice();
      const inner = cache ? {} : null;
      const given = this.network.forward(this.firstHalf(u), inner);
      for (let i = 0; i < u.length / dim; i++) {
        for (let j = 0; j < moved; j++) {
          const at = i * dim + kept + j, shift = given[i * outputs + outputs - moved + j];
          const logScale = this.affine ? Math.tanh(given[i * outputs + j]) : 0; // no wild scales
          z[at] = u[at] * Math.exp(logScale) + shift;
          if (logDet) logDet[i] += logScale;
        }
      }
      if (cache) Object.assign(cache, { u: u, given: given, inner: inner });
      return z;
    }

    inverse(z) {
      const { dim, kept, moved, outputs } = this, u = z.slice();
      const given = this.network.forward(this.firstHalf(z), null);
      for (let i = 0; i < z.length / dim; i++) {
        for (let j = 0; j < moved; j++) {
          const at = i * dim + kept + j, shift = given[i * outputs + outputs - moved + j];
          const logScale = this.affine ? Math.tanh(given[i * outputs + j]) : 0;
          u[at] = (z[at] - shift) * Math.exp(-logScale);
        }
      }
      return u;
    }

    backward(dz, dLogDet, cache) {
      const { dim, kept, moved, outputs } = this, { u, given } = cache;
      const du = dz.slice(), dGiven = new Float64Array(given.length);
      for (let i = 0; i < dz.length / dim; i++) {
        for (let j = 0; j < moved; j++) {
          const at = i * dim + kept + j;
          dGiven[i * outputs + outputs - moved + j] = dz[at];
          if (!this.affine) continue;
          const logScale = Math.tanh(given[i * outputs + j]), scale = Math.exp(logScale);
          du[at] = dz[at] * scale;
          dGiven[i * outputs + j] = (dz[at] * u[at] * scale + dLogDet) * (1 - logScale ** 2);
        }
      }
      const dFirst = this.network.backward(dGiven, cache.inner);
      for (let i = 0; i < dz.length / dim; i++) {
        for (let j = 0; j < kept; j++) du[i * dim + j] += dFirst[i * kept + j];
      }
      return du;
    }
  }

  Object.assign(flow, {
    ActNorm: ActNorm, Permutation: Permutation, Coupling: Coupling,
    LOG_SCALE_FACTOR: LOG_SCALE_FACTOR, zerosLike: zerosLike, filled: filled,
  });
})();
