"""What a physical model misses, learnt from rows like it: a Gaussian process over the configuration."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from benchsuite.predict.theory.arrays import Floats

MAX_ROWS = 1500
"""The work grows with the cube of the rows: more are thinned."""
ROOT3 = 3**0.5
LEAST_SCALE = 0.3
PRIOR_MEANS = {"amplitude": np.log(0.08), "noise": np.log(0.02), "length": 1.0}
"""Of the logarithms of amplitude, noise (both in log time) and length (in standard deviations of a feature)."""
STEPS = 60


@dataclass(frozen=True)
class Residual:
    """A fitted process; far from its rows it returns to zero, and its deviation to the amplitude."""

    rows: Floats
    """(n, k) standardised features."""
    shift: Floats
    scale: Floats
    parameters: Floats
    """Logarithms: amplitude, noise, k lengths."""
    factor: tuple[Floats, bool]
    weights: Floats

    def at(self, features: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation (that of one more measurement) of log time at (m, k) features."""
        here = kernel((features - self.shift) / self.scale, self.rows, self.parameters)[0]
        variance = _variance(self.parameters) - (here * cho_solve(self.factor, here.T).T).sum(1)
        return here @ self.weights, np.sqrt(np.maximum(variance, 1e-12))


def _variance(parameters: Floats) -> float:
    return float(np.exp(2 * parameters[0]) + np.exp(2 * parameters[1]))


def kernel(left: Floats, right: Floats, parameters: Floats) -> tuple[Floats, Floats]:
    """Matern 3/2 with a length per feature (Rasmussen & Williams 2006, eq. 4.17): (m, n); and its distances, scaled."""
    lengths = np.exp(parameters[2:])
    distance = np.sqrt(((left[:, None] / lengths - right[None] / lengths) ** 2).sum(-1))
    return np.exp(2 * parameters[0]) * (1 + ROOT3 * distance) * np.exp(-ROOT3 * distance), distance


def learn(features: Floats, log_errors: Floats) -> Residual:
    """Fit to (n, k) features and (n,) log of measured over modelled, by marginal likelihood and weak priors."""
    if len(features) > MAX_ROWS:
        kept = np.linspace(0, len(features) - 1, MAX_ROWS).astype(np.intp)
        features, log_errors = features[kept], log_errors[kept]
    shift, scale = features.mean(0), np.maximum(features.std(0), LEAST_SCALE)
    rows = (features - shift) / scale
    start = np.r_[PRIOR_MEANS["amplitude"], PRIOR_MEANS["noise"], np.full(rows.shape[1], PRIOR_MEANS["length"])]
    squares = (rows[:, None] - rows[None]) ** 2
    found = minimize(
        _objective, start, args=(squares, log_errors, start), jac=True, method="L-BFGS-B", options={"maxiter": STEPS}
    )
    return given(features, log_errors, np.asarray(found.x, dtype=np.float64), shift, scale)


def given(features: Floats, log_errors: Floats, parameters: Floats, shift: Floats, scale: Floats) -> Residual:
    """The process of these rows with parameters found before."""
    rows = (features - shift) / scale
    covariance = kernel(rows, rows, parameters)[0] + np.exp(2 * parameters[1]) * np.eye(len(rows))
    factor = cho_factor(covariance, lower=True)
    return Residual(rows, shift, scale, parameters, factor, cho_solve(factor, log_errors))


def _objective(parameters: Floats, squares: Floats, errors: Floats, prior: Floats) -> tuple[float, Floats]:
    """Negative log of likelihood x prior, and its gradient (Rasmussen & Williams 2006, eq. 5.9)."""
    lengths, noise = np.exp(parameters[2:]), np.exp(2 * parameters[1])
    distance = np.sqrt(squares @ lengths**-2)
    decay = np.exp(2 * parameters[0] - ROOT3 * distance)
    smooth = (1 + ROOT3 * distance) * decay
    size = len(errors)
    try:
        factor = cho_factor(smooth + noise * np.eye(size), lower=True)
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(parameters)
    weights = cho_solve(factor, errors)
    slope = cho_solve(factor, np.eye(size)) - np.outer(weights, weights)
    away = parameters - prior
    value = errors @ weights / 2 + np.log(np.diag(factor[0])).sum() + away @ away / 2
    by_length = 1.5 * np.tensordot(slope * decay, squares, 2) * lengths**-2
    gradient = np.r_[(slope * smooth).sum(), noise * np.trace(slope), by_length] + away
    return float(value), gradient
