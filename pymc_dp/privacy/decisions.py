"""What one accept/reject decision can reveal: a maximisation over the log-ratio."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pymc_dp.acceptance import AcceptanceRule, Lazy, Penalty

__all__ = ["decision_renyi"]

# Relative allowance for the maximisation and for rounding: costs only ever grow by it.
_SAFETY = 1 + 1e-7


@lru_cache(maxsize=16384)
def decision_renyi(
    rule: AcceptanceRule, sensitivity: float, orders: tuple[float, ...]
) -> np.ndarray:
    """Bound the Rényi divergence between decisions at log-ratios ``x`` and ``x + sensitivity``.

    Parameters
    ----------
    rule : AcceptanceRule
        A monotone rule.
    sensitivity : float
        Shift, > 0; smaller shifts are never worse.
    orders : tuple of float
        Rényi orders > 1.

    Returns
    -------
    ndarray, shape (len(orders),)
        Supremum over all real ``x`` and both directions, rounded up; read-only.
    """
    alpha = np.array(orders)[:, None]
    # The divergence as a function of x varies on the scale of the noise near 0 and of alpha *
    # sensitivity far out.
    reach = 60 + 4 * sensitivity * alpha.max()
    inner = rule.rule if isinstance(rule, Lazy) else rule
    unit = min(inner.scale, 1.0) if isinstance(inner, Penalty) else 1.0
    if isinstance(inner, Penalty):
        reach = max(
            reach, inner.scale * (inner.scale / 2 + 40 + alpha.max() * sensitivity / inner.scale)
        )
    coarse = unit * np.sinh(np.linspace(-1, 1, 801) * np.arcsinh(reach / unit))[None, :]
    upper, lower = rule.log_probabilities(coarse + sensitivity), rule.log_probabilities(coarse)
    best = np.zeros(len(alpha))
    # Each direction has its own peak, and the higher one may look lower on a coarse grid.
    for reverse in (False, True):
        grid, p, q = coarse, upper, lower
        for refinement in range(4):
            value = _divergence(q, p, alpha) if reverse else _divergence(p, q, alpha)
            if refinement == 3:
                break
            peak = np.clip(np.argmax(value, axis=1), 1, grid.shape[1] - 2)
            rows = np.arange(len(alpha)) if grid.shape[0] > 1 else np.zeros(len(alpha), dtype=int)
            low, high = grid[rows, peak - 1], grid[rows, peak + 1]
            grid = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, 33)
            p, q = rule.log_probabilities(grid + sensitivity), rule.log_probabilities(grid)
        best = np.maximum(best, value.max(axis=1))
    if not np.all(np.isfinite(best)):  # cannot be, but a cost that is not a number must not pass
        raise ArithmeticError(f"No cost was found for {rule.name} at sensitivity {sensitivity!r}.")
    result = best * _SAFETY
    result.flags.writeable = False
    return result


def _divergence(
    p: tuple[np.ndarray, np.ndarray], q: tuple[np.ndarray, np.ndarray], alpha: np.ndarray
) -> np.ndarray:
    """Rényi divergence between two decisions, given as ``(log accept, log reject)``."""
    up, down = p[0] - q[0], p[1] - q[1]
    # sum q e^{alpha u} over both outcomes, minus 1, minus alpha times the identity sum q (e^u - 1)
    # = 0: the terms of first order are gone before anything is rounded.
    with np.errstate(over="ignore", invalid="ignore"):
        small = np.exp(q[0]) * (np.expm1(alpha * up) - alpha * np.expm1(up))
        small = small + np.exp(q[1]) * (np.expm1(alpha * down) - alpha * np.expm1(down))
        large = np.logaddexp(q[0] + alpha * up, q[1] + alpha * down)
    use_small = np.maximum(np.abs(up), np.abs(down)) * alpha < 1
    return np.where(use_small, np.log1p(np.where(use_small, small, 0)), large) / (alpha - 1)
