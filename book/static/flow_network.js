// The network inside a coupling (CouplingNetwork in bertflow_lite/flow.py): three linear maps, an
// inner actnorm and a ReLU after the first two, and a learned scale after the last, which starts
// at zero, so that a new coupling changes nothing.
(function () {
  "use strict";
  const flow = window.bertflowFlow;

  // y = x W^T for a batch; W has a row of `inner` numbers for each of the `outer` outputs.
  function linear(x, weight, inner, outer) {
    const n = x.length / inner, y = new Float64Array(n * outer);
    for (let i = 0; i < n; i++) {
      for (let o = 0; o < outer; o++) {
        let sum = 0;
        for (let k = 0; k < inner; k++) sum += weight[o * inner + k] * x[i * inner + k];
        y[i * outer + o] = sum;
      }
    }
    return y;
  }

  // Add the gradient at W to dWeight; give the one at x.
  function linearBackward(x, weight, dy, dWeight, inner, outer) {
    const n = x.length / inner, dx = new Float64Array(x.length);
    for (let i = 0; i < n; i++) {
      for (let o = 0; o < outer; o++) {
        const slope = dy[i * outer + o];
        if (slope === 0) continue; // behind a ReLU that is shut
        for (let k = 0; k < inner; k++) {
          dWeight[o * inner + k] += slope * x[i * inner + k];
          dx[i * inner + k] += slope * weight[o * inner + k];
        }
      }
    }
    return dx;
  }

  function relu(x) {
    return x.map(function (value) { return value > 0 ? value : 0; });
  }

  function reluBackward(dy, x) {
    return dy.map(function (slope, k) { return x[k] > 0 ? slope : 0; });
  }

  class CouplingNetwork {
    constructor(inputs, outputs, width, random) {
      const draw = function () { return 0.05 * random.normal(); };
      Object.assign(this, { inputs: inputs, outputs: outputs, width: width });
      this.weight1 = flow.filled(width * inputs, draw);
      this.norm1 = new flow.ActNorm(width, random);
      this.weight2 = flow.filled(width * width, draw);
      this.norm2 = new flow.ActNorm(width, random);
      this.weight3 = new Float64Array(outputs * width);
      this.bias3 = new Float64Array(outputs);
      this.logScale3 = new Float64Array(outputs);
      const own = [this.weight1, this.weight2, this.weight3, this.bias3, this.logScale3];
      this.ownGradients = flow.zerosLike(own);
      this.parameters = [...own, ...this.norm1.parameters, ...this.norm2.parameters];
      this.gradients = [...this.ownGradients, ...this.norm1.gradients, ...this.norm2.gradients];
    }

    initialize(x) {
      const hidden1 = linear(x, this.weight1, this.inputs, this.width);
      this.norm1.initialize(hidden1);
      const active1 = relu(this.norm1.forward(hidden1, null, null));
      this.norm2.initialize(linear(active1, this.weight2, this.width, this.width));
    }

    forward(x, cache) {
      const { inputs, outputs, width } = this, inner1 = {}, inner2 = {};
      const normed1 = this.norm1.forward(linear(x, this.weight1, inputs, width), null, inner1);
      const active1 = relu(normed1);
      const hidden2 = linear(active1, this.weight2, width, width);
      const normed2 = this.norm2.forward(hidden2, null, inner2);
      const active2 = relu(normed2);
      const y = linear(active2, this.weight3, width, outputs);
      for (let k = 0; k < y.length; k++) {
        const o = k % outputs;
        y[k] = (y[k] + this.bias3[o]) * Math.exp(flow.LOG_SCALE_FACTOR * this.logScale3[o]);
      }
      if (cache) Object.assign(cache, { x, inner1, normed1, active1, inner2, normed2, active2, y });
      return y;
    }

    backward(dy, cache) {
      const { inputs, outputs, width } = this;
      const [dWeight1, dWeight2, dWeight3, dBias3, dLogScale3] = this.ownGradients;
      const dLast = new Float64Array(dy.length);
      for (let k = 0; k < dy.length; k++) {
        const o = k % outputs;
        dLast[k] = dy[k] * Math.exp(flow.LOG_SCALE_FACTOR * this.logScale3[o]);
        dBias3[o] += dLast[k];
        dLogScale3[o] += flow.LOG_SCALE_FACTOR * dy[k] * cache.y[k];
      }
      let d = linearBackward(cache.active2, this.weight3, dLast, dWeight3, width, outputs);
      d = this.norm2.backward(reluBackward(d, cache.normed2), 0, cache.inner2);
      d = linearBackward(cache.active1, this.weight2, d, dWeight2, width, width);
      d = this.norm1.backward(reluBackward(d, cache.normed1), 0, cache.inner1);
      return linearBackward(cache.x, this.weight1, d, dWeight1, inputs, width);
    }
  }

  flow.CouplingNetwork = CouplingNetwork;
})();
