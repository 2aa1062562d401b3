"""diffprivlib 0.6.6 (Holohan et al. 2019, arXiv:1907.02444): a logistic regression by objective perturbation.

    pip install diffprivlib==0.6.6 "scikit-learn<1.6"

The objective gets a random linear term (Chaudhuri et al. 2011, https://jmlr.org/papers/v12/chaudhuri11a.html), which
is pure epsilon-differential privacy if one record is *replaced*: nothing is converted, and delta is not used. The
result is a point: the package states no uncertainty, so there are no intervals.

What a user chooses: the norm bound of a record, here that of the public ranges, and the penalty, here the prior's.
"""

import numpy as np

from diffprivlib.models import LogisticRegression
from peer_program import answer, problem


def posterior(x, y, epsilon, prior_sd, data_norm, seed):
    """Coefficients, the intercept first."""
    model = LogisticRegression(
        epsilon=epsilon, data_norm=data_norm, C=prior_sd**2, max_iter=1000, random_state=seed
    )
    model.fit(x, y)
    return np.concatenate([model.intercept_, model.coef_[0]])


if __name__ == "__main__":
    p = problem()
    # The package clips and adds the intercept itself.
    given = p.x[:, 1:], p.y, p.epsilon, p.prior_sd, p.norm, p.seed
    answer(lambda: posterior(*given)[None])
