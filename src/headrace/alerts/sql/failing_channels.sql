-- Channels whose last tries, this many or more, all failed.
SELECT org, project, env, name FROM alert_channels WHERE enabled AND failures >= %(failures)s ORDER BY 1, 2, 3, 4
