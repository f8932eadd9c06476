// A flow of one level: steps of actnorm, permutation and coupling; its density and its gradient.
(function () {
  "use strict";
  const flow = window.bertflowFlow;

  class Flow {
    // settings: dim, depth, width, coupling ("additive" or "affine"), actnorm (true or false),
    // permutation ("reverse" or "random"), seed
    constructor(settings) {
      const dim = settings.dim || 2, random = flow.random(settings.seed || 0);
      this.dim = dim;
      this.layers = [];
      for (let step = 0; step < settings.depth; step++) {
        if (settings.actnorm !== false) this.layers.push(new flow.ActNorm(dim, random));
        this.layers.push(new flow.Permutation(dim, settings.permutation || "reverse", random));
        this.layers.push(new flow.Coupling(dim, settings.width, settings.coupling, random));
      }
      this.parameters = this.layers.flatMap(function (layer) { return layer.parameters; });
      this.gradients = this.layers.flatMap(function (layer) { return layer.gradients; });
    }

    setParameters(arrays) {
      this.parameters.forEach(function (array, k) { array.set(arrays[k]); });
    }

    // Data-dependent start: each actnorm sees the sample as the layers before it leave it.
    initialize(sample) {
      this.layers.forEach(function (layer) {
        if (layer.initialize) layer.initialize(sample);
        sample = layer.forward(sample, null, null);
      });
    }

    // caches: an empty list to be filled, if `backward` is to follow.
    forward(u, caches) {
      const logDet = new Float64Array(u.length / this.dim);
      let z = u;
      this.layers.forEach(function (layer) {
        const cache = caches ? {} : null;
        z = layer.forward(z, logDet, cache);
        if (caches) caches.push(cache);
      });
      return { z: z, logDet: logDet };
    }

    inverse(z) {
      return this.layers.reduceRight(function (point, layer) { return layer.inverse(point); }, z);
    }

    backward(dz, dLogDet, caches) {
      this.gradients.forEach(function (array) { array.fill(0); });
      return this.layers.reduceRight(function (slope, layer, k) {
        return layer.backward(slope, dLogDet, caches[k]);
      }, dz);
    }

    logProb(u) {
      const { z, logDet } = this.forward(u);
      return this.logDensity(z, logDet);
    }

    logDensity(z, logDet) { // log N(z; 0, I) + log |det dz/du|
      const { dim } = this, constant = -0.5 * dim * Math.log(2 * Math.PI);
      return logDet.map(function (change, i) {
        let square = 0;
        for (let j = 0; j < dim; j++) square += z[i * dim + j] ** 2;
        return constant - 0.5 * square + change;
      });
    }

    bits(u) {
      return flow.inBits(this.logProb(u), this.dim);
    }

    // The loss of a batch in bits per dimension; its gradient is left in this.gradients.
    lossAndGradient(u) {
      const caches = [], { z, logDet } = this.forward(u, caches);
      const scale = 1 / (logDet.length * this.dim * Math.LN2);
      const dz = z.map(function (value) { return value * scale; });
      const du = this.backward(dz, -scale, caches);
      return { loss: flow.inBits(this.logDensity(z, logDet), this.dim), du: du };
    }
  }

  // Bits per dimension: the mean of -log p, per dimension, base 2.
  flow.inBits = function (logP, dim) {
    const sum = logP.reduce(function (total, value) { return total + value; }, 0);
    return -sum / (logP.length * dim * Math.LN2);
  };
  flow.Flow = Flow;
})();
