"""Private records in blocks of bounded memory, from arrays, data frames and Parquet files, and on clusters.

:class:`~pymc_dp.Records` gives the columns of a table under the names of a model's arguments: block by block, in
pieces for several processes, or rows by number. Nothing here knows of models or of privacy.
"""

from pymc_dp.data.records import Records
from pymc_dp.data.several_sites import Sites
from pymc_dp.data.shards import Shards

__all__ = ["Records", "Shards", "Sites"]
