// Points in the plane to learn, and the two simplest models of them.
(function () {
  "use strict";
  const flow = window.bertflowFlow;
  const NOISE = 0.1;

  // Each gives [x, y, group] for point k of n.
  const SHAPES = {
    "two moons": function (k, n, random) {
      const angle = Math.PI * random.uniform(), upper = k % 2;
      const x = upper ? Math.cos(angle) - 0.5 : 0.5 - Math.cos(angle);
      const y = upper ? Math.sin(angle) - 0.25 : 0.25 - Math.sin(angle);
      return noisy(1.4 * x, 1.4 * y, upper, random);
    },
    rings: function (k, n, random) {
      const angle = 2 * Math.PI * random.uniform(), outer = k % 2, radius = outer ? 2.2 : 1;
      return noisy(radius * Math.cos(angle), radius * Math.sin(angle), outer, random);
    },
    spiral: function (k, n, random) {
      const arm = k % 2, turn = 0.4 + 2.6 * Math.sqrt(random.uniform());
      const angle = 1.7 * turn + arm * Math.PI, radius = 0.8 * turn;
      return noisy(radius * Math.cos(angle), radius * Math.sin(angle), arm, random);
    },
    "two clouds": function (k, n, random) { // one dense, one loose, as many points in each
      const loose = k % 2, spread = loose ? 0.7 : 0.15;
      const x = (loose ? 1.2 : -1.6) + spread * random.normal();
      return [x, (loose ? 0.4 : -0.8) + spread * random.normal(), loose];
    },
  };

  function noisy(x, y, group, random) {
    return [x + NOISE * random.normal(), y + NOISE * random.normal(), group];
  }

  flow.shapes = Object.keys(SHAPES);
  flow.points = function (shape, n, seed) {
    const random = flow.random(1000 + seed), points = new Float64Array(2 * n), groups = [];
    for (let k = 0; k < n; k++) {
      const [x, y, group] = SHAPES[shape](k, n, random);
      points.set([x, y], 2 * k);
      groups.push(group);
    }
    return { points: points, groups: groups };
  };

  // Bits per dimension of the Gaussian that fits best: with one deviation for each dimension, and
  // with the correlation as well, which is what whitening assumes.
  flow.gaussianBits = function (points) {
    const n = points.length / 2, mean = [0, 0];
    let xx = 0, xy = 0, yy = 0;
    for (let i = 0; i < n; i++) {
      mean[0] += points[2 * i] / n;
      mean[1] += points[2 * i + 1] / n;
    }
    for (let i = 0; i < n; i++) {
      const x = points[2 * i] - mean[0], y = points[2 * i + 1] - mean[1];
      xx += (x * x) / n;
      xy += (x * y) / n;
      yy += (y * y) / n;
    }
    const bits = function (volume) { // of a Gaussian whose covariance has this determinant
      return (2 * Math.log(2 * Math.PI * Math.E) + Math.log(volume)) / (4 * Math.LN2);
    };
    return { diagonal: bits(xx * yy), whitening: bits(xx * yy - xy * xy) };
  };
})();
