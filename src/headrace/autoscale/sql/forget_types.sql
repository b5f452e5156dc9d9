DELETE FROM autoscale_types WHERE NOT name = ANY(%(names)s)
