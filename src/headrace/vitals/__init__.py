"""How a process is: the figures that every long-running command keeps, and the two pages that tell them.

Figures are plain numbers, written where something happens and read when somebody scrapes. Only `pages` and `collect`
import prometheus_client, and only processes that serve import those: a worker without a port never loads it.
"""
