"""Private records in blocks of bounded memory, from arrays, tables and files, and on clusters.

:class:`~pymc_dp.Records` gives the columns of a :class:`RecordSource` under the names of a model's ``pm.Data``: block
by block, in pieces for several processes, or rows by number. Nothing here knows of models or of privacy.
"""

from pymc_dp.data.records import Records as Records
from pymc_dp.data.several_sites import Sites as Sites
from pymc_dp.data.shards import Shards as Shards
from pymc_dp.data.source import RecordSource

__all__ = ["RecordSource"]  # the others are public as dp.Records, dp.Shards and dp.sites.Sites
