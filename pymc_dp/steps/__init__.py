"""How the chain moves, one file for each algorithm; and what a step of one's own needs.

Rules for runs without privacy, or inside others:

- :class:`Metropolis`: Metropolis' rule, which is not private.
- :class:`Lazy`: a rule that rejects a fixed part of all proposals. Steps have an argument ``laziness``.

For a step of one's own:

- :class:`DPStep`: claims, charges, counts and stops; any accesses.
- :class:`AcceptRejectStep`: one accept/reject decision per iteration, from a clipped log-ratio.
- :class:`ProposalStep`: the same with a :class:`Proposal`, which is symmetric and blind to the data.
- :class:`State` and :class:`Move`: a state of the chain, and a proposed move.
- :class:`PerProposalDecision`: the cost of a decision at each distance of a move.
- :class:`StepOptions`: types of the arguments that all steps pass on to :class:`DPStep`.
"""

from pymc_dp.acceptance import Lazy, Metropolis
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision
from pymc_dp.steps.accept_reject import AcceptRejectStep, Move, ProposalStep, State
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.options import StepOptions
from pymc_dp.steps.proposals import Proposal

__all__ = [
    "AcceptRejectStep",
    "DPStep",
    "Lazy",
    "Metropolis",
    "Move",
    "PerProposalDecision",
    "Proposal",
    "ProposalStep",
    "State",
    "StepOptions",
]
