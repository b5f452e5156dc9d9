SELECT
  (SELECT count(*) FROM alert_rules
   WHERE org = %(org)s AND (%(project)s = '' OR project = %(project)s) AND (%(env)s = '' OR env = %(env)s)),
  (SELECT count(*) FROM alert_channels
   WHERE org = %(org)s AND (%(project)s = '' OR project = %(project)s) AND (%(env)s = '' OR env = %(env)s))
